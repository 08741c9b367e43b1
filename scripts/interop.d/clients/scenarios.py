"""The chats that every Python client goes through, whatever its way of asking.

A `Peer` is one way of asking (plain, streamed, a helper of the SDK). It hides how its SDK spells messages;
the scenarios say what must come back and what the model must have seen.
"""

import json
from dataclasses import dataclass, field

from checks import check, equal
from plans import FINAL, call, plan, results, round_of, seen


@dataclass
class Answer:
    """What one request brought."""

    text: str
    finish: str
    message: object  # The assistant's message in the SDK's own words, to be sent back.
    calls: list = field(default_factory=list)  # (id, name, arguments as a dict), in order.
    total_tokens: int | None = None


class Peer:
    """One way of asking. `own` offers the client's own tool, `lookup(key)`."""

    name = "?"

    def user(self, text):
        return {"role": "user", "content": text}

    def tool(self, call_id, text):
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def ask(self, messages, own=False) -> Answer:
        raise NotImplementedError


def finished(answer):
    """The answer is the end of a chat: no call is shown, and it stops."""
    equal(answer.calls, [], "calls shown to the client")
    equal(answer.finish, "stop", "finish_reason")


def tool_messages(note):
    return [m for m in note["messages"] if m["role"] == "tool"]


def register(peer, streamed):
    """Adds the common checks for one way of asking."""

    @check(f"{peer.name}: plain chat")
    def plain_chat():
        tag, text = plan(round_of("Good ", "morning ", "☀️."))
        answer = peer.ask([peer.user(text)])
        finished(answer)
        equal(answer.text, "Good morning ☀️.", "text")
        equal(len(seen(tag)), 1, "requests at the model")

    @check(f"{peer.name}: a loop of two rounds of gateway tools")
    def two_rounds():
        tag, text = plan(
            round_of("First. ", calls=[call("modern__upper", text="one")]),
            round_of("Second. ", calls=[call("modern__add", a=2, b=3)]),
            FINAL,
        )
        answer = peer.ask([peer.user(text)])
        finished(answer)
        equal(results(answer.text), [("modern__upper", "ONE"), ("modern__add", "2 + 3 = 5")], "results")
        if streamed:
            assert answer.text.startswith("First. Second. Results: "), f"text of every round: {answer.text!r}"
        equal([note["ended"] for note in seen(tag)], ["done"] * 3, "requests at the model")

    @check(f"{peer.name}: parallel gateway calls keep their order")
    def parallel():
        tag, text = plan(
            round_of(
                calls=[
                    call("modern__slow", sign=f"parallel-{peer.name}".replace(" ", "-"), seconds=0.4),
                    call("everything__echo", message="two"),
                    call("modern__upper", text="three"),
                ]
            ),
            FINAL,
        )
        answer = peer.ask([peer.user(text)])
        finished(answer)
        equal([name for name, _ in results(answer.text)], ["modern__slow", "everything__echo", "modern__upper"], "order")
        equal([content for _, content in results(answer.text)][1:], ["Echo: two", "THREE"], "results")
        equal(len(seen(tag)), 2, "requests at the model")

    @check(f"{peer.name}: mixed turn, then another question")
    def mixed():
        tag, text = plan(
            round_of(
                "Both. ",
                calls=[call("modern__upper", text="a"), call("lookup", key="b"), call("modern__add", a=1, b=1)],
            ),
            FINAL,
        )
        messages = [peer.user(text)]
        first = peer.ask(messages, own=True)
        equal([(name, args) for _, name, args in first.calls], [("lookup", {"key": "b"})], "calls shown to the client")
        equal(first.finish, "tool_calls", "finish_reason")
        messages += [first.message, peer.tool(first.calls[0][0], "value of b")]
        second = peer.ask(messages, own=True)
        finished(second)
        wanted = [("modern__upper", "A"), ("lookup", "value of b"), ("modern__add", "1 + 1 = 2")]
        equal(results(second.text), wanted, "results of the gateway and of the client, in the order of the calls")
        again(messages + [second.message])

    def again(messages):
        """The whole chat goes on: what was parked is still in its place."""
        tag, text = plan(round_of("And ", calls=[call("modern__upper", text="c")]), FINAL)
        answer = peer.ask(messages + [peer.user(text)], own=True)
        finished(answer)
        equal(results(answer.text), [("modern__upper", "C")], "results of the second question")
        told = [m["content"] for m in tool_messages(seen(tag)[0])]
        equal(told, ["A", "value of b", "1 + 1 = 2"], "tool messages of the first question, as the model sees them later")

    @check(f"{peer.name}: a chat of three turns")
    def multi_turn():
        messages = []
        for turn in ("one", "two", "three"):
            tag, text = plan(round_of(calls=[call("everything__echo", message=turn)]), FINAL)
            answer = peer.ask(messages + [peer.user(text)])
            finished(answer)
            equal(results(answer.text), [("everything__echo", f"Echo: {turn}")], f"turn {turn}")
            messages += [peer.user(text), answer.message]
        equal(len([m for m in seen(tag)[0]["messages"] if m["role"] == "user"]), 3, "user messages at the model")

    @check(f"{peer.name}: the model can read what went wrong with a tool")
    def tool_errors():
        tag, text = plan(
            round_of(
                calls=[
                    call("modern__fail", why="the shelf is empty"),
                    call("modern__add", a="two", b=3),
                    ["modern__add", '{"a": 1,'],
                    call("modern__uper", text="x"),
                ]
            ),
            FINAL,
        )
        answer = peer.ask([peer.user(text)])
        finished(answer)
        check_errors([content for _, content in results(answer.text)])

    @check(f"{peer.name}: usage is the sum over the rounds")
    def usage():
        _, text = plan(round_of("Let me see. ", calls=[call("modern__upper", text="a")]), FINAL)
        equal(peer.ask([peer.user(text)]).total_tokens, 30, "total tokens of two rounds of 15")


def check_errors(contents):
    """The four ways to fail, in the words of the tool messages."""
    errors = [json.loads(content)["error"] for content in contents]
    wanted = ["tool_error", "invalid_params", "invalid_arguments_json", "unknown_tool"]
    equal([error["type"] for error in errors], wanted, "types of the errors")
    assert "the shelf is empty" in errors[0]["message"], errors[0]
    assert "a" in errors[1]["path"] and errors[1]["input_schema"], errors[1]
    assert "modern__upper" in str(errors[3]["did_you_mean"]), errors[3]
