"""A model that speaks chat completions, and shortens conversations at `/v1/responses/compact`.

It calls a function `get_weather` where it is offered one, and refuses what a strict upstream refuses: a tool's answer
without the call.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
COMPACTED = {
    "id": "resp_compacted",
    "object": "response.compaction",
    "created_at": 1,
    "output": [{"id": "cmp_1", "type": "compaction", "encrypted_content": "short"}],
    "usage": {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    },
}


def serve():
    """A server on a free port of loopback."""
    return ThreadingHTTPServer(("127.0.0.1", 0), Model)


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/v1/models"):
            return self.answer(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
        self.refuse(404, "nothing is here")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/responses/compact":
            return self.answer(200, COMPACTED)
        if self.path != "/v1/chat/completions":
            return self.refuse(404, "nothing is here")
        calls = {call["id"] for message in body["messages"] for call in message.get("tool_calls") or []}
        told = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        if not calls.issuperset(told):
            return self.refuse(400, "a tool message has no call")
        offered = [tool["function"]["name"] for tool in body.get("tools") or []]
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location":"x"}'}}
        calls = [call] if "get_weather" in offered and not told else []
        text = None if calls else "Here you are."
        finish = "tool_calls" if calls else "stop"
        head = {"id": "c", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return self.answer(200, head | {"object": "chat.completion", "choices": [choice], "usage": USAGE})
        deltas = [{"content": word + " "} for word in (text or "").split()]
        deltas += [{"tool_calls": [{"index": 0} | call]} for call in calls]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices += [[{"index": 0, "delta": {}, "finish_reason": finish}]]
        chunks = [head | {"object": "chat.completion.chunk", "choices": choice} for choice in choices]
        chunks += [head | {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}]
        stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send(200, "text/event-stream", stream)

    def refuse(self, status, message):
        self.answer(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})

    def answer(self, status, body):
        self.send(status, "application/json", json.dumps(body))

    def send(self, status, kind, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
