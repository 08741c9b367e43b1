"""Semantic Kernel against the gateway, with a plugin function that it calls by itself."""

import os
import tempfile
import urllib.request

from checks import check, equal, run_all
from openai import AsyncOpenAI
from plans import FINAL, call, plan, results, round_of, seen
from scenarios import check_errors
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.connectors.openapi_plugin import OpenAPIFunctionExecutionParameters
from semantic_kernel.contents import ChatHistory
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import kernel_function

GATEWAY = os.environ["INTEROP_GATEWAY"]
BASE = GATEWAY + "/v1"


class Shelf:
    """The client's own plugin; the model sees `shelf-lookup`."""

    def __init__(self):
        self.asked = []

    @kernel_function(name="lookup", description="Looks something up on the client's side.")
    def lookup(self, key: str) -> str:
        self.asked.append(key)
        return f"value of {key}"


class Talk:
    """A chat of Semantic Kernel's: its history, its plugin, and one way of asking."""

    def __init__(self, streamed, own=False, headers=None):
        self.streamed, self.own = streamed, own
        self.shelf, self.history = Shelf(), ChatHistory()
        client = AsyncOpenAI(base_url=BASE, api_key="sk-interop", timeout=30, max_retries=0, default_headers=headers)
        self.service = OpenAIChatCompletion(ai_model_id="scripted-1", async_client=client)
        self.kernel = Kernel()
        self.kernel.add_service(self.service)
        self.kernel.add_plugin(self.shelf, "shelf")
        self.finish = self.tokens = None

    async def ask(self, text):
        self.history.add_user_message(text)
        settings = OpenAIChatPromptExecutionSettings()
        if self.own:
            settings.function_choice_behavior = FunctionChoiceBehavior.Auto()
        if self.streamed:
            return await self.ask_streamed(settings)
        message = await self.service.get_chat_message_content(self.history, settings, kernel=self.kernel)
        self.finish, self.tokens = message.finish_reason.value, tokens_of(message.metadata["usage"])
        self.history.add_message(message)
        return message.content

    async def ask_streamed(self, settings):
        text, tokens = "", 0
        async for chunks in self.service.get_streaming_chat_message_contents(
            self.history, settings, kernel=self.kernel
        ):
            for chunk in chunks:
                text += chunk.content if chunk.role.value == "assistant" else ""
                tokens += tokens_of(chunk.metadata.get("usage"))
                self.finish = chunk.finish_reason.value if chunk.finish_reason else self.finish
        self.tokens = tokens
        self.history.add_assistant_message(text)
        return text


def tokens_of(usage):
    return usage.prompt_tokens + usage.completion_tokens if usage else 0


def register(name, streamed):
    """The chats that Semantic Kernel goes through, plain or streamed."""

    @check(f"{name}: plain chat")
    async def plain_chat():
        talk = Talk(streamed)
        _, text = plan(round_of("Good ", "morning."))
        equal(await talk.ask(text), "Good morning.", "text")
        equal((talk.finish, talk.tokens), ("stop", 15), "finish_reason and tokens")

    @check(f"{name}: a loop of two rounds of gateway tools, usage summed")
    async def two_rounds():
        talk = Talk(streamed, own=True)
        tag, text = plan(
            round_of("First. ", calls=[call("modern__upper", text="one")]),
            round_of("Second. ", calls=[call("modern__add", a=2, b=3)]),
            FINAL,
        )
        said = await talk.ask(text)
        equal(results(said), [("modern__upper", "ONE"), ("modern__add", "2 + 3 = 5")], "results")
        equal((talk.finish, talk.tokens, len(seen(tag))), ("stop", 45, 3), "finish_reason, tokens, requests")

    @check(f"{name}: parallel gateway calls keep their order")
    async def parallel():
        sign = f"sk-{os.getpid()}-{name}"
        calls = [call("modern__slow", sign=sign, seconds=0.4), call("everything__echo", message="two")]
        _, text = plan(round_of(calls=calls), FINAL)
        got = results(await Talk(streamed).ask(text))
        equal(got, [("modern__slow", f"{sign} is finished"), ("everything__echo", "Echo: two")], "results")

    @check(f"{name}: mixed turn with automatic function calling, then another question")
    async def mixed():
        talk = Talk(streamed, own=True)
        calls = [call("modern__upper", text="a"), call("shelf-lookup", key="b"), call("modern__add", a=1, b=1)]
        _, text = plan(round_of("Both. ", calls=calls), FINAL)
        said = await talk.ask(text)
        wanted = [("modern__upper", "A"), ("shelf-lookup", "value of b"), ("modern__add", "1 + 1 = 2")]
        equal(results(said), wanted, "results of the gateway and of the client, in the order of the calls")
        equal(talk.shelf.asked, ["b"], "calls of the client's own function")
        tag, text = plan(round_of(calls=[call("modern__upper", text="c")]), FINAL)
        equal(results(await talk.ask(text)), [("modern__upper", "C")], "results of the second question")
        equal(len([m for m in seen(tag)[0]["messages"] if m["role"] == "user"]), 2, "user messages at the model")

    @check(f"{name}: the model can read what went wrong with a tool")
    async def tool_errors():
        calls = [
            call("modern__fail", why="the shelf is empty"),
            call("modern__add", a="two", b=3),
            ["modern__add", '{"a": 1,'],
            call("modern__uper", text="x"),
        ]
        _, text = plan(round_of(calls=calls), FINAL)
        check_errors([content for _, content in results(await Talk(streamed).ask(text))])

    @check(f"{name}: an error of the model is raised with its message")
    async def error():
        body = {"error": {"message": "too hot", "type": "invalid_request_error", "param": None, "code": "hot"}}
        _, text = plan(round_of(status=400, body=body))
        try:
            await Talk(streamed).ask(text)
        except ServiceResponseException as failure:
            assert "too hot" in str(failure) + str(failure.__cause__), str(failure)
            return
        raise AssertionError("no exception")

    @check(f"{name}: X-Toolway-Tools in default_headers narrows the tools")
    async def narrowed():
        tag, text = plan(round_of("Hello."))
        await Talk(streamed, headers={"X-Toolway-Tools": "modern__*"}).ask(text)
        names = seen(tag)[0]["tools"]
        assert names and all(tool.startswith("modern__") for tool in names), names


@check("X-Toolway-Progress: the chunks about a running tool do no harm")
async def progress():
    for form in ("on", "open-webui"):
        sign = f"sk-told-{os.getpid()}-{form}"
        _, text = plan(round_of("Wait. ", calls=[call("modern__slow", sign=sign, seconds=0.3)]), FINAL)
        said = await Talk(streamed=True, headers={"X-Toolway-Progress": form}).ask(text)
        equal(results(said), [("modern__slow", f"{sign} is finished")], "results")


register("plain", streamed=False)
register("streamed", streamed=True)
@check("the OpenAPI importer loads the tools, and a call through it works")
async def importer():
    with urllib.request.urlopen(f"{GATEWAY}/tools/openapi.json", timeout=10) as response:
        document = response.read()
    settings = OpenAPIFunctionExecutionParameters(
        server_url_override=GATEWAY, server_url_validation_allowed_base_urls=[GATEWAY]
    )
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(document)
        file.flush()
        kernel = Kernel()
        plugin = kernel.add_plugin_from_openapi("gateway", file.name, execution_settings=settings)
        assert "modern__upper" in plugin.functions, list(plugin.functions)
        equal(str(await kernel.invoke(plugin_name="gateway", function_name="modern__upper", text="a")), '"A"', "result")


run_all()
