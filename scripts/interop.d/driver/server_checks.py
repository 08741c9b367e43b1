"""Each MCP server behind the gateway: listed, called through the loop, spoken to as it should be, and lost and found."""

import json
import os
import signal
import threading
import time

from driver.processes import descendants, is_running, marked, until
from driver.world import EXPECTED
from plans import FINAL, call, plan, results, round_of, seen

# Some tools of each server; the rest may come and go with its releases.
TOOLS = {
    "everything": ["echo", "get-sum", "get-tiny-image", "get-structured-content"],
    "everything_http": ["echo", "get-sum"],
    "everything_sse": ["echo", "get-sum"],
    "filesystem": ["read_text_file", "write_file", "list_directory"],
    "time": ["convert_time", "get_current_time"],
    "modern": ["add", "count", "era", "fail", "picture", "slow", "upper", "weather"],
    "fragile": ["upper", "slow"],
}


def equal(got, wanted, what):
    assert got == wanted, f"{what}: got {got!r}, should be {wanted!r}"


def loop(world, *calls):
    """What the model was told about these calls, made in one turn: the contents in order."""
    tag, text = plan(round_of(calls=calls), FINAL)
    told = results(world.chat(text))
    equal([name for name, _ in told], [name for name, _ in calls], "tools that were called")
    return [content for _, content in told]


def checks(world):
    """The checks in the order they run, as (name, function); the last ones break servers."""
    rows = []
    for name in EXPECTED:
        rows.append((f"{name}: listed in /tools and offered to the model", lambda name=name: listed(world, name)))
        rows.append((f"{name}: transport and version in /health", lambda name=name: spoken(world, name)))
    every = ["everything", "everything_http", "everything_sse"]
    rows += [(f"{name}: called through the loop", lambda name=name: everything(world, name)) for name in every]
    rows += [
        ("everything: picture, links and structured content", lambda: everything_contents(world)),
        ("filesystem: a file written, listed and read", lambda: filesystem(world)),
        ("filesystem: a path outside is a tool error", lambda: filesystem_outside(world)),
        ("time: converts between zones", lambda: time_zones(world)),
        ("modern: text, structured content, picture, failure", lambda: modern(world)),
        ("modern: the server itself sees 2026-07-28", lambda: equal(loop(world, call("modern__era")), ["2026-07-28"], "era")),
        ("modern: calls run side by side", lambda: side_by_side(world)),
        ("fragile: kill -9 in the middle of a call costs that call only", lambda: killed_in_call(world)),
        ("everything: kill -9 behind npx, and it is back with nothing old left", lambda: killed_when_idle(world)),
        ("everything_http: back after its server was restarted", lambda: restarted(world, "everything_http", world.http)),
        ("everything_sse: back after its server was restarted", lambda: restarted(world, "everything_sse", world.sse)),
    ]
    return rows


# ---- Listed and spoken to -------------------------------------------------------------------------------------------


def listed(world, name):
    wanted = {f"{name}__{tool}" for tool in TOOLS[name]}
    shown = json.dumps(world.get("/tools"))
    equal({tool for tool in wanted if f'"{tool}"' not in shown}, set(), "tools that /tools does not show")
    tag, text = plan(round_of("Hello."))
    world.chat(text)
    offered = set(seen(tag, world.model_url)[0]["tools"])
    equal(wanted - offered, set(), "tools that the model is not offered")


def spoken(world, name):
    entry = world.health()[name]
    transport, version = EXPECTED[name]
    equal(entry["transport"], transport, "transport")
    if version:
        equal(entry["protocol_version"], version, "protocol version")
    assert entry["tools"] >= len(TOOLS[name]), f"/health counts {entry['tools']} tools"


# ---- Called ---------------------------------------------------------------------------------------------------------


def everything(world, name):
    told = loop(world, call(f"{name}__echo", message="grüße ☀️"), call(f"{name}__get-sum", a=2, b=3))
    equal(told, ["Echo: grüße ☀️", "The sum of 2 and 3 is 5."], "results")


def everything_contents(world):
    picture, structured, links, resource = loop(
        world,
        call("everything__get-tiny-image"),
        call("everything__get-structured-content", location="Chicago"),
        call("everything__get-resource-links", count=2),
        call("everything__get-resource-reference", resourceType="Text", resourceId=1),
    )
    assert "image" in picture and "iVBOR" not in picture, f"picture: {picture[:300]}"
    assert {"temperature", "conditions", "humidity"} <= set(json.loads(structured)), structured
    assert "demo://resource/dynamic/" in links, links
    assert "This is a plaintext resource" in resource, resource


def filesystem(world):
    path = str(world.files / "note.txt")
    tag, text = plan(
        round_of(calls=[call("filesystem__write_file", path=path, content="eins\nzwei\n")]),
        round_of(
            calls=[
                call("filesystem__list_directory", path=str(world.files)),
                call("filesystem__read_text_file", path=path),
            ]
        ),
        FINAL,
    )
    told = [content for _, content in results(world.chat(text))]
    equal((world.files / "note.txt").read_text(), "eins\nzwei\n", "the file")
    equal(told[1:], ["[FILE] note.txt", "eins\nzwei\n"], "results")


