"""openai-python against the gateway: plain, streamed, and through the `.stream()` helper."""

import asyncio
import json
import os
import time
from pathlib import Path

import openai
from checks import check, equal, run_all, until
from plans import FINAL, call, plan, results, round_of, seen
from pydantic import BaseModel
from scenarios import Answer, Peer, register

BASE = os.environ["INTEROP_GATEWAY"] + "/v1"
SIGNS = Path(os.environ["INTEROP_SIGNS"])
MODEL = "scripted-1"
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks something up on the client's side.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def client(**settings):
    return openai.OpenAI(base_url=BASE, api_key="sk-interop", timeout=30, **settings)


def ask_plainly(text, own_client=None, **more):
    messages = [{"role": "user", "content": text}]
    return (own_client or client()).chat.completions.create(model=MODEL, messages=messages, **more)


def answer_of(message, finish, usage):
    calls = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]
    sent_back = message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
    return Answer(message.content or "", finish, sent_back, calls, usage.total_tokens if usage else None)


class Plain(Peer):
    name = "plain"

    def ask(self, messages, own=False):
        tools = {"tools": [LOOKUP]} if own else {}
        completion = client().chat.completions.create(model=MODEL, messages=messages, **tools)
        return answer_of(completion.choices[0].message, completion.choices[0].finish_reason, completion.usage)


class Streamed(Peer):
    """Reads the chunks by hand and holds them to the contract: one id, one role, one finish_reason, one usage."""

    name = "streamed"

    def ask(self, messages, own=False):
        tools = {"tools": [LOOKUP]} if own else {}
        stream = client().chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, **tools
        )
        chunks = list(stream)
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        equal(len({chunk.id for chunk in chunks}), 1, "ids of the stream")
        equal(len({(chunk.created, chunk.model) for chunk in chunks}), 1, "created and model of the stream")
        equal([delta.role for delta in deltas if delta.role], ["assistant"], "roles of the stream")
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        equal(len(finishes), 1, "finish reasons of the stream")
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        equal(len(usages), 1, "usage chunks of the stream")
        equal(chunks[-1].choices, [], "choices of the usage chunk, which is the last")
        return self.assemble(deltas, finishes[0], usages[0])

    def assemble(self, deltas, finish, usage):
        text = "".join(delta.content or "" for delta in deltas)
        calls = {}
        for piece in [piece for delta in deltas for piece in delta.tool_calls or []]:
            call = calls.setdefault(piece.index, {"type": "function", "function": {"name": "", "arguments": ""}})
            if piece.id:
                assert "id" not in call, "the id of a call came twice"
                call["id"] = piece.id
            call["function"]["name"] += piece.function.name or ""
            call["function"]["arguments"] += piece.function.arguments or ""
        equal(sorted(calls), list(range(len(calls))), "indexes of the calls")
        message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = list(calls.values())
        shown = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls.values()]
        return Answer(text, finish, message, shown, usage.total_tokens)


class Helper(Peer):
    name = ".stream()"

    def ask(self, messages, own=False):
        tools = {"tools": [LOOKUP]} if own else {}
        options = {"include_usage": True}
        with client().chat.completions.stream(model=MODEL, messages=messages, stream_options=options, **tools) as stream:
            completion = stream.get_final_completion()
        return answer_of(completion.choices[0].message, completion.choices[0].finish_reason, completion.usage)


register(Plain(), streamed=False)
register(Streamed(), streamed=True)
register(Helper(), streamed=True)


# ---- Text as it comes -----------------------------------------------------------------------------------------------


