"""The trials. Each gives whether all went as it should, and its figures as a text.

`scale` makes them shorter: 1 is the whole trial, 0.1 a tenth of its requests.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from client import Gateway, Watch
from http2 import withhold
from peers import LateModel, Model, Tools

CHILD = Path(__file__).with_name("child.py")
MEMORY = 400  # Most MiB that one body of an allowed size may cost.
MIB = 1 << 20
MOST_WRONG = 3  # Answers of a server that sends stray bytes, before that shows.


def config(model=None, tools=None, more=""):
    parts = [more]
    if model:
        parts.append(f'[[upstreams]]\nname = "model"\nbase_url = "{model.url}/v1"\n')
    if tools:
        parts.append(f'[servers.peer]\nurl = "{tools.url}/mcp"\n')
    return "\n".join(parts)


async def peers():
    return await Model().start(), await Tools().start()


# ---- Availability -----------------------------------------------------------------------------------------------------


async def stalled_log(binary, scale):
    """Nobody reads the log of `serve`: every loop is answered, and SIGTERM ends it."""
    model, tools = await peers()
    total = int(2000 * scale)
    async with Gateway(binary, config(model, tools), read_log=False) as gateway:
        await gateway.until_ready()
        right = await gateway.loops(total)
        gateway.signal(signal.SIGTERM)
        ended = await gateway.ended(20)
    return right == total and ended is not None, f"{right} of {total} loops right, ended after {show(ended)}"


async def stalled_log_mcp(binary, scale):
    """Nobody reads the log of `toolway mcp` while calls fail: it answers them, and ends with its input or SIGTERM."""
    results = []
    for how in ["end of input", "SIGTERM"]:
        _, tools = await peers()
        async with Gateway(binary, config(tools=tools), ("mcp",), read_log=False) as gateway:
            pipe = gateway.process
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            await ask(pipe, 0, "initialize", hello)
            pipe.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            failing = {"name": "peer__run", "arguments": {"key": "k", "status": 500}}
            answered = 0
            for number in range(1, 1 + int(1000 * scale)):
                answered += await ask(pipe, number, "tools/call", failing) is not None
            if how == "SIGTERM":
                gateway.signal(signal.SIGTERM)
            else:
                pipe.stdin.close()
            ended = await gateway.ended(15)
            results.append((answered == int(1000 * scale) and ended is not None, how, answered, ended))
    said = [f"{answered} calls answered, ended after {show(ended)} by {how}" for _, how, answered, ended in results]
    return all(result[0] for result in results), "; ".join(said)


async def ask(pipe, number, method, params):
    """The answer to one request over a pipe; `None` where there was none in time."""
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    pipe.stdin.write(json.dumps(message).encode() + b"\n")
    try:
        async with asyncio.timeout(10):
            while line := await pipe.stdout.readline():
                if json.loads(line).get("id") == number:
                    return line
    except TimeoutError:
        pass
    return None


async def dense_bodies(binary, scale):
    """Bodies of an allowed size that are many small JSON values: memory is bounded and `/health` answers."""
    size = int(31 * MIB * max(scale, 0.3))
    values = b"[" + b'{"a":0},' * (size // 8) + b"0]"
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    lend = json.dumps({"tools": [function]}).encode()
    chat = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[' + b"{}," * (size // 3) + b"{}]}"
    message = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"l":' + values + b"}}"
    model, tools = await peers()

    async def lent(gateway):
        _, session = await gateway.request("POST", "/v1/mcp_sessions", lend)
        session = json.loads(session)
        return session["id"], "/mcp/s/" + session["url"].rsplit("/", 1)[1]

    async def by_url(gateway):
        _, path = await lent(gateway)
        await asyncio.gather(*(gateway.request("POST", path, message, accept=BOTH) for _ in range(2)))

    async def by_responses(gateway):
        session, _ = await lent(gateway)
        body = b'{"tool_responses":' + values + b"}"
        await gateway.request("POST", f"/v1/mcp_sessions/{session}/tool_responses", body)

    async def by_result(gateway):
        await gateway.call("peer__dense", {"bytes": size // 2})

    ways = {
        "/mcp": lambda gateway: gateway.request("POST", "/mcp", message, accept=BOTH),
        "a batch": lambda gateway: gateway.request("POST", "/mcp", values, accept=BOTH),
        "two with a lent URL": by_url,
        "tool_responses": by_responses,
        "tools of a chat": lambda gateway: gateway.request("POST", "/v1/chat/completions", chat),
        "a result": by_result,
    }
    fine, said = True, []
    for name, way in ways.items():
        async with Gateway(binary, config(model, tools)) as gateway:
            await gateway.until_ready()
            async with Watch(gateway) as health:
                try:
                    await asyncio.wait_for(way(gateway), 60)
                except (OSError, ValueError, KeyError, asyncio.TimeoutError) as error:
                    said.append(f"{name}: {error!r}")
            right = await gateway.adds(1)
            fine &= gateway.peak() <= MEMORY and health.slowest <= 2 and right
            said.append(f"{name} {gateway.peak()} MiB, /health {health.slowest:.2f} s")
    return fine, "; ".join(said)


BOTH = "application/json, text/event-stream"


async def unfinished_bodies(binary, scale):
    """Sixty bodies of 30 MB that do not end."""
    model, tools = await peers()
    async with Gateway(binary, config(model, tools)) as gateway:
        await gateway.until_ready()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {30 * MIB + 1}\r\n\r\n"
        writers = [(await asyncio.open_connection("127.0.0.1", gateway.port))[1] for _ in range(60)]

        async def send(writer):
            try:
                writer.write(head.encode())
                for _ in range(30):
                    writer.write(b" " * MIB)
                    await asyncio.wait_for(writer.drain(), 5)
            except (OSError, asyncio.TimeoutError):
                pass

        async with Watch(gateway) as health:
            await asyncio.gather(*(send(writer) for writer in writers))
            right = await gateway.loops(int(200 * scale))
        peak = gateway.peak()
        for writer in writers:
            writer.close()
    total = int(200 * scale)
    fine = peak <= 600 and right == total and health.slowest <= 2
    return fine, f"{peak} MiB, {right} of {total} loops right, /health {health.slowest:.2f} s"


async def few_files(binary, scale):
    """A soft limit of 1,024 open files, and more streams than that."""
    model, tools = await peers()
    total, side_by_side = 1200 + int(1800 * scale), 1200
    # So that no call is refused as one too many for the server.
    config_text = config(model, tools) + "parallel_calls = 1000\n"
    async with Gateway(binary, config_text, files=1024) as gateway:
        await gateway.until_ready()
        right = await gateway.loops(total, side_by_side)
    return right == total, f"{right} of {total} loops right, {side_by_side} side by side"


async def dripping(binary, scale):
    """Clients that send a byte in two seconds, of a head or of a body, while others chat."""
    model, tools = await peers()
    heads, bodies = int(6000 * scale), int(4096 * scale)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    gone = 0

    async def drip(start, seconds):
        nonlocal gone
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(start)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                writer.write(b" ")
                await writer.drain()
                try:
                    await asyncio.wait_for(reader.read(1), 2)
                    gone += 1
                    return writer.close()
                except asyncio.TimeoutError:
                    pass
            writer.close()
        except OSError:
            gone += 1

    async with Gateway(binary, config(model, tools)) as gateway:
        await gateway.until_ready()
        whole = scale >= 1
        seconds = 50 if whole else 16
        starts = [head + b"x: "] * heads + [head + b"content-length: 9999\r\n\r\n{"] * bodies
        drips = [asyncio.create_task(drip(start, seconds)) for start in starts]
        await asyncio.sleep(3)
        async with Watch(gateway) as health:
            right = await gateway.loops(200)
        await asyncio.gather(*drips)
    expected = heads + bodies if whole else heads
    fine = right == 200 and health.slowest <= 5 and gone >= expected
    said = f"{right} of 200 loops right, /health {health.slowest:.2f} s, {gone} of {heads + bodies} closed in {seconds} s"
    return fine, said


async def no_window(binary, scale):
    """HTTP/2 clients that never open their window: their model calls end all the same, after a minute."""
    model, tools = await peers()
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "talk"}]}).encode()
    connections, streams = max(1, int(20 * scale)), 50
    async with Gateway(binary, config(model, tools)) as gateway:
        await gateway.until_ready()
        begun = time.monotonic()
        clients = [asyncio.create_task(withhold(gateway.port, body, streams, 120)) for _ in range(connections)]
        await asyncio.sleep(2)
        opened, right = model.open, await gateway.loops(100)
        while model.open and time.monotonic() < begun + 100:
            await asyncio.sleep(0.5)
        left, took = model.open, time.monotonic() - begun
        for client in clients:
            client.cancel()
    said = f"{opened} model calls, {left} left after {took:.0f} s, {right} of 100 loops right meanwhile"
    return opened > 0 and left == 0 and right == 100, said


# ---- Exactly once, no orphans, no loss ----------------------------------------------------------------------------------


async def doubles(binary, scale):
    """A tool runs, and its server or a proxy answers with an error all the same: it is not run again."""
    model, tools = await peers()
    # 425 and 429 say that the call was not carried out (RFC 8470, RFC 6585): it is made once more after a pause.
    statuses = [400, 403, 408, 409, 413, 422, 424, 499, 500, 502, 503, 504]
    async with Gateway(binary, config(model, tools)) as gateway:
        await gateway.until_ready()
        keys = [(status, f"{status}-{n}") for status in statuses for n in range(max(1, int(10 * scale)))]
        for status, key in keys:
            await gateway.call("peer__run", {"key": key, "status": status})
    twice = sorted({status for status, key in keys if tools.runs[key] > 1})
    return not twice, f"{len(keys)} calls, {sum(tools.runs.values())} runs; run again at: {twice or 'none'}"


async def orphans(binary, scale):
    """However the gateway ends, none of its children is left, nor a child of one."""
    rounds = max(1, int(15 * scale))
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    left = []
    for _ in range(rounds):
        ended = await asyncio.gather(*(end_by(binary, number) for number in signals))
        left += [what for what in ended if what]
    trials = rounds * len(signals)
    return not left, f"{trials - len(left)} of {trials} trials clean{'; ' + ', '.join(left[:4]) if left else ''}"


async def end_by(binary, number):
    """Ends a gateway with three servers by this signal; what was wrong, or nothing."""
    mark = f"chaos-{number.name}-{time.time_ns()}"
    servers = [
        f"[servers.{kind}]\ncommand = {json.dumps(sys.executable)}\n"
        f'args = [{json.dumps(str(CHILD))}, "{kind}", "{mark}"]\n'
        for kind in ["plain", "stubborn", "escaping"]
    ]
    async with Gateway(binary, config(more="\n".join(servers))) as gateway:
        await gateway.until_ready()
        started = len(marked(mark))
        gateway.signal(number)
        ended = await gateway.ended(20)
    rest = await rest_of(mark)
    is_clean = not rest and ended is not None and started >= 4
    return "" if is_clean else f"{number.name}: {len(rest)} of {started}, ended after {show(ended)}"


def marked(mark):
    """The processes that have this text among their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


