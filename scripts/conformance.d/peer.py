"""A small MCP client over pipes, of either era, that answers whatever a server wants to know. Standard library only."""

import json
import queue
import subprocess
import threading
import time

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
CLIENT = {"name": "toolway-conformance", "version": "1.0.0"}
CAPABILITIES = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


class Refused(Exception):
    """The server answered with an error."""


class Peer:
    """One connection; requests are made one after another."""

    def __init__(self, command, version, errors, seconds=20):
        self.modern, self.version = version >= MODERN, version
        self.deadline = time.monotonic() + seconds
        self.lines, self.last_id = queue.Queue(), 0
        self.child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        threading.Thread(target=self.read, daemon=True).start()

    def __enter__(self):
        if self.modern:
            self.server = self.request("server/discover")
        else:
            params = {"protocolVersion": self.version, "capabilities": CAPABILITIES, "clientInfo": CLIENT}
            self.server = self.request("initialize", params)
            self.send({"method": "notifications/initialized"})
        return self

    def __exit__(self, *_):
        """A server over pipes ends when its input does."""
        self.child.stdin.close()
        try:
            self.child.wait(5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def read(self):
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def send(self, message):
        self.child.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.child.stdin.flush()

    def request(self, method, params=None):
        """The result, when every question on the way to it is answered."""
        params = dict(params or {})
        while True:
            result = self.round(method, params)
            if result.get("resultType") != "input_required":
                return result
            asked = result.get("inputRequests") or {}
            params["inputResponses"] = {key: answer(question) for key, question in asked.items()}
            params.pop("requestState", None)
            if "requestState" in result:
                params["requestState"] = result["requestState"]

    def round(self, method, params):
        self.last_id += 1
        if self.modern:
            meta = {"protocolVersion": self.version, "clientCapabilities": CAPABILITIES, "clientInfo": CLIENT}
            params = {**params, "_meta": {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}}
        self.send({"id": self.last_id, "method": method, "params": params})
        while True:
            line = self.lines.get(timeout=max(0.1, self.deadline - time.monotonic()))
            if line is None:
                raise Refused(f"the server ended before it answered {method}")
            message = json.loads(line)
            if "method" in message:
                if "id" in message:
                    self.send({"id": message["id"], "result": answer(message)})
            elif message.get("id") == self.last_id:
                if "error" in message:
                    raise Refused(f"{method}: {message['error']}")
                return message["result"]


def answer(question):
    """What a client says that fills in forms as they come, whose model knows one sentence, and that has one folder."""
    params = question.get("params") or {}
    if question["method"] == "elicitation/create":
        fields = (params.get("requestedSchema") or {}).get("properties") or {}
        return {"action": "accept", "content": {name: filled_in(schema) for name, schema in fields.items()}}
    if question["method"] == "sampling/createMessage":
        content = {"type": "text", "text": "This is what the model says."}
        return {"role": "assistant", "content": content, "model": "scripted-1", "stopReason": "endTurn"}
    if question["method"] == "roots/list":
        return {"roots": [{"uri": "file:///tmp", "name": "tmp"}]}
    return {}


def filled_in(schema):
    """The default of a field, or the first value that fits."""
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    return {"boolean": True, "integer": 1, "number": 1.5, "array": []}.get(schema.get("type"), "text")
