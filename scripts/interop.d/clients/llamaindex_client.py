"""LlamaIndex's OpenAILike against the gateway: chat and stream_chat, and an agent with a tool of its own."""

import asyncio
import os

from checks import check, equal, run_all
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from plans import FINAL, call, plan, results, round_of, seen
from scenarios import Answer, Peer, register

BASE = os.environ["INTEROP_GATEWAY"] + "/v1"
RAN = []


def lookup(key: str) -> str:
    """Looks something up on the client's side."""
    RAN.append(key)
    return f"value of {key}"


TOOL = FunctionTool.from_defaults(lookup)


def model():
    more = {"stream_options": {"include_usage": True}}
    kinds = {"is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(model="scripted-1", api_base=BASE, api_key="sk-interop", max_retries=0, **kinds), more


class LlamaIndex(Peer):
    def __init__(self, streamed):
        self.name, self.streamed = "stream_chat" if streamed else "chat", streamed

    def user(self, text):
        return ChatMessage(role="user", content=text)

    def tool(self, call_id, text):
        return ChatMessage(role="tool", content=text, additional_kwargs={"tool_call_id": call_id})

    def ask(self, messages, own=False):
        llm, more = model()
        more = more if self.streamed else {}
        if own:
            ask = llm.stream_chat_with_tools if self.streamed else llm.chat_with_tools
            response = ask([TOOL], chat_history=messages, **more)
        else:
            response = llm.stream_chat(messages, **more) if self.streamed else llm.chat(messages)
        tokens = None
        if self.streamed:
            for response in response:
                usage = getattr(response.raw, "usage", None)
                tokens = usage.total_tokens if usage else tokens
        else:
            tokens = response.raw.usage.total_tokens
        made = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        calls = [(c.tool_id, c.tool_name, c.tool_kwargs) for c in made]
        return Answer(response.message.content or "", "tool_calls" if calls else "stop", response.message, calls, tokens)


register(LlamaIndex(streamed=False), streamed=False)
register(LlamaIndex(streamed=True), streamed=True)


@check("FunctionAgent: runs its own tool only, in a mixed turn")
def agent():
    for streaming in (False, True):
        RAN.clear()
        tag, text = plan(
            round_of("So. ", calls=[call("lookup", key="b"), call("modern__upper", text="a")]),
            round_of(calls=[call("modern__add", a=4, b=5)]),
            FINAL,
        )
        asked = FunctionAgent(tools=[TOOL], llm=model()[0], streaming=streaming)

        async def run():
            return await asked.run(text)

        said = str(asyncio.run(run()))
        equal(RAN, ["b"], "calls of its own tool")
        wanted = [("lookup", "value of b"), ("modern__upper", "A"), ("modern__add", "4 + 5 = 9")]
        equal(results(said), wanted, "results")
        equal(len(seen(tag)), 3, "requests at the model")


run_all()