async def stopping(binary, scale):
    """SIGTERM in the middle of streams: each ends with an error event, and none in the middle of an event."""
    model, tools = await peers()
    streams = int(200 * scale)
    async with Gateway(binary, config(model, tools, 'shutdown_grace = "2s"\n')) as gateway:
        await gateway.until_ready()
        chats = [asyncio.create_task(gateway.chat("talk", stream=True)) for _ in range(streams)]
        while model.open < streams:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        gateway.signal(signal.SIGTERM)
        ended = await gateway.ended(20)
        answers = await asyncio.gather(*chats)
    whole = sum(body.endswith(b"\n\n") for _, body in answers)
    told = sum(b'data: {"error"' in body for _, body in answers)
    said = f"{streams} streams, {whole} end with a whole event, {told} with an error, ended after {show(ended)}"
    return whole == told == streams and ended is not None, said


async def late_bytes(binary, scale):
    """Bytes that arrive on a kept connection after an answer are not the answer of the next request.

    Those that cross the next request on the wire cannot be told from its answer, until the server has shown itself.
    """
    chance = random.Random(1)
    model = await LateModel(lambda: chance.choice([0, 0.0002, 0.0005, 0.001, 0.002])).start()
    total = int(3000 * scale)
    wrong = failed = 0

    async def lane(numbers):
        nonlocal wrong, failed
        for number in numbers:
            status, body = await gateway.chat(f"say {number}")
            failed += status != 200
            wrong += status == 200 and f"heard say {number}".encode() not in body

    async with Gateway(binary, config(model)) as gateway:
        numbers = iter(range(total))
        await asyncio.gather(*(lane(numbers) for _ in range(4)))
    said = f"{total} requests, {wrong} got the wrong answer, {failed} an error"
    return wrong <= MOST_WRONG and failed == 0, said


