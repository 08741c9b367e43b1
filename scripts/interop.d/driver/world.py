"""Everything that runs during the checks: the scripted model, the HTTP peers and the gateway between them."""

import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from driver.processes import Process, until
from servers.webhook import DEFINITIONS

PARTS = Path(__file__).resolve().parent.parent

# What `/health` must say of each server: its transport and the version of MCP that it is spoken to with.
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
EXPECTED = {
    "everything": ("stdio", HANDSHAKE),
    "everything_http": ("http", HANDSHAKE),
    "everything_sse": ("sse", None),
    "filesystem": ("stdio", HANDSHAKE),
    "time": ("stdio", MODERN),
    "modern": ("stdio", MODERN),
    "fragile": ("stdio", MODERN),
}


class World:
    """Started in order; ended in reverse, each process by its own id."""

    def __init__(self, binary, clients, servers, npm, peers, node, folder):
        self.binary, self.clients, self.servers, self.npm, self.folder = binary, clients, servers, npm, folder
        self.peers, self.node = peers, node
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        self.signs, self.files = folder / "signs", folder / "files"
        self.processes = []

    def start(self):
        self.signs.mkdir()
        self.files.mkdir()
        self.model = self.run("model", [sys.executable, PARTS / "model.py"])
        self.webhook = self.run("webhook", [sys.executable, PARTS / "servers/webhook.py"])
        self.http = self.run_everything("everything_http", "streamableHttp")
        self.sse = self.run_everything("everything_sse", "sse")
        self.model_url = self.model.address()
        config = self.folder / "toolway.toml"
        config.write_text(self.config())
        (self.folder / "mcp.toml").write_text(self.small_config())
        self.gateway = self.run("gateway", [self.binary, "serve", "--config", config, "--bind", "127.0.0.1:0", "--data-dir", self.folder / "data"])
        self.url = self.gateway.address()

    def run(self, name, command, **env):
        process = Process(name, command, self.folder, env)
        self.processes.append(process)
        return process

    def run_everything(self, name, transport):
        script = self.npm / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
        return self.run(name, ["node", "--require", PARTS / "servers/loopback.cjs", script, transport], PORT="0")

    def end(self):
        for process in reversed(self.processes):
            process.end()

    # ---- The gateway's configuration ----

    def config(self):
        """One upstream and seven servers: every transport, both eras, npm and Python, one behind `npx`."""
        python, modules = self.servers / "bin/python", self.npm / "node_modules/@modelcontextprotocol"
        own = PARTS / "servers/modern.py"
        npx = ["--no-install", "--prefix", self.npm, "mcp-server-everything", "stdio"]
        return "\n".join(
            [
                '[loop]\nkeepalive = "50ms"\n',  # So that every client meets comments in the middle of a stream.
                f'[[upstreams]]\nname = "scripted"\nbase_url = "{self.model_url}/v1"\n',
                self.child("everything", shutil.which("npx"), *npx),
                f'[servers.everything_http]\nurl = "{self.http.address()}/mcp"\n',
                f'[servers.everything_sse]\nurl = "{self.sse.address()}/sse"\n',
                self.child("filesystem", shutil.which("node"), modules / "server-filesystem/dist/index.js", self.files),
                self.child("time", self.servers / "bin/mcp-server-time", "--local-timezone", "UTC"),
                self.child("modern", python, own),
                self.child("fragile", python, own, "fragile"),
                self.functions(),
            ]
        )

    def small_config(self):
        """What MCP clients start for themselves: one server and the functions."""
        own = PARTS / "servers/modern.py"
        # The Inspector lists once, and a Python server may take longer to start than a list waits by default.
        return 'start_wait = "30s"\n' + self.child("modern", self.servers / "bin/python", own) + self.functions()

    def functions(self):
        definitions = self.folder / "functions.json"
        definitions.write_text(json.dumps(DEFINITIONS))
        endpoint = f"{self.webhook.address()}/tool_calls"
        return f"[functions.desk]\ndefinitions = {json.dumps(str(definitions))}\nendpoint = {json.dumps(endpoint)}\n"

    def child(self, name, command, *args):
        quoted = [json.dumps(str(arg)) for arg in args]
        env = f'env = {{ INTEROP_MARK = "{self.mark}", INTEROP_SIGNS = {json.dumps(str(self.signs))} }}'
        return f"[servers.{name}]\ncommand = {json.dumps(str(command))}\nargs = [{', '.join(quoted)}]\n{env}\n"

    # ---- Talking to it ----

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return json.load(response)

    def health(self):
        """What `/health` says of each server, by name."""
        return {entry.get("name") or entry["server"]: entry for entry in self.get("/health")["servers"]}

    def until_ready(self, names=EXPECTED, seconds=60):
        def not_ready():
            health = self.health()
            return {name: health[name] for name in names if health[name]["state"] != "ready"}

        try:
            until(lambda: not not_ready(), "every server is ready", seconds)
        except TimeoutError as failure:
            raise TimeoutError(f"{failure}; these are not: {not_ready()}") from None

    def chat(self, text, **headers):
        """The answer to one user message, plain, as text."""
        body = {"model": "scripted-1", "messages": [{"role": "user", "content": text}]}
        headers = {"content-type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{error.code}: {error.read().decode(errors='replace')[:500]}") from None