def filesystem_outside(world):
    [told] = loop(world, call("filesystem__read_text_file", path="/etc/hostname"))
    error = json.loads(told)["error"]
    equal(error["type"], "tool_error", "type of the error")
    assert "outside allowed directories" in error["message"], error


def time_zones(world):
    [told] = loop(
        world, call("time__convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
    )
    equal(json.loads(told)["time_difference"], "+9.0h", "difference")


def modern(world):
    upper, weather, picture, failure = loop(
        world,
        call("modern__upper", text="straße"),
        call("modern__weather", city="Oslo"),
        call("modern__picture"),
        call("modern__fail", why="no more pixels"),
    )
    equal(upper, "STRASSE", "text")
    equal(json.loads(weather), {"city": "Oslo", "celsius": 21}, "structured content")
    assert "image" in picture and "iVBOR" not in picture, f"picture: {picture[:300]}"
    error = json.loads(failure)["error"]
    assert error["type"] == "tool_error" and "no more pixels" in error["message"], error


def side_by_side(world):
    started = time.monotonic()
    calls = [call("modern__slow", sign=f"side-{n}", seconds=1) for n in range(4)]
    equal(loop(world, *calls), [f"side-{n} is finished" for n in range(4)], "results")
    took = time.monotonic() - started
    assert took < 3, f"four calls of one second took {took:.1f} s"


# ---- Lost and found -------------------------------------------------------------------------------------------------


def pid_of(world, *words):
    """The one process below the gateway whose command line has all the words; not the one of toolway that started it."""
    below = descendants(world.gateway.child.pid)
    programs = {pid: line for pid, line in below.items() if not line.startswith("toolway __child")}
    found = [pid for pid, line in programs.items() if all(word in line for word in words)]
    assert len(found) == 1, f"processes with {words}: {found} among {below}"
    return found[0]


def killed_in_call(world):
    """The call in flight fails at once, another server's call goes on, and the server is back."""
    victim, told = pid_of(world, "modern.py", "fragile"), []
    calls = [call("fragile__slow", sign="victim", seconds=20), call("modern__slow", sign="witness", seconds=1)]
    chat = threading.Thread(target=lambda: told.extend(loop(world, *calls)))
    chat.start()
    until((world.signs / "victim.started").exists, "the call runs", 10)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    chat.join(20)
    assert len(told) == 2, f"the chat brought no answer: {told}"
    took = time.monotonic() - killed
    assert took < 5, f"the chat went on for {took:.1f} s after the kill"
    error = json.loads(told[0])["error"]
    equal(error["type"], "upstream_unavailable", "type of the error")
    equal(told[1], "witness is finished", "the other server's result")
    back(world, "fragile", lambda: equal(loop(world, call("fragile__upper", text="back")), ["BACK"], "result"))
    assert pid_of(world, "modern.py", "fragile") != victim


def killed_when_idle(world):
    """The program behind `npx` is killed; the server is started again, with no part of the old one left."""
    pids = [pid for pid, line in descendants(world.gateway.child.pid).items() if "mcp-server-everything" in line]
    assert pids, "nothing runs behind npx"
    os.kill(max(pids), signal.SIGKILL)
    back(world, "everything", lambda: everything(world, "everything"))
    until(lambda: not [pid for pid in pids if is_running(pid)], "nothing of the old family runs", 10)


def restarted(world, name, process):
    """The session is gone with the old process; the gateway makes a new one."""
    port = process.address().rpartition(":")[2]
    process.end(signal.SIGKILL)
    process.env["PORT"] = port
    process.start()
    process.address()
    back(world, name, lambda: everything(world, name))


def back(world, name, works):
    """Its calls work again, and `/health` says so; until then a call fails in words that the model can read."""
    whys = []

    def tried():
        try:
            works()
        except AssertionError as failure:
            whys.append(failure)
            return False
        return world.health()[name]["state"] == "ready"

    try:
        until(tried, f"`{name}` is back", 20, pause=0.2)
    except TimeoutError as failure:
        raise AssertionError(f"{failure}; the last call: {whys[-1:]}; /health: {world.health()[name]}") from None


# ---- The end --------------------------------------------------------------------------------------------------------


def nothing_is_left(world):
    """SIGTERM ends the gateway well, and no child or grandchild of it lives on."""
    before = {**descendants(world.gateway.child.pid), **marked(world.mark)}
    assert len(before) >= 5, f"too few children to tell: {before}"
    code = world.gateway.end(seconds=15)
    equal(code, 0, "exit code after SIGTERM (None: it had to be killed)")
    left = lambda: {**{p: line for p, line in before.items() if is_running(p)}, **marked(world.mark)}
    try:
        until(lambda: not left(), "all children are gone", 5)
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)