async def killed_turns(binary, scale):
    """`kill -9` between the two halves of mixed turns: each goes on, and no call runs twice."""
    model, tools = await peers()
    data = Path(tempfile.mkdtemp(prefix="toolway-chaos-"))
    total, side_by_side = int(1000 * scale), 20
    waiting, numbers, broken = {}, itertools.count(), 0
    right = wrong = kills = 0
    while right + wrong < total:
        async with Gateway(binary, config(model, tools), data=data) as gateway:
            await gateway.until_ready()
            said = await asyncio.gather(*(gateway.second_half(history) for history in waiting.values()))
            expected = [f"results: ran, confirmed {number}" for number in waiting]
            good = sum(a == b for a, b in zip(said, expected))
            right, wrong = right + good, wrong + len(said) - good
            halves = {n: asyncio.create_task(gateway.first_half(n, n % 2 == 1)) for n in itertools.islice(numbers, side_by_side)}
            # The last few are under way when it is killed.
            ended = asyncio.as_completed(halves.values())
            for half in itertools.islice(ended, side_by_side - random.randrange(4)):
                await half
            gateway.process.kill()
            kills += 1
            histories = await asyncio.gather(*halves.values())
            waiting = {number: history for number, history in zip(halves, histories) if history}
            broken += side_by_side - len(waiting)
    doubles = sum(runs > 1 for key, runs in tools.runs.items())
    figures = f"{right} of {right + wrong} turns went on after {kills} kills, {broken} were cut off before, {doubles} calls ran twice"
    return wrong == 0 and doubles == 0, figures


