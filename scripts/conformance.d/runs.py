"""The runs: which server the suite meets, or that toolway meets the suite; and what came out of each."""

import json
import os
import re
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from driver.processes import Process, until

PARTS = Path(__file__).resolve().parent

VERSIONS = ["2025-11-25", "2026-07-28"]
# The fixture's transport and, after a dash, its era; `None` where toolway is the client.
RUNS = {
    "server-stdio": ("stdio", "both"),
    "server-http": ("http", "both"),
    "server-handshake": ("http", "handshake"),
    "server-modern": ("stdio", "modern"),
    "client": None,
}
DIRECT = ["direct"]
SIDE_BY_SIDE = 2  # Clients at a time.
LONGEST = 300  # Seconds for one run of the suite; it takes about ten.


class World:
    """The programs that a run is made of."""

    def __init__(self, binary, fixture, node, peers, folder, log):
        self.binary, self.fixture, self.node, self.folder, self.log = binary, fixture, node, folder, log
        self.suite = peers / "node_modules/@modelcontextprotocol/conformance/dist/index.js"

    def run(self, name, version, scenario=None):
        """The rows of one run: a scenario, how many of its checks passed, and which failed why."""
        folder = self.folder / f"{name}-{version}"
        folder.mkdir()
        if name == "client":
            # The suite would start all of them at once, and take the machine's slowness for toolway's.
            one = lambda scenario: self.judge(folder, version, scenario, "client", "--command", str(PARTS / "client"))
            with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                list(pool.map(one, self.scenarios(name, version, scenario)))
        elif name in DIRECT:
            with_fixture = Process("fixture", [self.fixture, "http"], folder)
            try:
                self.judge(folder, version, scenario, "server", "--url", with_fixture.address())
            finally:
                with_fixture.end()
        else:
            self.behind(folder, version, scenario, *RUNS[name])
        return {"run": name, "version": version, "rows": rows(folder / "results", self.scenarios(name, version, scenario))}

    def behind(self, folder, version, scenario, transport, era):
        """The suite against the gateway, with the fixture behind it."""
        processes = []
        try:
            where = f"command = {json.dumps(str(self.fixture))}\nargs = [\"stdio\", \"{era}\"]"
            if transport == "http":
                processes.append(Process("fixture", [self.fixture, "http", era], folder))
                where = f'url = "{processes[0].address()}"'
            config = folder / "toolway.toml"
            config.write_text(f'[servers.fixture]\n{where}\n\n[profiles.fixture]\nserver = "fixture"\n')
            gateway = Process("gateway", [self.binary, "serve", "--config", config, "--bind", "127.0.0.1:0", "--data-dir", folder / "data"], folder)
            processes.append(gateway)
            url = gateway.address()
            until(lambda: is_ready(url), "the fixture is ready behind the gateway", 30)
            self.judge(folder, version, scenario, "server", "--url", f"{url}/mcp/fixture")
        finally:
            for process in reversed(processes):
                process.end()

    def judge(self, folder, version, scenario, *what):
        """Runs the suite; its own verdict is not asked for, because ours knows of expected failures one by one."""
        which = ["--scenario", scenario] if scenario else ["--suite", "all"]
        command = [self.node, self.suite, *what, *which, "--spec-version", version, "-o", folder / "results"]
        env = {**os.environ, "CONFORMANCE_TOOLWAY": str(self.binary), "NODE_NO_WARNINGS": "1"}
        with (folder / "suite.log").open("ab") as log:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, timeout=LONGEST)

    def scenarios(self, name, version, scenario):
        """What the suite says it has for the version, so that none goes missing unseen."""
        if scenario:
            return [scenario]
        side = "--client" if name == "client" else "--server"
        command = [self.node, self.suite, "list", side, "--spec-version", version]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return re.findall(r"^ +- (\S+)", listed, re.MULTILINE)


def is_ready(url):
    with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
        return all(server["state"] == "ready" for server in json.load(response)["servers"])


def rows(folder, scenarios):
    """What the suite wrote down of every scenario, in the suite's order."""
    found = {}
    for path in folder.rglob("checks.json"):
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", str(path.parent.relative_to(folder)))
        found[name] = json.loads(path.read_text())
    return [row(name, found.get(name, found.get(f"server-{name}"))) for name in scenarios]


def row(scenario, checks):
    if checks is None:
        failure = {"check": "ran", "why": "the suite has no result of this scenario"}
        return {"scenario": scenario, "passed": 0, "failures": [failure]}
    failures = [
        {"check": check["id"], "why": f"{check['status'].lower()}: {why(check)}"}
        for check in checks
        if check["status"] in ("FAILURE", "WARNING")
    ]
    passed = sum(check["status"] == "SUCCESS" for check in checks)
    return {"scenario": scenario, "passed": passed, "failures": failures}


def why(check):
    return check.get("errorMessage") or (check.get("details") or {}).get("message") or check.get("description", "")
