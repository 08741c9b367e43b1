"""anthropic's Python SDK against the gateway: plain, streamed, and with its tool runner."""

import os

import anthropic
from checks import check, equal, run_all
from plans import FINAL, call, plan, results, round_of
from scenarios import Answer, Peer, register

BASE = os.environ["INTEROP_GATEWAY"]
MODEL = "scripted-1"
FINISHES = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
LOOKUP = {
    "name": "lookup",
    "description": "Looks something up on the client's side.",
    "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}


def client(**settings):
    return anthropic.Anthropic(base_url=BASE, api_key="sk-interop", timeout=30, **settings)


def answer_of(message):
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    text = "".join(b["text"] for b in blocks if b["type"] == "text")
    usage = message.usage
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0) + usage.output_tokens
    return Answer(text, FINISHES[message.stop_reason], {"role": "assistant", "content": blocks}, calls, total)


class Messages(Peer):
    def tool(self, call_id, text):
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}

    def ask(self, messages, own=False):
        return self.send(model=MODEL, max_tokens=1000, messages=messages, **({"tools": [LOOKUP]} if own else {}))


class Created(Messages):
    name = "messages.create"

    def send(self, **fields):
        return answer_of(client().messages.create(**fields))


class Helper(Messages):
    name = "messages.stream()"

    def send(self, **fields):
        with client().messages.stream(**fields) as stream:
            return answer_of(stream.get_final_message())


register(Created(), streamed=True)
register(Helper(), streamed=True)


@check("blocks of a stream count from 0, and one is open at a time")
def blocks():
    calls = [call("modern__upper", text="a"), call("lookup", key="b"), call("lookup", key="c")]
    _, text = plan(round_of("Both. ", calls=calls))
    messages = [{"role": "user", "content": text}]
    events = list(client().messages.create(model=MODEL, max_tokens=1000, messages=messages, tools=[LOOKUP], stream=True))
    equal((events[0].type, events[-1].type), ("message_start", "message_stop"), "first and last event")
    seen, is_open = 0, False
    for event in events:
        if event.type == "content_block_start":
            equal((event.index, is_open), (seen, False), "index of the block, and whether another is open")
            is_open = True
        elif event.type == "content_block_stop":
            seen, is_open = seen + 1, False
    equal(seen, 3, "blocks: a text and the client's two calls")


@check("the tool runner of the SDK runs the client's tools beside the gateway's")
def tool_runner():
    @anthropic.beta_tool
    def lookup(key: str) -> str:
        """Looks something up on the client's side.

        Args:
            key: What to look up.
        """
        return f"value of {key}"

    _, text = plan(round_of("Both. ", calls=[call("modern__upper", text="a"), call("lookup", key="b")]), FINAL)
    messages = [{"role": "user", "content": text}]
    runner = client().beta.messages.tool_runner(model=MODEL, max_tokens=1000, tools=[lookup], messages=messages)
    last = runner.until_done()
    wanted = [("modern__upper", "A"), ("lookup", "value of b")]
    equal(results(last.content[-1].text), wanted, "results")


@check("messages.count_tokens")
def count_tokens():
    counted = client().messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "hello"}])
    assert counted.input_tokens > 0, counted


@check("errors of the model arrive as the right exceptions")
def error_classes():
    kinds = ((400, anthropic.BadRequestError), (429, anthropic.RateLimitError), (500, anthropic.InternalServerError))
    for status, kind in kinds:
        error = {"error": {"message": "it is so", "type": "x", "param": None, "code": "y"}}
        _, text = plan(round_of(status=status, body=error))
        messages = [{"role": "user", "content": text}]
        try:
            client(max_retries=0).messages.create(model=MODEL, max_tokens=100, messages=messages)
        except anthropic.APIStatusError as raised:
            equal(type(raised), kind, "class of the exception")
            assert "it is so" in raised.message, raised.message
            continue
        raise AssertionError("no exception")


run_all()
