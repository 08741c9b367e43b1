"""A scripted model: an OpenAI-compatible server that does what the chat tells it to.

The last user message that holds `PLAN {json}` is the script (see README.md). The model answers its rounds one
after another, notes every request, and refuses what a strict upstream would refuse: calls without answers,
answers out of order, bad tool names, tool messages that are no text.

`python model.py` prints `model listens on http://127.0.0.1:PORT` and serves until it is ended.
"""

import hashlib
import json
import re
import select
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

MODELS = ["scripted-1", "scripted-2"]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
LONGEST_HANG = 20.0  # Seconds that a `hang` round waits for the client to go away.

NOTES = []  # What was asked, one dict per request, in order.
NOTES_LOCK = threading.Lock()


class Refused(Exception):
    """The request breaks the contract; the text says how."""


# ---- The script -----------------------------------------------------------------------------------------------------


def text_of(content):
    """A message's content as text, whether it came as a string, as parts or as nothing."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content or ""


# What a chat without a plan comes to: the snippets of the documents ask for the time.
TIME_IS_ASKED_FOR = "What time is it"
TELL_THE_TIME = [
    {"calls": [["time__get_current_time", {"timezone": "Europe/Berlin"}]]},
    {"text": ["It is ", "{results}"]},
]
SAY_HELLO = [{"text": ["Hello."]}]


def find_plan(messages):
    """The place of the message that holds the plan, and the plan; a chat without one asks for the time, or is answered
    with `Hello.`"""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        text = text_of(message.get("content"))
        if message.get("role") == "user" and "PLAN " in text:
            return place, json.JSONDecoder().raw_decode(text[text.index("PLAN ") + 5 :])[0]
        if message.get("role") == "user" and TIME_IS_ASKED_FOR in text:
            return place, {"tag": "", "rounds": TELL_THE_TIME}
    return len(messages), {"tag": "", "rounds": SAY_HELLO}


def round_of(messages, place):
    """How many turns with tool calls the model has made since the plan."""
    return sum(1 for m in messages[place + 1 :] if m.get("role") == "assistant" and m.get("tool_calls"))


def results_since(messages, place):
    """What the model has been told by tools since the plan: the name and the text of each, in order."""
    names, results = {}, []
    for message in messages[place + 1 :]:
        for call in message.get("tool_calls") or []:
            names[call["id"]] = call["function"]["name"]
        if message.get("role") == "tool":
            results.append({"name": names[message["tool_call_id"]], "content": text_of(message["content"])})
    return results


def make_calls(wanted, offered, seed):
    """The tool calls of a round. Names are matched against the ends of the offered ones; arguments may be any text."""
    calls = []
    for index, (name, arguments) in enumerate(wanted):
        matches = [o for o in offered if o == name] or [o for o in offered if o.endswith(name)]
        if len(matches) > 1:
            raise Refused(f"the plan's `{name}` fits several offered tools: {matches}")
        digest = hashlib.sha256(f"{seed}/{index}".encode()).hexdigest()
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = {"name": matches[0] if matches else name, "arguments": text}
        calls.append({"id": "call" + digest[:9], "type": "function", "function": function})
    return calls


# ---- What a strict upstream checks ----------------------------------------------------------------------------------


def check_messages(messages):
    """Each call is answered once, at once and in order, and each answer is text that belongs to a call."""
    waiting = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            check_answer(place, message, waiting)
            continue
        if waiting:
            raise Refused(f"messages[{place}]: tool calls {waiting} have no answer before this `{role}` message")
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or []]
            for call in message.get("tool_calls") or []:
                if not isinstance(call["function"]["arguments"], str):
                    raise Refused(f"messages[{place}]: arguments are no string")
    if waiting:
        raise Refused(f"tool calls {waiting} have no answer at the end of the chat")


def check_answer(place, message, waiting):
    if not waiting or message.get("tool_call_id") != waiting[0]:
        raise Refused(f"messages[{place}]: answers {message.get('tool_call_id')}, but these wait in order: {waiting}")
    waiting.pop(0)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        raise Refused(f"messages[{place}]: a tool message is text only")


def check_tools(tools):
    names = [tool["function"]["name"] for tool in tools]
    if len(names) > 128:
        raise Refused(f"{len(names)} tools; 128 is the most")
    if len(set(names)) != len(names):
        raise Refused("two tools have one name")
    for tool in tools:
        name, parameters = tool["function"]["name"], tool["function"].get("parameters")
        if tool.get("type") != "function":
            raise Refused(f"tool `{name}` has the type {tool.get('type')}")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
            raise Refused(f"`{name}` is no tool name")
        if parameters is not None and (parameters.get("type") != "object" or "properties" not in parameters):
            raise Refused(f"`{name}`: the schema is no object with properties")


# ---- HTTP -----------------------------------------------------------------------------------------------------------


class Model(BaseHTTPRequestHandler):
    """One connection of the scripted model."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/v1/models":
            self.send_json(200, {"object": "list", "data": [model_card(name) for name in MODELS]})
        elif url.path.removeprefix("/v1/models/") in MODELS:
            self.send_json(200, model_card(url.path.removeprefix("/v1/models/")))
        elif url.path == "/seen":
            tag = parse_qs(url.query).get("tag", [""])[0]
            with NOTES_LOCK:
                self.send_json(200, [note for note in NOTES if note["tag"].startswith(tag)])
        else:
            self.send_error_json(404, f"nothing is at {url.path}", "not_found")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            request = json.loads(body)
        except ValueError:
            return self.send_error_json(400, "the body is no JSON", "invalid_json")
        if self.path == "/v1/chat/completions":
            self.chat(request)
        elif self.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
            self.send_json(200, {"object": "list", "model": request["model"], "data": data, "usage": USAGE})
        else:
            self.send_error_json(404, f"nothing is at {self.path}", "not_found")

    def chat(self, request):
        messages, tools = request["messages"], request.get("tools") or []
        place, plan = find_plan(messages)
        number = round_of(messages, place)
        offered = [tool["function"]["name"] for tool in tools if tool.get("type") == "function"]
        note = {
            "tag": plan["tag"],
            "round": number,
            "stream": bool(request.get("stream")),
            "tools": offered,
            "tool_choice": request.get("tool_choice"),
            "messages": messages,
            "authorization": self.headers.get("authorization"),
            "ended": "running",
        }
        with NOTES_LOCK:
            NOTES.append(note)
        try:
            check_messages(messages)
            check_tools(tools)
            script = plan["rounds"][number] if number < len(plan["rounds"]) else {"text": ["The plan is over."]}
            script = dict(script)
            script["calls"] = make_calls(script.get("calls", []), offered, f"{plan['tag']}/{place}/{number}")
        except (Refused, KeyError, TypeError) as refused:
            note["ended"] = f"refused: {refused!r}"
            return self.send_error_json(400, f"scripted model: {refused}", "scripted_model_refuses")
        quoted = json.dumps(results_since(messages, place))
        script["text"] = [delta.replace("{results}", quoted) for delta in script.get("text", [])]
        self.answer(request, script, note)

    def answer(self, request, script, note):
        try:
            if "status" in script:
                self.send_failure(script)
            elif request.get("stream"):
                self.stream(request, script, note)
            elif script.get("hang"):
                self.hang(note)
            else:
                self.send_json(200, completion(request, script))
        except OSError:
            note["ended"] = "the client went away"
        if note["ended"] == "running":
            note["ended"] = "done"

    def stream(self, request, script, note):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in chunks(request, script):
            self.send_event(json.dumps(chunk))
        if script.get("hang"):
            return self.hang(note)
        if "stream_error" in script:
            self.send_event(json.dumps({"error": script["stream_error"]}))
        else:
            finish = "tool_calls" if script["calls"] else "stop"
            self.send_event(json.dumps(chunk_of(request, [choice({}, finish)])))
            if (request.get("stream_options") or {}).get("include_usage"):
                self.send_event(json.dumps(chunk_of(request, []) | {"usage": USAGE}))
        self.send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def hang(self, note):
        """Says nothing more until the other side closes the connection."""
        readable, _, _ = select.select([self.connection], [], [], LONGEST_HANG)
        self.close_connection = True
        gone = readable and self.connection.recv(1, socket.MSG_PEEK) == b""
        note["ended"] = "the client went away" if gone else "nobody hung up"
        note["ended_at"] = time.time()

    def send_event(self, data):
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def send_failure(self, script):
        body = script.get("body", "")
        html = isinstance(body, str)
        raw = body.encode() if html else json.dumps(body).encode()
        self.send_bytes(script["status"], raw, "text/html" if html else "application/json", script.get("headers", {}))

    def send_json(self, status, value):
        self.send_bytes(status, json.dumps(value).encode(), "application/json", {})

    def send_error_json(self, status, message, code):
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        self.send_json(status, {"error": error})

    def send_bytes(self, status, raw, kind, headers):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
        self.wfile.flush()


