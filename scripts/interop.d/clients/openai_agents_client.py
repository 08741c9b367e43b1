"""OpenAI's Agents SDK against the gateway, with its default, the Responses API."""

import asyncio
import os

from agents import Agent, HostedMCPTool, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from checks import check, equal, run_all
from openai import AsyncOpenAI
from plans import FINAL, call, plan, results, round_of, seen

BASE = os.environ["INTEROP_GATEWAY"] + "/v1"
set_tracing_disabled(True)
RAN = []


@function_tool
def lookup(key: str) -> str:
    """Looks something up on the client's side."""
    RAN.append(key)
    return f"value of {key}"


def run(text, stream, tools):
    """What the agent says in the end."""
    RAN.clear()

    async def asked():
        async with AsyncOpenAI(base_url=BASE, api_key="sk-interop", timeout=30) as client:
            model = OpenAIResponsesModel(model="scripted-1", openai_client=client)
            agent = Agent(name="tester", model=model, tools=tools)
            if not stream:
                return await Runner.run(agent, text)
            result = Runner.run_streamed(agent, text)
            async for _ in result.stream_events():
                pass
            return result

    return asyncio.run(asked())


@check("Runner: runs its own tool only, in a mixed turn")
def mixed():
    for stream in (False, True):
        tag, text = plan(
            round_of("So. ", calls=[call("lookup", key="b"), call("modern__upper", text="a")]),
            round_of(calls=[call("modern__add", a=4, b=5)]),
            FINAL,
        )
        said = run(text, stream, [lookup]).final_output
        equal(RAN, ["b"], "calls of its own tool")
        wanted = [("lookup", "value of b"), ("modern__upper", "A"), ("modern__add", "4 + 5 = 9")]
        equal(results(said), wanted, "results")
        equal(len(seen(tag)), 3, "requests at the model")


def hosted(**more):
    config = {"type": "mcp", "server_label": "modern", "server_url": "https://unused.example", **more}
    return HostedMCPTool(tool_config=config)


@check("HostedMCPTool: the gateway's tools, as the provider's own")
def hosted_tool():
    for stream in (False, True):
        _, text = plan(round_of(calls=[call("modern__upper", text="a")]), FINAL)
        result = run(text, stream, [hosted(require_approval="never")])
        equal(results(result.final_output), [("modern__upper", "A")], "results")
        kinds = [item.raw_item.type for item in result.new_items]
        equal(kinds, ["mcp_list_tools", "mcp_call", "message"], "items")


@check("HostedMCPTool with require_approval: asks, and goes on with the answer")
def approval():
    for approve in (True, False):
        _, text = plan(round_of(calls=[call("modern__upper", text="a")]), FINAL)
        tool = hosted(require_approval="always")
        tool.on_approval_request = lambda request: {"approve": approve, "reason": "because"}
        (_, told), = results(run(text, False, [tool]).final_output)
        assert told == "A" if approve else "because" in told, told


run_all()
