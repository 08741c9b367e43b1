"""The Python MCP SDK 2.x as a client of toolway: both eras, over stdio and over HTTP."""

import json
import os
from contextlib import asynccontextmanager

import anyio
from checks import check, equal, run_all
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

STDIO, HTTP = json.loads(os.environ["INTEROP_MCP_STDIO"]), os.environ["INTEROP_MCP_HTTP"]
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
ADDRESSES = {
    "stdio": lambda: StdioServerParameters(command=STDIO[0], args=STDIO[1:], env=dict(os.environ)),
    "HTTP": lambda: HTTP,
}


async def say_ada(_context, params):
    equal(params.message, "What is your name?", "question")
    return ElicitResult(action="accept", content={"name": "Ada"})


@asynccontextmanager
async def connected(transport, mode):
    """A client, once the servers behind toolway are there."""
    async with Client(ADDRESSES[transport](), mode=mode, elicitation_callback=say_ada, cache=None) as client:
        equal(client.protocol_version, ERAS[mode], "version")
        with anyio.fail_after(30):
            while not {"modern__upper", "desk__shout"} <= {tool.name for tool in (await client.list_tools()).tools}:
                await anyio.sleep(0.05)
        yield client


def text(result):
    return result.content[0].text


async def tools(transport, mode):
    async with connected(transport, mode) as client:
        result = await client.call_tool("modern__upper", {"text": "abc"})
        equal((text(result), result.is_error), ("ABC", False), "result of a server's tool")
        result = await client.call_tool("desk__shout", {"text": "abc"})
        assert "ABC!" in text(result) and not result.is_error, f"result of a function: {result}"
        result = await client.call_tool("modern__weather", {"city": "Oslo"})
        equal(result.structured_content, {"city": "Oslo", "celsius": 21}, "structured content")
        result = await client.call_tool("modern__picture", {})
        equal(result.content[0].type, "image", "picture")
        result = await client.call_tool("modern__fail", {"why": "out of order"})
        assert result.is_error and "out of order" in text(result), f"a failure: {result}"
        result = await client.call_tool("modern__add", {"a": "one", "b": 2})
        assert result.is_error and "a" in text(result), f"invalid arguments: {result}"
        try:
            await client.call_tool("modern__nothing", {})
        except MCPError as error:
            equal(error.error.code, -32602, "code for an unknown tool")
        else:
            raise AssertionError("an unknown tool was called")


async def progress(transport, mode):
    heard = []

    async def hear(done, total, message):
        heard.append((done, total, message))

    async with connected(transport, mode) as client:
        arguments = {"sign": f"mcp-{transport}-{mode}", "seconds": 0.5}
        result = await client.call_tool("modern__slow", arguments, progress_callback=hear)
        assert "is finished" in text(result), f"result: {result}"
        assert len(heard) >= 3 and heard[0][1] == 5, f"progress: {heard}"


async def prompts_and_resources(transport, mode):
    async with connected(transport, mode) as client:
        prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert "modern__review" in prompts, f"prompts: {prompts}"
        prompt = await client.get_prompt("modern__review", {"code": "f(x)"})
        equal(prompt.messages[0].content.text, "Please review f(x).", "prompt")
        resources = {resource.name.split("__")[-1]: resource.uri for resource in (await client.list_resources()).resources}
        read = await client.read_resource(next(uri for name, uri in resources.items() if "motto" in name))
        equal(read.contents[0].text, "One gateway.", "resource")
        templates = [t.uri_template for t in (await client.list_resource_templates()).resource_templates]
        template = next(template for template in templates if "notes" in template)
        read = await client.read_resource(template.replace("{name}", "tea"))
        equal(read.contents[0].text, "A note on tea.", "resource of a template")


async def question(transport, mode):
    async with connected(transport, mode) as client:
        result = await client.call_tool("modern__greet", {})
        equal((text(result), result.is_error), ("Hello, Ada!", False), "result")


NAMES = {
    "tools of servers and functions": tools,
    "progress": progress,
    "prompts and resources": prompts_and_resources,
    "a tool's question is answered": question,
}
for transport in ADDRESSES:
    for mode, version in ERAS.items():
        for name, function in NAMES.items():
            check(f"{version} over {transport}: {name}")(lambda f=function, t=transport, m=mode: f(t, m))

if __name__ == "__main__":
    run_all()
