"""The gateway under trial, started as a process, and clients that are as plain as can be."""

import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path


class Gateway:
    """One `toolway serve`, or another subcommand; ended by its own id."""

    def __init__(self, binary, config, command=("serve", "--bind", "127.0.0.1:0"), read_log=True, files=None, data=None):
        self.binary, self.command, self.read_log, self.files = binary, command, read_log, files
        self.folder = Path(tempfile.mkdtemp(prefix="toolway-chaos-"))
        self.data = data or self.folder / "data"
        self.config = self.folder / "toolway.toml"
        self.config.write_text(config)

    async def __aenter__(self):
        self.log = open(self.folder / "log", "wb")
        self.process = await asyncio.create_subprocess_exec(
            self.binary, self.command[0], "--config", self.config, *self.command[1:],
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
            stderr=self.log if self.read_log else self.unread(), preexec_fn=self.limit_files, cwd=self.folder,
            env={**os.environ, "TOOLWAY_DATA_DIR": str(self.data)},
        )  # fmt: skip
        if self.command[0] == "serve":
            line = (await asyncio.wait_for(self.process.stdout.readline(), 20)).decode()
            self.url = line.split()[-1]
            self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def unread(self):
        """A pipe of which nobody reads; kept open, so that writing to it blocks and does not fail."""
        self.pipe = os.pipe()
        return self.pipe[1]

    def limit_files(self):
        if self.files:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, hard))

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self.log.close()

    def signal(self, number):
        self.process.send_signal(number)

    async def ended(self, seconds):
        """Seconds until the process has ended; `None` if it has not in time."""
        begun = time.monotonic()
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except asyncio.TimeoutError:
            return None
        return time.monotonic() - begun

    def peak(self):
        """Most memory that was resident so far, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) >> 10

    async def until_ready(self, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _, body = await self.request("GET", "/health")
            if all(server["state"] == "ready" for server in json.loads(body)["servers"]):
                return self
            await asyncio.sleep(0.05)
        raise TimeoutError("the servers are not ready")

    # ---- Requests, each on a connection of its own ----

    async def request(self, method, path, body=b"", **headers):
        """Status and body of one request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            lines = {"host": "127.0.0.1", "content-length": len(body), "connection": "close"}
            lines |= {"content-type": "application/json"} if body else {}
            lines |= {name.replace("_", "-"): value for name, value in headers.items()}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            try:
                await writer.drain()
            except ConnectionError:
                pass  # It may have been refused before it was read to its end.
            return read_answer(await reader.read())
        finally:
            writer.close()

    async def chat(self, said, stream=False):
        body = {"model": "scripted", "stream": stream, "messages": [{"role": "user", "content": said}]}
        return await self.request("POST", "/v1/chat/completions", json.dumps(body).encode())

    async def adds(self, number, stream=False):
        """One tool loop came to the right end."""
        try:
            status, body = await asyncio.wait_for(self.chat(f"add {number}", stream), 20)
        except (OSError, asyncio.TimeoutError, ValueError):
            return False
        return status == 200 and f"sum {2 * number}".encode() in body and (not stream or body.endswith(b"data: [DONE]\n\n"))

    async def first_half(self, number, stream):
        """The history of `pay NUMBER` as a client holds it that has run its own call; `None` if the answer broke."""
        history = [{"role": "user", "content": f"pay {number}"}]
        body = {"model": "scripted", "stream": stream, "messages": history, "tools": [CONFIRM]}
        try:
            status, answer = await self.request("POST", "/v1/chat/completions", json.dumps(body).encode())
            if stream and not answer.endswith(b"data: [DONE]\n\n"):
                return None
            events = [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")] if stream else [json.loads(answer)]
        except (OSError, ValueError):
            return None
        choices = [choice for event in events for choice in event.get("choices", [])]
        said = [choice["delta" if stream else "message"] for choice in choices]
        calls = [call for delta in said for call in delta.get("tool_calls", [])]
        if status != 200 or len(calls) != 1:
            return None
        call = {name: value for name, value in calls[0].items() if name != "index"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"confirmed {number}"}
        return [*history, {"role": "assistant", "content": None, "tool_calls": [call]}, result]

    async def second_half(self, history):
        """What the model says of the results that it sees."""
        body = {"model": "scripted", "messages": history, "tools": [CONFIRM]}
        _, answer = await self.request("POST", "/v1/chat/completions", json.dumps(body).encode())
        return json.loads(answer)["choices"][0]["message"]["content"]

    async def loops(self, total, side_by_side=16):
        """So many loops, half of them streamed: how many were right."""
        numbers, right = iter(range(total)), 0

        async def lane():
            nonlocal right
            for number in numbers:
                is_right = await self.adds(number, stream=number % 2 == 1)
                right += is_right

        await asyncio.gather(*(lane() for _ in range(side_by_side)))
        return right

    async def call(self, name, arguments):
        """`tools/call` of an MCP client: the message that answers it."""
        params = {"name": name, "arguments": arguments, "_meta": STATELESS}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"accept": "application/json, text/event-stream", "mcp_protocol_version": "2026-07-28"}
        headers |= {"mcp_method": "tools/call", "mcp_name": name}
        _, body = await self.request("POST", "/mcp", json.dumps(message).encode(), **headers)
        return body


CONFIRM = {"type": "function", "function": {"name": "confirm", "parameters": {"type": "object"}}}

STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "chaos", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def read_answer(raw):
    """Status and body of a whole HTTP answer; a body in chunks may be cut off."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if not head:
        raise ConnectionError("no answer")
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" in head.lower():
        rest, body = body, b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            body, rest = body + rest[:length], rest[length + 2 :]
    return status, body


class Watch:
    """Asks `/health` all the while; `slowest` is the longest wait for an answer, in seconds."""

    def __init__(self, gateway):
        self.gateway, self.slowest = gateway, 0.0

    async def __aenter__(self):
        self.task = asyncio.create_task(self.ask())
        return self

    async def ask(self):
        while True:
            begun = time.monotonic()
            try:
                await asyncio.wait_for(self.gateway.request("GET", "/health"), 60)
            except (OSError, asyncio.TimeoutError):
                pass
            self.slowest = max(self.slowest, time.monotonic() - begun)
            await asyncio.sleep(0.02)

    async def __aexit__(self, *_):
        begun = time.monotonic()
        await asyncio.sleep(0)
        self.task.cancel()
        self.slowest = max(self.slowest, time.monotonic() - begun)

