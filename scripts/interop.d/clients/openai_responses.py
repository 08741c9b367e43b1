"""openai-python's Responses API against the gateway: create, a stream read by hand, and the helpers `.stream()` and
`.parse()`."""

import json
import os

import openai
from checks import check, equal, run_all
from plans import FINAL, call, plan, results, round_of
from pydantic import BaseModel
from scenarios import Answer, Peer, register

BASE = os.environ["INTEROP_GATEWAY"] + "/v1"
MODEL = "scripted-1"
LOOKUP = {
    "type": "function",
    "name": "lookup",
    "description": "Looks something up on the client's side.",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}


def client(**settings):
    return openai.OpenAI(base_url=BASE, api_key="sk-interop", timeout=30, **settings)


def answer_of(response):
    items = [item.model_dump(exclude_none=True) for item in response.output]
    calls = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in items if i["type"] == "function_call"]
    finish = "length" if response.status == "incomplete" else "tool_calls" if calls else "stop"
    return Answer(response.output_text, finish, items, calls, response.usage.total_tokens)


class Responses(Peer):
    """Messages are items here; an answer is a list of them."""

    def tool(self, call_id, text):
        return {"type": "function_call_output", "call_id": call_id, "output": text}

    def ask(self, messages, own=False):
        items = [item for one in messages for item in (one if isinstance(one, list) else [one])]
        return self.send(model=MODEL, input=items, **({"tools": [LOOKUP]} if own else {}))


class Created(Responses):
    name = "responses.create"

    def send(self, **fields):
        return answer_of(client().responses.create(**fields))


class Streamed(Responses):
    name = "responses, streamed"

    def send(self, **fields):
        events = list(client().responses.create(stream=True, **fields))
        equal([event.sequence_number for event in events], list(range(len(events))), "sequence numbers")
        equal(events[0].type, "response.created", "first event")
        last = events[-1]
        assert last.type in ("response.completed", "response.incomplete"), last.type
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        equal(last.response.output_text, text, "text of the deltas and of the response")
        return answer_of(last.response)


class Helper(Responses):
    name = "responses.stream()"

    def send(self, **fields):
        with client().responses.stream(**fields) as stream:
            stream.until_done()
            return answer_of(stream.get_final_response())


class Connected(Responses):
    name = "responses.connect()"

    def send(self, **fields):
        with client().responses.connect() as connection:
            connection.response.create(**fields)
            for event in connection:
                if event.type in ("response.completed", "response.incomplete"):
                    return answer_of(event.response)
                assert event.type not in ("response.failed", "error"), event


class Parsed(Responses):
    name = "responses.parse"

    def send(self, **fields):
        return answer_of(client().responses.parse(**fields))


register(Created(), streamed=True)
register(Streamed(), streamed=True)
register(Helper(), streamed=True)
register(Connected(), streamed=True)
register(Parsed(), streamed=True)


@check("a response that is not stored is continued on its WebSocket")
def continued():
    def ask(connection, **fields):
        connection.response.create(model=MODEL, store=False, **fields)
        return next(event for event in connection if event.type in ("response.completed", "error"))

    with client().responses.connect() as connection, client().responses.connect() as other:
        _, first = plan(round_of("one"))
        previous = ask(connection, input=first).response.id
        _, second = plan(round_of("two"))
        fields = {"input": second, "previous_response_id": previous}
        equal(ask(other, **fields).error.code, "previous_response_not_found", "code")
        answer = ask(connection, **fields).response
        equal((answer.output_text, answer.previous_response_id), ("two", previous), "answer")


