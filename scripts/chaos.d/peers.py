"""What stands behind the gateway in the trials: a scripted model and an MCP server, both in this process.

The model answers `add N` by calling the tool whose name ends with `add`, and then with the sum as text; `pay N` by
calling the tool whose name ends with `run` and the client's `confirm`, and then says whether it sees both results;
`talk` is a stream without an end. The MCP server counts how often each call ran.
"""

import asyncio
import json
from collections import Counter

TOOLS = [
    {"name": "add", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
    {
        "name": "run",
        "description": "Runs, counts the run, and answers with this HTTP status all the same.",
        "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}, "status": {"type": "integer"}}},
    },
    {"name": "dense", "inputSchema": {"type": "object", "properties": {"bytes": {"type": "integer"}}}},
]


async def read_request(reader):
    """Method, path and body of one request; `None` where the connection ended."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    start, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = start.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return method, path, await reader.readexactly(int(headers.get("content-length", 0)))


def answer(status, body, kind="application/json"):
    """A whole HTTP answer."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Peer:
    """A server on a free port of this machine; `answer` of a subclass writes what it says."""

    def __init__(self):
        self.open = 0  # Requests that are being answered.

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1 << 20, backlog=4096)
        self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def serve(self, reader, writer):
        try:
            while request := await read_request(reader):
                self.open += 1
                try:
                    await self.answer(writer, *request)
                    await writer.drain()
                finally:
                    self.open -= 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The other side is gone, or the trial has ended.
        finally:
            writer.close()


class Model(Peer):
    """An OpenAI-compatible model."""

    async def answer(self, writer, method, path, body):
        if method != "POST":
            writer.write(answer(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]}))
            return
        request = json.loads(body)
        last = request["messages"][-1]
        content = last["content"]
        if last["role"] == "tool" and request["messages"][0]["content"].startswith("pay "):
            results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
            message = {"role": "assistant", "content": f"results: {', '.join(results)}"}
        elif last["role"] == "tool":
            message = {"role": "assistant", "content": f"sum {content}"}
        elif content.startswith("add "):
            number = int(content.split()[1])
            calls = [call(f"call_{number}", offered(request, "add"), {"a": number, "b": number})]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        elif content.startswith("pay "):
            # The ids of all conversations are the same, as with models that count them.
            run = call("call_1", offered(request, "run"), {"key": content, "status": 200})
            calls = [run, call("call_2", "confirm", {"what": content})]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        else:
            message = {"role": "assistant", "content": f"heard {content}"}
        if request.get("stream"):
            await self.stream(writer, message, endless=content == "talk")
        else:
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "message": message, "finish_reason": finish}
            writer.write(answer(200, {"id": "c", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}))

    async def stream(self, writer, message, endless):
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

        def event(delta, finish=None):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]}
            data = f"data: {json.dumps(chunk)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        event({"role": "assistant", "content": ""})
        while endless:
            event({"content": "word " * 20})
            await writer.drain()
            await asyncio.sleep(0.05)
        calls = message.get("tool_calls", [])
        for index, it in enumerate(calls):
            event({"tool_calls": [{"index": index, **it}]})
        if not calls:
            event({"content": message["content"]})
        event({}, "tool_calls" if calls else "stop")
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def offered(request, name):
    """The name under which a tool is offered."""
    return next(t["function"]["name"] for t in request.get("tools", []) if t["function"]["name"].endswith(name))


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


class Tools(Peer):
    """An MCP server over Streamable HTTP, without sessions."""

    def __init__(self):
        super().__init__()
        self.runs = Counter()  # How often the call with each key ran.

    async def answer(self, writer, method, path, body):
        if method != "POST":
            writer.write(answer(405, b""))
            return
        message = json.loads(body)
        if "id" not in message:
            writer.write(answer(202, b""))
            return
        status, outcome = self.outcome(message["method"], message.get("params", {}))
        writer.write(answer(status, outcome if status != 200 else {"jsonrpc": "2.0", "id": message["id"], **outcome}))

    def outcome(self, method, params):
        if method == "initialize":
            info = {"name": "chaos", "version": "1"}
            return 200, {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
        if method == "tools/list":
            return 200, {"result": {"tools": TOOLS}}
        if method != "tools/call":
            return 200, {"error": {"code": -32601, "message": "no such method"}}
        arguments = params.get("arguments", {})
        if params["name"] == "add":
            return 200, text(str(arguments["a"] + arguments["b"]))
        if params["name"] == "dense":
            return 200, {"result": {"content": [], "structuredContent": {"list": [{}] * (arguments["bytes"] // 4)}}}
        self.runs[arguments["key"]] += 1
        return arguments["status"], text("ran")


def text(said):
    return {"result": {"content": [{"type": "text", "text": said}]}}


class LateModel(Model):
    """A model whose connections carry bytes that belong to no answer, some time after each answer."""

    def __init__(self, pause):
        super().__init__()
        self.pause = pause  # Seconds until the bytes come; called for each answer.

    async def answer(self, writer, method, path, body):
        await super().answer(writer, method, path, body)
        stray = {"role": "assistant", "content": "stray"}
        choice = {"index": 0, "message": stray, "finish_reason": "stop"}
        late = answer(200, {"id": "c", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]})
        asyncio.get_running_loop().call_later(self.pause(), writer.write, late)
