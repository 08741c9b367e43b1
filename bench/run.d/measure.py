"""One run of the load, rounds of them that take turns, and the median of what came of it."""

import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import gateways
import machine

LONGEST_RUN = 120  # Seconds that a run may take beyond its own.
QUIET = 0.05  # The share of a core that others may have without a word about it.


@dataclass
class Contender:
    """What is measured: a way from the load to the mocks."""

    name: str
    base: str
    process: object = None  # None: straight to the mocks, or a client that does it all by itself.


@dataclass
class Run:
    """What the load does with a contender."""

    contender: Contender
    mode: str
    path: str
    options: dict = field(default_factory=dict)
    note: str = ""  # What tells it from other runs of the same contender.

    @property
    def name(self):
        return f"{self.contender.name}, {self.note}" if self.note else self.contender.name

    def command(self, load, seconds):
        command = [load, self.mode, "--url", self.contender.base + self.path, "--seconds", seconds]
        for name, values in self.options.items():
            for value in values if isinstance(values, list) else [values]:
                command += [f"--{name.replace('_', '-')}", value]
        return list(map(str, command))


class Bench:
    """The mocks, the gateways, and all that was measured so far."""

    def __init__(self, processes, folder, tools, nginx, toolway, options, log):
        self.processes, self.folder, self.tools = processes, folder, tools
        self.nginx_binary, self.toolway_binary = nginx, toolway
        self.options, self.log = options, log
        self.runs, self.wrong = [], []

    # ---- What is started --------------------------------------------------------------------------------------------

    def start_peers(self):
        """The mocks, and the two ways to them that every row knows."""
        os.sched_setaffinity(0, {self.processes.cores.load})
        self.model = self.start_mock("mock-model")
        self.server = self.start_mock("mock-server")
        self.mocks = self.processes.running[:]
        self.direct = Contender("direct", f"http://127.0.0.1:{self.model}")
        self.nginx = self.start_nginx()

    def start_mock(self, name):
        port = machine.free_port()
        command = [self.tools / name, f"127.0.0.1:{port}"]
        process = self.processes.start(command, self.processes.cores.load, f"{name}.log")
        machine.until_listening(process, port)
        return port

    def start_nginx(self, model=None, **options):
        port, process = self.start_nginx_on(self.processes.cores.gateway, model or self.model, **options)
        return Contender("nginx", f"http://127.0.0.1:{port}", process)

    def start_nginx_on(self, core, model, **options):
        port = machine.free_port()
        folder = self.folder / f"nginx-{port}"
        folder.mkdir()
        config = folder / "nginx.conf"
        config.write_text(gateways.nginx(folder, port, model, self.server, **options))
        command = [self.nginx_binary, "-p", folder, "-c", config]
        process = self.processes.start(command, core, "nginx.log")
        machine.until_listening(process, port)
        return port, process

    @contextlib.contextmanager
    def tls_model(self):
        """The model behind TLS, which an nginx on the core of the mocks does: its port and its certificate."""
        certificate = self.folder / "model.pem"
        machine.make_certificate(certificate, gateways.CERTIFICATE)
        served = {"certificate": certificate, "serves_tls": True}
        port, process = self.start_nginx_on(self.processes.cores.load, self.model, **served)
        self.mocks.append(process)
        yield port, certificate
        self.mocks.remove(process)
        self.processes.end(process)

    @contextlib.contextmanager
    def toolway(self, name="toolway", mcp=None, functions=None, tools=0, upstreams=None, trust=None):
        """toolway with an MCP server at this path of the mock, or with functions, once it has so many tools."""
        port = machine.free_port()
        url = f"http://127.0.0.1:{self.server}{mcp}" if mcp else None
        config = self.folder / f"toolway-{port}.toml"
        config.write_text(gateways.toolway(self.folder, port, self.model, url, functions, upstreams))
        process = self.start_toolway(config, trust)
        machine.until_listening(process, port)
        contender = Contender(name, f"http://127.0.0.1:{port}", process)
        self.until_tools(contender, tools)
        yield contender
        self.processes.end(process)

    def start_toolway(self, config, trust=None):
        command = [self.toolway_binary, "serve", "--config", config, "--data-dir", config.with_suffix(".data")]
        trusted = {"env": {**os.environ, "SSL_CERT_FILE": str(trust)}} if trust else {}
        return self.processes.start(command, self.processes.cores.gateway, "toolway.log", **trusted)

    def until_tools(self, contender, tools):
        deadline = time.monotonic() + machine.LONGEST_START
        while (have := self.get(contender, "/health")["tools"]) != tools:
            if time.monotonic() > deadline:
                raise machine.Failed(f"toolway has {have} tools in place of {tools}")
            time.sleep(0.02)

    # ---- Single questions -------------------------------------------------------------------------------------------

    def get(self, contender, path, body=None, headers=()):
        return json.loads(self.text(contender, path, body, headers))

    def text(self, contender, path, body=None, headers=()):
        named = dict(header.split(": ", 1) for header in headers)
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(contender.base + path, data, {"content-type": "application/json", **named})
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read().decode()

    def count(self, contender, body, headers=()):
        """What reaches the model of a request: messages, tools, bytes."""
        answer = self.get(contender, "/v1/chat/completions", {**body, "model": "count"}, headers)
        said = answer["choices"][0]["message"]["content"]
        return {name: int(number) for name, number in (pair.split("=") for pair in said.split())}

    def demand(self, holds, why):
        """Notes it as wrong if something is not as the row needs it."""
        if not holds:
            self.wrong.append(why)
            self.log(f"  wrong: {why}")

    # ---- Load -------------------------------------------------------------------------------------------------------

    def rounds(self, label, runs):
        """The medians of each run over rounds in which all of them take turns, in the order of `runs`."""
        for run in runs:
            self.once(label, run, self.options.warm_up, warm_up=True)
        results = [[] for _ in runs]
        for _ in range(self.options.rounds):
            for run, found in zip(runs, results):
                found.append(self.once(label, run, self.options.secs))
        medians = [self.median(found, results[0]) for found in results]
        for run, found in zip(runs, medians):
            self.log(f"  {label:40} {run.name:26} {shown(found)}")
        return medians

    def once(self, label, run, seconds, warm_up=False):
        """One run of the load, and what the gateway needed for it."""
        process, before = run.contender.process, self.clocks(run.contender.process)
        load = self.processes.start(
            run.command(self.tools / "load", seconds),
            self.processes.cores.load,
            "load.log",
            stdout=subprocess.PIPE,
        )
        said = self.wait(load, seconds)
        used = {name: after - before[name] for name, after in self.clocks(process).items()}
        found = self.report(said, f"{label}, {run.name}")
        found["cpu_seconds"] = used["gateway"]
        found["cpu_ms_per_1000"] = used["gateway"] * 1e6 / max(1, found["right"] + found["wrong"])
        found["core_busy"] = used["gateway"] / used["wall"]
        found["gateway_core_others"] = max(0.0, used["gateway_core"] - used["gateway"]) / used["wall"]
        found["load_core_others"] = max(0.0, used["load_core"] - used["load"]) / used["wall"]
        self.demand(not found["wrong"], f"{label}, {run.name}: {found['wrong']} replies: {found['first_wrong']}")
        if not found["right"]:
            raise machine.Failed(f"{label}, {run.name}: no reply was right")
        if not warm_up:
            self.runs.append({"label": label, "contender": run.name, **found})
        return found

    def wait(self, load, seconds):
        """What the load said, once it has come to its end."""
        try:
            said, _ = load.popen.communicate(timeout=seconds + LONGEST_RUN)
        except subprocess.TimeoutExpired:
            load.popen.kill()
            said, _ = load.popen.communicate()
        self.processes.running.remove(load)
        return said.decode()

    def report(self, lines, what):
        """What a load found, in its last line."""
        if not lines.strip():
            why = (self.folder / "load.log").read_text()[-300:].strip()
            raise machine.Failed(f"{what}: {why or 'the load said nothing'}")
        return json.loads(lines.splitlines()[-1])

    def clocks(self, process):
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "wall": time.monotonic(),
            "gateway": process.cpu() if process else 0.0,
            "gateway_core": machine.busy(self.processes.cores.gateway),
            "load_core": machine.busy(self.processes.cores.load),
            "load": children.ru_utime + children.ru_stime + sum(mock.cpu() for mock in self.mocks),
        }

    def median(self, found, first):
        """Of each figure; `added` ones are taken against the first run of the same round."""
        names = [name for name in found[0] if isinstance(found[0][name], float)]
        medians = {name: statistics.median([run.get(name) or 0.0 for run in found]) for name in names}
        for name in ("p50_us", "first_p50_us"):
            pairs = [(run.get(name), other.get(name)) for run, other in zip(found, first)]
            if all(mine is not None and base is not None for mine, base in pairs):
                medians[f"added_{name}"] = statistics.median([mine - base for mine, base in pairs])
        medians["bytes_per_reply"] = found[0].get("bytes_per_reply")
        return medians

    def hold(self, label, run, streams):
        """Resident bytes before, and at most while the streams are open."""
        before = run.contender.process.memory()
        command = run.command(self.tools / "load", self.options.holding)
        load = self.processes.start(command, self.processes.cores.load, "load.log", stdout=subprocess.PIPE)
        load.popen.stdout.readline()
        most = 0
        while load.popen.poll() is None:
            most = max(most, run.contender.process.memory())
            time.sleep(0.05)
        said = self.wait(load, 0)
        found = self.report(said, f"{label}, {run.name}")
        self.demand(not found["wrong"], f"{label}: {found['wrong']} streams: {found['first_wrong']}")
        kib = (most - before) / streams / 1024
        self.runs.append({"label": label, "contender": run.name, "before": before, "held": most, **found})
        self.log(f"  {label:40} {run.name:26} {kib:.1f} KB each")
        return kib

    def peak(self, label, run):
        """Resident bytes at most, beyond those before, while one request is answered."""
        process = run.contender.process
        before = process.memory()
        process.forget_peak()
        self.once(label, run, 0.001, warm_up=True)  # One request takes longer.
        found = process.peak() - before
        self.runs.append({"label": label, "contender": run.name, "before": before, "peak": found})
        self.log(f"  {label:40} {run.name:26} {found / (1 << 20):.1f} MB at the peak")
        return found

    # ---- About ------------------------------------------------------------------------------------------------------

    def conditions(self):
        """Under which conditions all this was measured."""
        cores, options = self.processes.cores, self.options
        lines = [
            f"{version(self.toolway_binary, '--version')}; {version(self.nginx_binary, '-v')}; "
            f"{processor()}, Linux {platform.release()}, {os.cpu_count()} cores: "
            f"{cores.load} for the load and the mocks, {cores.gateway} for the gateway.",
            f"Medians of {options.rounds} rounds of {options.secs:g} s.",
        ]
        others = [self.others(core) for core in ("gateway", "load")]
        if any(share is not None for share in others):
            busy = max(others) > QUIET
            lines.append(
                f"Others took {others[0]:.0%} of the gateway's core and {others[1]:.0%} of the load's"
                + ("; measure again when the machine has less to do." if busy else ".")
            )
        return lines

    def others(self, core):
        """The share of a core that nothing of ours took, in the median of the runs."""
        name = f"{core}_core_others"
        shares = [run[name] for run in self.runs if name in run]
        return statistics.median(shares) if shares else None


def shown(found):
    cpu = f"{found['cpu_ms_per_1000']:9.2f} ms CPU per 1000" if found["cpu_ms_per_1000"] else " " * 25
    first = found.get("first_p50_us")
    return (
        f"{cpu}  {found.get('per_second', 0):9.0f}/s  p50 {found.get('p50_us', 0):8.0f} µs"
        + (f"  first {first:7.0f} µs" if first else "")
    )


def version(binary, flag):
    said = subprocess.run([binary, flag], capture_output=True, text=True)
    return (said.stdout or said.stderr).strip().removeprefix("nginx version: ").splitlines()[0]


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