@check("conversations: responses are added to one, and its items are listed by pages")
def conversation():
    it = client().conversations
    made = it.create(items=[{"type": "message", "role": "user", "content": "Before."}], metadata={"topic": "x"})
    _, text = plan(round_of(calls=[call("modern__upper", text="a")]), round_of("After."))
    answer = client().responses.create(model=MODEL, input=text, conversation=made.id)
    equal((answer.output_text, answer.conversation.id), ("After.", made.id), "answer")
    texts = [item.content[0].text for item in it.items.list(made.id, order="asc", limit=1)]
    equal(texts, ["Before.", text, "After."], "items")
    it.items.create(made.id, items=[{"type": "message", "role": "user", "content": "More."}])
    newest = it.items.list(made.id, limit=1).data[0]
    equal(it.items.retrieve(newest.id, conversation_id=made.id).content[0].text, "More.", "item")
    it.items.delete(newest.id, conversation_id=made.id)
    equal(it.update(made.id, metadata={"topic": "y"}).metadata, {"topic": "y"}, "metadata")
    equal(it.delete(made.id).deleted, True, "deleted")


class Found(BaseModel):
    value: str


@check("responses.parse: a parsed answer after tools of the gateway")
def parsed():
    _, text = plan(round_of(calls=[call("modern__upper", text="a")]), round_of('{"value": "A"}'))
    equal(client().responses.parse(model=MODEL, input=text, text_format=Found).output_parsed, Found(value="A"), "what was parsed")


@check("text of a round arrives before its tools have run")
def text_comes_first():
    _, text = plan(round_of("Wait. ", calls=[call("modern__upper", text="a")]), FINAL)
    kinds = [event.type for event in client().responses.create(model=MODEL, input=text, stream=True)]
    equal(kinds.count("response.completed"), 1, "ends")
    assert kinds.count("response.output_text.delta") >= 2, kinds


@check("a custom tool comes back with its text")
def custom_tool():
    _, text = plan(round_of(calls=[call("run_code", input="print(1)")]))
    tools = [{"type": "custom", "name": "run_code", "description": "Runs Python."}]
    response = client().responses.create(model=MODEL, input=text, tools=tools)
    shown = [(item.type, item.name, item.input) for item in response.output]
    equal(shown, [("custom_tool_call", "run_code", "print(1)")], "items")


@check("an `mcp` entry in `tools` narrows the tools")
def narrowed():
    _, text = plan(round_of(calls=[call("modern__upper", text="a")]), FINAL)
    response = client().responses.create(model=MODEL, input=text, tools=[mcp(require_approval="never")])
    equal(results(response.output_text), [("modern__upper", "A")], "results")
    equal([item.type for item in response.output], ["mcp_list_tools", "mcp_call", "message"], "items")
    listed, made = response.output[:2]
    equal([tool.name for tool in listed.tools], ["upper"], "tools")
    equal((made.server_label, made.name, made.output, made.error), ("modern", "upper", "A", None), "call")


def mcp(**more):
    return {"type": "mcp", "server_label": "modern", "server_url": "https://unused.example", "allowed_tools": ["upper"], **more}


@check("`require_approval`: the call waits, runs once, and what was refused does not run")
def approval():
    for approve in (True, False):
        _, text = plan(round_of(calls=[call("modern__upper", text="a")]), FINAL)
        asked = client().responses.create(model=MODEL, input=text, tools=[mcp(require_approval="always")])
        question = asked.output[-1]
        equal((question.type, question.name), ("mcp_approval_request", "upper"), "question")
        said = {"type": "mcp_approval_response", "approval_request_id": question.id, "approve": approve}
        more = {"previous_response_id": asked.id, "tools": [mcp(require_approval="always")]}
        with client().responses.stream(model=MODEL, input=[said], **more) as stream:
            stream.until_done()
            answer = stream.get_final_response()
        made = [item.output for item in answer.output if item.type == "mcp_call"]
        equal(made, ["A"] if approve else [], "calls")
        (_, told), = results(answer.output_text)
        assert told == "A" if approve else "did not approve" in told, told


@check("errors of the model arrive as the right exceptions")
def error_classes():
    for status, kind in ((400, openai.BadRequestError), (429, openai.RateLimitError), (500, openai.InternalServerError)):
        error = {"error": {"message": "it is so", "type": "x", "param": None, "code": "y"}}
        _, text = plan(round_of(status=status, body=error))
        try:
            client(max_retries=0).responses.create(model=MODEL, input=text)
        except openai.APIStatusError as raised:
            equal(type(raised), kind, "class of the exception")
            continue
        raise AssertionError("no exception")


run_all()
