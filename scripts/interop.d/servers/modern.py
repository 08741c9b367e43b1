"""An MCP server written with the Python SDK 2.x: over stdio it speaks the stateless era, 2026-07-28.

What it does can be waited for without sleeping: `slow` leaves files in the folder `INTEROP_SIGNS`.
"""

import os
from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

SIGNS = Path(os.environ["INTEROP_SIGNS"])
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002"
    "0000010001e221bc330000000049454e44ae426082"
)

server = MCPServer("interop", version="1")


class Weather(BaseModel):
    """What `weather` returns."""

    city: str
    celsius: int


class Name(BaseModel):
    """What `greet` asks the client for."""

    name: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def upper(text: str) -> str:
    """The text in capitals."""
    return text.upper()


@server.tool()
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return f"{a} + {b} = {a + b}"


@server.tool()
def weather(city: str) -> Weather:
    """The weather, as structured content."""
    return Weather(city=city, celsius=21)


@server.tool(structured_output=False)
def picture() -> Image:
    """One transparent pixel."""
    return Image(data=PIXEL, format="png")


@server.tool()
def fail(why: str) -> str:
    """Fails, and says why."""
    raise ToolError(why)


@server.tool()
def era(ctx: Context) -> str:
    """The version of MCP that this call was made with."""
    return f"{ctx.protocol_version}"


@server.tool()
def count(sign: str) -> str:
    """Counts its own calls for one sign."""
    path = SIGNS / f"{sign}.count"
    with path.open("a") as file:
        file.write("x")
    return f"call {len(path.read_text())}"


@server.tool()
async def slow(sign: str, seconds: float, ctx: Context) -> str:
    """Works for some seconds, with progress; leaves SIGN.started, then SIGN.finished or SIGN.cancelled."""
    (SIGNS / f"{sign}.started").touch()
    try:
        steps = max(1, int(seconds * 10))
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step}")
            await anyio.sleep(seconds / steps)
    except anyio.get_cancelled_exc_class():
        (SIGNS / f"{sign}.cancelled").touch()
        raise
    (SIGNS / f"{sign}.finished").touch()
    return f"{sign} is finished"


async def who_is_there() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


@server.tool()
async def greet(who: Annotated[Name, Resolve(who_is_there)]) -> str:
    """Asks for a name, and greets."""
    return f"Hello, {who.name}!"


@server.prompt()
def review(code: str) -> str:
    """A request for a review."""
    return f"Please review {code}."


@server.resource("interop://motto", mime_type="text/plain")
def motto() -> str:
    """What it is all for."""
    return "One gateway."


@server.resource("interop://notes/{name}", mime_type="text/plain")
def note(name: str) -> str:
    """A note on something."""
    return f"A note on {name}."


if __name__ == "__main__":
    server.run("stdio")