@check("streamed: text of a round arrives before its tools have run")
def text_comes_first():
    sign = f"first-{os.getpid()}"
    _, text = plan(round_of("Wait. ", calls=[call("modern__slow", sign=sign, seconds=1)]), FINAL)
    for chunk in ask_plainly(text, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            equal(chunk.choices[0].delta.content, "Wait. ", "first text")
            assert not (SIGNS / f"{sign}.finished").exists(), "the text was held back until the tool had run"
            break


def notes(form):
    """What a streaming client is told about a slow tool, in one form of progress: the extra fields of the chunks."""
    sign = f"told-{os.getpid()}-{form}"
    _, text = plan(round_of(calls=[call("modern__slow", sign=sign, seconds=0.5)]), FINAL)
    chunks = list(ask_plainly(text, client(default_headers={"X-Toolway-Progress": form}), stream=True))
    whole = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    equal(results(whole), [("modern__slow", f"{sign} is finished")], "results")
    return [chunk.model_extra for chunk in chunks if not chunk.choices and not chunk.usage]


@check("X-Toolway-Progress: on tells of a running tool")
def progress():
    told = [note["toolway"] for note in notes("on")]
    kinds = [note["type"] for note in told]
    equal((kinds[0], kinds[-1]), ("call_started", "call_finished"), "first and last note")
    assert set(kinds[1:-1]) == {"call_progress"}, kinds
    assert any(note.get("message", "").startswith("step ") for note in told), told


@check("X-Toolway-Progress: open-webui tells it in Open WebUI's way")
def progress_for_open_webui():
    told = [note["event"] for note in notes("open-webui")]
    equal({event["type"] for event in told}, {"status"}, "types of the events")
    equal([event["data"]["done"] for event in told][-1], True, "the last is done")


@check("X-Toolway-Progress: on lists the calls in a plain answer, in their order")
def calls_listed():
    slow = call("modern__slow", sign=f"listed-{os.getpid()}", seconds=0.3)
    _, text = plan(round_of(calls=[slow, call("modern__upper", text="a")]), FINAL)
    completion = ask_plainly(text, client(default_headers={"X-Toolway-Progress": "on"}))
    listed = completion.model_extra["toolway"]["calls"]
    equal([c["name"] for c in listed], ["modern__slow", "modern__upper"], "calls that were run")


# ---- Parsed answers -------------------------------------------------------------------------------------------------


class Parsed(BaseModel):
    value: str


@check("chat.completions.parse: a parsed answer after tools of the gateway")
def parsed():
    _, text = plan(round_of(calls=[call("modern__upper", text="a")]), round_of('{"value": "A"}'))
    messages = [{"role": "user", "content": text}]
    completion = client().chat.completions.parse(model=MODEL, messages=messages, response_format=Parsed)
    equal(completion.choices[0].message.parsed, Parsed(value="A"), "what was parsed")


# ---- Choosing tools -------------------------------------------------------------------------------------------------


def offered(**settings):
    """The tools the model was offered for a chat with these client settings or request fields."""
    tag, text = plan(round_of("Hello."))
    ask_plainly(text, client(default_headers=settings.get("headers")), **settings.get("fields", {}))
    return seen(tag)[0]["tools"]


@check("X-Toolway-Tools narrows the tools")
def narrowed_by_tool():
    names = offered(headers={"X-Toolway-Tools": "modern__*"})
    assert names and all(name.startswith("modern__") for name in names), names


@check("X-Toolway-Servers narrows the tools")
def narrowed_by_server():
    equal(sorted(offered(headers={"X-Toolway-Servers": "time"})), ["time__convert_time", "time__get_current_time"], "tools")


@check("an `mcp` entry in `tools` narrows the tools beside the client's own")
def narrowed_by_body():
    mcp = {"type": "mcp", "server_label": "modern", "allowed_tools": ["upper", "add"]}
    equal(sorted(offered(fields={"tools": [LOOKUP, mcp]})), ["lookup", "modern__add", "modern__upper"], "tools")


@check("a forced tool_choice holds for the first round only")
def forced():
    tag, text = plan(round_of(calls=[call("modern__upper", text="a")]), FINAL)
    choice = {"type": "function", "function": {"name": "modern__upper"}}
    completion = ask_plainly(text, tool_choice=choice)
    equal(results(completion.choices[0].message.content), [("modern__upper", "A")], "results")
    choices = [note["tool_choice"] for note in seen(tag)]
    equal(choices[0], choice, "tool_choice of the first round")
    assert choices[1] in (None, "auto"), f"tool_choice of the second round is {choices[1]!r}"


# ---- Errors ---------------------------------------------------------------------------------------------------------


def failing(error_class, status, body, headers=None, **more):
    """The failure that the SDK raises for a model that answers so, held to what every failure has."""
    _, text = plan(round_of(status=status, body=body, headers=headers or {}))
    try:
        ask_plainly(text, client(max_retries=0), **more)
    except openai.APIStatusError as error:
        equal(type(error), error_class, "class of the exception")
        assert error.request_id, "no request_id"
        equal(sorted(error.response.json()["error"]), ["code", "message", "param", "type"], "keys of the envelope")
        return error
    raise AssertionError("no exception")


def body(code, kind="invalid_request_error", param=None):
    return {"error": {"message": f"it is {code}", "type": kind, "param": param, "code": code}}


@check("errors of the model arrive as the right exceptions")
def error_classes():
    error = failing(openai.BadRequestError, 400, body("invalid_value", param="temperature"))
    equal((error.code, error.param), ("invalid_value", "temperature"), "code and param")
    assert "it is invalid_value" in error.message, error.message
    failing(openai.AuthenticationError, 401, body("invalid_api_key"))
    failing(openai.PermissionDeniedError, 403, body("forbidden"))
    failing(openai.NotFoundError, 404, body("model_not_found"))
    failing(openai.UnprocessableEntityError, 422, {"detail": [{"loc": ["body"], "msg": "field required"}]})


@check("429 arrives as RateLimitError with retry-after")
def rate_limited():
    error = failing(openai.RateLimitError, 429, body("rate_limit_exceeded", "requests"), {"retry-after": "1"})
    equal(error.response.headers.get("retry-after"), "1", "retry-after")
    failing(openai.RateLimitError, 429, body("rate_limit_exceeded", "requests"), {"retry-after": "1"}, stream=True)


@check("an HTML page of the model becomes InternalServerError without the page")
def html_page():
    error = failing(openai.InternalServerError, 502, "<html><h1>502 Bad Gateway</h1>10.1.2.3</html>")
    equal(error.status_code, 502, "status")
    assert "10.1.2.3" not in error.response.text, error.response.text


@check("a request that is wrong is refused with BadRequestError")
def wrong_request():
    try:
        client(max_retries=0).chat.completions.create(model=MODEL, messages="no list")
    except openai.BadRequestError as error:
        assert error.request_id, "no request_id"
        return
    raise AssertionError("no exception")


@check("an error in the model's stream is raised with its message")
def error_in_stream():
    _, text = plan(round_of("Some text. ", stream_error={"message": "overloaded", "type": "server_error", "code": 529}))
    try:
        list(ask_plainly(text, stream=True))
    except openai.APIError as error:
        assert "overloaded" in error.message, error.message
        return
    raise AssertionError("no exception")


@check("a failure after a tool has run is not repeated by the SDK")
def not_repeated():
    for stream in (False, True):
        sign = f"once-{os.getpid()}-{stream}"
        _, text = plan(round_of(calls=[call("modern__count", sign=sign)]), round_of(status=500, body=body("broken")))
        try:
            answer = ask_plainly(text, client(max_retries=2), stream=stream)
            list(answer)
            raise AssertionError(f"no exception, stream={stream}")
        except openai.APIError:
            equal((SIGNS / f"{sign}.count").read_text(), "x", f"runs of the tool, stream={stream}")


# ---- Going away -----------------------------------------------------------------------------------------------------


@check("hanging up while the model speaks drops the model call")
def hang_up_on_model():
    tag, text = plan(round_of("I could go on. ", hang=True))
    stream = ask_plainly(text, stream=True)
    next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
    closed = time.time()
    stream.close()
    note = until(lambda: (n := seen(tag)[0])["ended"] != "running" and n, "the model call has ended")
    equal(note["ended"], "the client went away", "how the model call ended")
    assert note["ended_at"] - closed < 1, f"it took {note['ended_at'] - closed:.2f} s"


@check("hanging up while a tool runs cancels the tool")
def hang_up_on_tool():
    sign = f"hang-{os.getpid()}"
    _, text = plan(round_of("Slowly. ", calls=[call("modern__slow", sign=sign, seconds=15)]), FINAL)
    stream = ask_plainly(text, stream=True)
    next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
    until((SIGNS / f"{sign}.started").exists, "the tool runs")
    closed = time.time()
    stream.close()
    until((SIGNS / f"{sign}.cancelled").exists, "the tool is cancelled")
    took = (SIGNS / f"{sign}.cancelled").stat().st_mtime - closed
    assert took < 1, f"it took {took:.2f} s"


# ---- The rest of the API --------------------------------------------------------------------------------------------


@check("models.list and models.retrieve")
def models():
    names = [model.id for model in client().models.list()]
    assert "scripted-1" in names and "scripted-2" in names, names
    equal(client().models.retrieve("scripted-2").id, "scripted-2", "id")


@check("another path of the API goes through to the model")
def embeddings():
    answer = client().embeddings.create(model=MODEL, input="x", encoding_format="float")
    equal(answer.data[0].embedding, [0.5, -0.25], "embedding")


@check("the client's own key reaches the model where none is configured")
def key():
    tag, text = plan(round_of("Hello."))
    ask_plainly(text)
    equal(seen(tag)[0]["authorization"], "Bearer sk-interop", "authorization at the model")


@check("AsyncOpenAI: 20 streamed loops side by side")
async def side_by_side():
    asking = openai.AsyncOpenAI(base_url=BASE, api_key="sk-interop", timeout=60)

    async def one(number):
        _, text = plan(round_of("Now. ", calls=[call("modern__upper", text=f"n{number}")]), FINAL)
        messages = [{"role": "user", "content": text}]
        stream = await asking.chat.completions.create(model=MODEL, messages=messages, stream=True)
        whole = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        equal(results(whole), [("modern__upper", f"N{number}")], f"results of {number}")

    await asyncio.gather(*(one(number) for number in range(20)))


run_all()