async def killed_approvals(binary, scale):
    """`kill -9` of the gateway or of a server around approve, execute and answer: nothing is lost, or made twice, or left."""
    kills, seed = int(500 * scale), random.randrange(1 << 32)
    found = await asyncio.gather(*(approvals_with_kills(binary, kills, seed + at) for at in range(2)))
    done, wrong, twice, left = (sum(lists, []) for lists in zip(*found))
    figures = f"{2 * kills} kills, {len(done)} calls ({dict(Counter(it.end for it in done))}): "
    figures += f"{len(wrong)} lost, {len(twice)} ran twice, {len(left)} processes left"
    if wrong or twice:
        figures += f"; seed {seed}, {[vars(it) for it in wrong[:3]]}, {twice[:3]}"
    return not wrong and not twice and not left, figures


async def approvals_with_kills(binary, kills, seed):
    """The calls that came to an end, those of them that were lost, the keys that ran twice, and the processes left."""
    chance, numbers = random.Random(seed), itertools.count()
    folder = Path(tempfile.mkdtemp(prefix="toolway-chaos-"))
    mark, runs = f"chaos-{seed}-{time.time_ns()}", folder / "runs"
    runs.touch()
    config_text = ASKING + (
        f"[servers.child]\ncommand = {json.dumps(sys.executable)}\n"
        f'args = [{json.dumps(str(CHILD))}, "counting", "{mark}", {json.dumps(str(runs))}]\n'
    )
    waiting = [Approval(next(numbers)) for _ in range(4)]
    done, left = [], []
    for kill in range(kills + 1):
        steps = chance.randrange(1, 24)  # Answers until the kill.
        is_last, of_server = kill == kills, chance.random() < 0.3

        async def lane(gateway, approval):
            """Makes calls until the gateway is gone; gives the call that was then under way."""
            nonlocal steps
            while steps > 0 or is_last:
                steps -= 1
                try:
                    await asyncio.wait_for(approval.step(gateway), 20)
                except (OSError, ValueError):
                    break  # The client does not know how far it came.
                if approval.end:
                    done.append(approval)
                    approval = Approval(next(numbers))
                    if is_last:
                        break
            return approval

        async with Gateway(binary, config_text, data=folder / "data") as gateway:
            await gateway.until_ready()
            lanes = [asyncio.create_task(lane(gateway, approval)) for approval in waiting]
            while not is_last and steps > 0:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0 if is_last else chance.random() / 200)
            if of_server and not is_last:
                end_all(marked(mark))
            elif not is_last:
                gateway.process.kill()
                await gateway.process.wait()
            waiting = await asyncio.gather(*lanes)
        left += await rest_of(mark)
    counts = Counter(int(key) for key in runs.read_text().split())
    wrong = [approval for approval in done if approval.is_wrong(counts[approval.key])]
    return done, wrong, [key for key, count in counts.items() if count > 1], left