# ---- Shapes ---------------------------------------------------------------------------------------------------------


def model_card(name):
    return {"id": name, "object": "model", "created": 1750000000, "owned_by": "interop"}


def completion(request, script):
    """A whole answer: what a request without `stream` gets."""
    message = {"role": "assistant", "content": "".join(script["text"]) or None, "refusal": None}
    if script["calls"]:
        message["tool_calls"] = script["calls"]
    finish = "tool_calls" if script["calls"] else "stop"
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1750000000,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": USAGE,
    }


def choice(delta, finish=None):
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def chunk_of(request, choices):
    shape = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1750000000}
    return shape | {"model": request["model"], "choices": choices}


def chunks(request, script):
    """The role, the text and the calls of a streamed answer; arguments come in two pieces, as they really do."""
    yield chunk_of(request, [choice({"role": "assistant", "content": "", "refusal": None})])
    for delta in script["text"]:
        yield chunk_of(request, [choice({"content": delta})])
    for index, call in enumerate(script["calls"]):
        arguments = call["function"]["arguments"]
        first = call | {"index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield chunk_of(request, [choice({"tool_calls": [first]})])
        middle = len(arguments) // 2
        for piece in (arguments[:middle], arguments[middle:]):
            yield chunk_of(request, [choice({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})])


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    print(f"model listens on http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
