"""LangChain's ChatOpenAI against the gateway, with a tool of its own bound beside the gateway's."""

import os

import openai
from checks import check, equal, run_all
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from plans import FINAL, call, plan, results, round_of, seen
from scenarios import Answer, Peer, register

BASE = os.environ["INTEROP_GATEWAY"] + "/v1"


@tool
def lookup(key: str) -> str:
    """Looks something up on the client's side."""
    return f"value of {key}"


def chat(**settings):
    return ChatOpenAI(model="scripted-1", base_url=BASE, api_key="sk-interop", timeout=30, max_retries=0, **settings)


class LangChain(Peer):
    def __init__(self, streamed, **settings):
        self.name = " ".join(["streamed" if streamed else "plain", *settings])
        self.streamed = streamed
        self.settings = settings

    def user(self, text):
        return HumanMessage(text)

    def tool(self, call_id, text):
        return ToolMessage(text, tool_call_id=call_id)

    def ask(self, messages, own=False):
        model = chat(stream_usage=True, **self.settings)
        model = model.bind_tools([lookup]) if own else model
        message = self.streamed_message(model, messages) if self.streamed else model.invoke(messages)
        calls = [(c["id"], c["name"], c["args"]) for c in message.tool_calls]
        equal(message.invalid_tool_calls, [], "invalid tool calls")
        usage = message.usage_metadata
        tokens = usage["total_tokens"] if usage else None
        # The Responses API has a status in its place.
        finish = message.response_metadata.get("finish_reason", "tool_calls" if calls else "stop")
        return Answer(message.text, finish, message, calls, tokens)

    def streamed_message(self, model, messages):
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole


register(LangChain(streamed=False), streamed=False)
register(LangChain(streamed=True), streamed=True)
register(LangChain(streamed=False, use_responses_api=True), streamed=False)
register(LangChain(streamed=True, use_responses_api=True), streamed=True)


def agent_answer(text, stream):
    """What an agent with its own tool says in the end, and the names of the tools that it ran itself."""
    agent = create_agent(chat(), tools=[lookup])
    question = {"messages": [HumanMessage(text)]}
    if stream:
        for state in agent.stream(question, stream_mode="values"):
            pass
    else:
        state = agent.invoke(question)
    ran = [m.name for m in state["messages"] if isinstance(m, ToolMessage)]
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    return last.text, ran


@check("create_agent: runs its own tool only, in a mixed turn")
def agent():
    for stream in (False, True):
        tag, text = plan(
            round_of(calls=[call("lookup", key="b"), call("modern__upper", text="a")]),
            round_of(calls=[call("modern__add", a=4, b=5)]),
            FINAL,
        )
        said, ran = agent_answer(text, stream)
        equal(ran, ["lookup"], "tools that the agent ran")
        wanted = [("lookup", "value of b"), ("modern__upper", "A"), ("modern__add", "4 + 5 = 9")]
        equal(results(said), wanted, "results")
        equal(len(seen(tag)), 3, "requests at the model")


@check("X-Toolway-Tools in default_headers narrows the tools")
def narrowed():
    tag, text = plan(round_of("Hello."))
    chat(default_headers={"X-Toolway-Tools": "modern__*"}).invoke([HumanMessage(text)])
    names = seen(tag)[0]["tools"]
    assert names and all(name.startswith("modern__") for name in names), names


@check("X-Toolway-Progress: the chunks about a running tool do no harm")
def progress():
    for form in ("on", "open-webui"):
        sign = f"lc-told-{os.getpid()}-{form}"
        _, text = plan(round_of("Wait. ", calls=[call("modern__slow", sign=sign, seconds=0.3)]), FINAL)
        model = chat(default_headers={"X-Toolway-Progress": form})
        said = "".join(chunk.text for chunk in model.stream(text))
        equal(results(said), [("modern__slow", f"{sign} is finished")], "results")


@check("an error of the model arrives as the right exception")
def error_class():
    body = {"error": {"message": "too hot", "type": "invalid_request_error", "param": "temperature", "code": "hot"}}
    _, text = plan(round_of(status=400, body=body))
    for ask in (lambda: chat().invoke(text), lambda: list(chat().stream(text))):
        try:
            ask()
        except openai.BadRequestError as error:
            equal((error.code, error.param), ("hot", "temperature"), "code and param")
            assert error.request_id, "no request_id"
            continue
        raise AssertionError("no exception")


run_all()