ASKING = """
[approvals]
chat = "end_turn"
[[policy.rules]]
tools = ["child__*"]
action = "ask"
"""


class Approval:
    """A call that has to be approved, as its client knows it; half of them over REST, half over `/v1/tool_calls`."""

    def __init__(self, key):
        self.key, self.is_rest = key, key % 2 == 0
        self.id = None  # Of the confirmation.
        self.tried = False  # A request that may have made the call got no answer.
        self.approved = False
        self.end = None  # "ran", "failed", "lost", or "unknown": it was begun, and its answer did not come.

    async def step(self, gateway):
        arguments = {"key": str(self.key)}
        if self.tried:
            return await self.look(gateway)
        if self.id is None:
            return await self.ask(gateway, arguments)
        if not self.is_rest and self.approved:
            return await self.call(gateway, arguments)
        self.tried = True
        status, body = await gateway.request("POST", f"/confirmations/{self.id}", b'{"confirm": true}')
        self.tried = False
        if status != 200:
            self.end = "failed" if status == 500 else "lost"
        elif self.is_rest:
            self.end = "ran" if b'"ran"' in body else "failed"
        else:
            self.approved = True

    async def ask(self, gateway, arguments):
        if self.is_rest:
            body = json.dumps(arguments).encode()
            _, answer = await gateway.request("POST", "/servers/child/tools/t", body)
            answer = json.loads(answer)
        else:
            answer = (await self.send(gateway, arguments))["error"]
        self.id = answer.get("confirmation_id")  # None while the server starts again.

    async def call(self, gateway, arguments):
        self.tried = True
        answer = await self.send(gateway, arguments)
        self.tried = False
        error = answer.get("error") if isinstance(answer, dict) else None
        if not error:
            self.end = "ran"
        else:
            self.end = "lost" if error.get("waiting_for_approval") else "failed"

    async def send(self, gateway, arguments):
        call = {"id": "call_1", "type": "function", "function": {"name": "child__t", "arguments": json.dumps(arguments)}}
        _, answer = await gateway.request("POST", "/v1/tool_calls", json.dumps({"tool_calls": [call]}).encode())
        return json.loads(answer)["tool_responses"][0]["output"]

    async def look(self, gateway):
        """What the list says after an answer that did not come."""
        status, body = await gateway.request("GET", f"/confirmations/{self.id}")
        state = json.loads(body).get("state") if status == 200 else None
        self.tried = False
        if state == "used":
            self.end = "unknown"
        elif state == "approved" and not self.is_rest:
            self.approved = True
        elif state != "pending":
            self.end = "lost"

    def is_wrong(self, count):
        """Its end does not fit the number of times that it ran."""
        return self.end == "lost" or (self.end == "ran") > count or count > 1


async def rest_of(mark):
    """The processes that are left a while after their gateway; they are ended."""
    for _ in range(40):
        if not marked(mark):
            return []
        await asyncio.sleep(0.05)
    return end_all(marked(mark))


def end_all(processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return processes


def show(seconds):
    return "never" if seconds is None else f"{seconds:.1f} s"


ALL = [
    stalled_log, stalled_log_mcp, dense_bodies, unfinished_bodies, few_files, dripping, no_window,
    doubles, orphans, stopping, late_bytes, killed_turns, killed_approvals,
]  # fmt: skip
SLOW = [no_window]  # However few requests there are.
