"""pydantic-ai against the gateway, over the Responses API and over chat completions."""

import os

from checks import check, equal, run_all
from plans import FINAL, call, plan, results, round_of, seen
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE = os.environ["INTEROP_GATEWAY"] + "/v1"
MODELS = (OpenAIResponsesModel, OpenAIChatModel)
RAN = []


def lookup(key: str) -> str:
    """Looks something up on the client's side."""
    RAN.append(key)
    return f"value of {key}"


def agent(kind, **more):
    provider = OpenAIProvider(base_url=BASE, api_key="sk-interop")
    return Agent(kind("scripted-1", provider=provider), tools=[lookup], **more)


@check("an agent runs its own tool only, in a mixed turn")
def mixed():
    for kind in MODELS:
        tag, text = plan(
            round_of(calls=[call("lookup", key="b"), call("modern__upper", text="a")]),
            round_of(calls=[call("modern__add", a=4, b=5)]),
            FINAL,
        )
        RAN.clear()
        said = agent(kind).run_sync(text).output
        equal(RAN, ["b"], f"{kind.__name__}: calls of its own tool")
        wanted = [("lookup", "value of b"), ("modern__upper", "A"), ("modern__add", "4 + 5 = 9")]
        equal(results(said), wanted, f"{kind.__name__}: results")
        equal(len(seen(tag)), 3, "requests at the model")


@check("run_stream: the text of the last answer arrives")
def streamed():
    for kind in MODELS:
        _, text = plan(round_of(calls=[call("modern__upper", text="a")]), FINAL)
        result = agent(kind).run_stream_sync(text)
        said = "".join(result.stream_text(delta=True))
        equal(results(said), [("modern__upper", "A")], kind.__name__)


class Found(BaseModel):
    value: str


@check("an output type: the forced call comes back to the agent, after tools of the gateway")
def output_type():
    for kind in MODELS:
        _, text = plan(
            round_of(calls=[call("modern__upper", text="a")]), round_of(calls=[call("final_result", value="A")])
        )
        found = agent(kind, output_type=Found).run_sync(text).output
        equal(found, Found(value="A"), kind.__name__)


run_all()
