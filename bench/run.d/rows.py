"""What is measured: each row gives some lines of the table."""

import json
import socket
import statistics
import time

import gateways
import machine
from measure import Contender, Run
from table import Line

CHAT = "/v1/chat/completions"
QUESTION = {"role": "user", "content": "What does a gateway add?"}
PLAIN = {"model": "plain", "messages": [QUESTION]}
PLAIN_SAYS = "nobody notices"
WORD = '"content":" word"'
NO_TOOLS = ["x-toolway-tools: none"]
THREE = {"mcp": "/mcp", "tools": 3}
HELD = 500
HISTORY = 1_000_000  # Bytes.
LONGEST_BODY = 31 << 20
WRITING = 900  # Milliseconds.
TOLERANCE = 1.1  # "No cost": what two runs of the same thing may differ by.

ROWS = {}


def row(function):
    ROWS[function.__name__] = function
    return function


# ---- Plain requests -------------------------------------------------------------------------------------------------


@row
def plain(bench):
    """requests that no tool applies to: CPU, rate, latency"""
    with bench.toolway(**THREE) as toolway:
        ways = [bench.direct, bench.nginx, toolway]
        runs = {c: bench.rounds(f"plain c={c}", [chat(way, PLAIN, c, NO_TOOLS) for way in ways]) for c in (1, 16, 64)}
    lines = [cpu_line("plain", f"CPU per 1000 plain requests, c={c}", *runs[c][1:], most=2.0) for c in (16, 64)]
    _, nginx, toolway = runs[64]
    lines.append(
        Line("plain", "plain requests per second, c=64", toolway["per_second"], "/s", nginx["per_second"], least=0.55)
    )
    _, nginx, toolway = runs[1]
    added = "added_p50_us"
    lines.append(Line("plain", "added p50, c=1", toolway[added], "µs", nginx[added], most=1.3))
    return lines


@row
def tls(bench):
    """plain requests to a model over TLS, connections kept: CPU"""
    with bench.tls_model() as (port, certificate):
        nginx = bench.start_nginx(model=port, certificate=certificate)
        upstream = {"name": "mock", "base_url": f"https://127.0.0.1:{port}/v1"}
        with bench.toolway(**THREE, upstreams=[upstream], trust=certificate) as toolway:
            runs = [chat(way, PLAIN, 16, NO_TOOLS) for way in (nginx, toolway)]
            found = bench.rounds("plain over TLS c=16", runs)
            runs = [streamed(way, 100, 1, 16, NO_TOOLS) for way in (nginx, toolway)]
            streams = bench.rounds("100 chunks over TLS c=16", runs)
        bench.processes.end(nginx.process)
    return [
        cpu_line("tls", "CPU per 1000 plain requests to a model over TLS, c=16", *found, most=2.5),
        cpu_line("tls", "CPU per 1000 streams of 100 chunks from a model over TLS, c=16", *streams, most=2.0),
    ]


@row
def tools(bench):
    """requests with 3 and with 50 tools offered to the model: CPU"""
    with bench.toolway(**THREE) as toolway:
        lines = [offered_line(bench, toolway, 3, c) for c in (16, 64)]
    with bench.toolway(mcp="/mcp/50", tools=50) as toolway:
        lines += [offered_line(bench, toolway, 50, c, most=3.0) for c in (16, 64)]
        # What of it is the bytes: nginx gets them from the client, toolway adds them.
        body = {**PLAIN, "tools": openai_tools(bench, toolway)}
        runs = [chat(bench.nginx, body, 16, note="sent 50 tools"), chat(toolway, PLAIN, 16)]
        found = bench.rounds("50 tools, the same bytes sent c=16", runs)
        lines.append(cpu_line("tools", "the same against nginx with the tools in its request, c=16", *found))
    return lines


def offered_line(bench, toolway, tools, c, **bounds):
    offered = bench.count(toolway, PLAIN)["tools"]
    bench.demand(offered == tools, f"the model is offered {offered} tools in place of {tools}")
    found = bench.rounds(f"{tools} tools c={c}", [chat(bench.nginx, PLAIN, c), chat(toolway, PLAIN, c)])
    return cpu_line("tools", f"CPU per 1000 requests with {tools} tools offered, c={c}", *found, **bounds)


@row
def history(bench):
    """a chat with 1 MB of history: CPU"""
    body = long_chat()
    file = bench.folder / "history.json"
    file.write_text(json.dumps(body))
    with bench.toolway(**THREE) as toolway:
        for way, headers in [(bench.nginx, ()), (toolway, NO_TOOLS), (toolway, ())]:
            counted = bench.count(way, body, headers)
            whole = counted["messages"] == len(body["messages"]) and counted["bytes"] >= HISTORY
            bench.demand(whole, f"history, {way.name}: the model got {counted}")
        runs = [
            chat(bench.nginx, file, 4, NO_TOOLS),
            chat(bench.nginx, file, 4, NO_TOOLS, path=f"/buffered{CHAT}", note="buffering"),
            chat(toolway, file, 4, NO_TOOLS, note="no tool"),
            chat(toolway, file, 4, note="3 tools"),
        ]
        nginx, buffering, without, offered = bench.rounds("1 MB of history c=4", runs)
    what = "CPU per 1000 chats of 1 MB"
    return [
        cpu_line("history", f"{what}, no tool, c=4", nginx, without, most=3.0),
        cpu_line("history", f"{what}, 3 tools offered, c=4", nginx, offered, most=3.0),
        cpu_line("history", "the same against nginx that buffers requests, no tool", buffering, without),
    ]


@row
def catalog(bench):
    """1,000 tools in the catalog, against 3 and the same bytes sent: CPU"""
    with bench.toolway("3 in the catalog", **THREE) as few, bench.toolway(
        "1000 in the catalog", mcp="/mcp/1000", tools=1000
    ) as many:
        none = bench.rounds("none offered c=16", [chat(way, PLAIN, 16, NO_TOOLS) for way in (few, many)])
        wanted = bench.count(many, PLAIN)
        # Six, so that none of the descriptions is so long that toolway cuts it.
        with bench.toolway("6 in the catalog", mcp="/mcp/6", tools=6) as six:
            padding = wanted["bytes"] - bench.count(six, PLAIN)["bytes"]
        with bench.toolway("6 in the catalog", mcp=f"/mcp/6/{padding}", tools=6) as big:
            sent = bench.count(big, PLAIN)
            same = wanted["tools"] == 128 and abs(sent["bytes"] - wanted["bytes"]) < wanted["bytes"] / 100
            bench.demand(same, f"the model got {sent} in place of {wanted}")
            offered = bench.rounds("128 offered c=16", [chat(way, PLAIN, 16) for way in (big, many)])
    return [
        cpu_line("catalog", f"1,000 tools in the catalog, {what}, c=16", *found, most=TOLERANCE, against="few tools")
        for what, found in [("none offered", none), ("128 offered", offered)]
    ]


# ---- Streams --------------------------------------------------------------------------------------------------------


@row
def stream(bench):
    """the first chunk of a stream, and the CPU of streams whose chunks come one by one"""
    with bench.toolway(**THREE) as toolway:
        ways = [
            (bench.direct, NO_TOOLS, ""),
            (bench.nginx, NO_TOOLS, ""),
            (toolway, NO_TOOLS, "no tool"),
            (toolway, (), "3 tools"),
        ]
        first = bench.rounds("first chunk c=1", [streamed(way, 3, 2, 1, h, note=note) for way, h, note in ways])
        paced = bench.rounds("100 chunks c=16", [streamed(way, 100, 1, 16, h, note=note) for way, h, note in ways[1:]])
    lines = []
    for what, at in [("no tool", -2), ("3 tools offered", -1)]:
        added = first[at]["added_first_p50_us"], "µs", first[1]["added_first_p50_us"]
        lines.append(Line("stream", f"first chunk of a stream, added, {what}, c=1", *added, most=1.5))
    for what, at in [("no tool", -2), ("3 tools offered", -1)]:
        about = f"CPU per 1000 streams of 100 chunks, {what}, c=16"
        lines.append(cpu_line("stream", about, paced[0], paced[at], most=2.0))
    return lines


@row
def memory(bench):
    """what is resident: idle, for each open stream, after load"""
    fresh = bench.start_nginx()
    with bench.toolway(**THREE) as toolway:
        time.sleep(min(1.0, bench.options.secs))
        idle = [way.process.memory() for way in (fresh, toolway)]
        held = []
        for way in (fresh, toolway):
            bench.once("a few requests", chat(way, PLAIN, 1), bench.options.warm_up, warm_up=True)
            held.append(bench.hold(f"{HELD} streams", streamed(way, 600, 1000, HELD, mode="hold"), HELD))
        loads = [run for way in (fresh, toolway) for run in (chat(way, PLAIN, 256), streamed(way, 100, 1, 64))]
        for run in [*loads, looped(toolway, 64, False)]:
            bench.once("load", run, bench.options.secs, warm_up=True)
        time.sleep(min(1.0, bench.options.secs))
        after = [way.process.memory() for way in (fresh, toolway)]
    bench.processes.end(fresh.process)
    mib = 1 << 20
    absolute = {"absolute": True}
    return [
        Line("memory", f"memory per open stream, {HELD} open", held[1], "KB", held[0], most=20, **absolute),
        Line("memory", "memory, idle", idle[1] / mib, "MB", idle[0] / mib, most=20, **absolute),
        Line("memory", "memory, after load", after[1] / mib, "MB", after[0] / mib, most=40, **absolute),
    ]


@row
def body(bench):
    """one request of 31 MiB with as many values as toolway takes: memory at its peak"""
    file = bench.folder / "many-values.json"
    file.write_text(json.dumps(many_values(), separators=(",", ":")))
    length = file.stat().st_size
    bench.demand(LONGEST_BODY - (1 << 20) < length < LONGEST_BODY + (1 << 20), f"the body has {length} bytes")
    asked = [
        ("no tool", NO_TOOLS, CHAT, 40),
        ("3 tools offered", (), CHAT, 40),
        ("translated from Messages", (), "/v1/messages", 300),
    ]
    lines = []
    for what, headers, path, most in asked:
        with bench.toolway(**THREE) as toolway:
            bench.once("a few requests", chat(toolway, PLAIN, 1), bench.options.warm_up, warm_up=True)
            time.sleep(min(1.0, bench.options.secs))
            peak = bench.peak("31 MiB of small values", chat(toolway, file, 1, headers, path, what))
        about = f"peak memory above idle, one request of 31 MiB with 500,000 values, {what}"
        lines.append(Line("body", about, peak / (1 << 20), "MB", most=most, absolute=True))
    return lines


# ---- Tools ----------------------------------------------------------------------------------------------------------


@row
def loop(bench):
    """the tool loop (two turns of the model, one call), against a client that does it all"""
    lines = []
    with bench.toolway(**THREE) as toolway:
        for what, streams in [("plain", False), ("streamed", True)]:
            server = f"http://127.0.0.1:{bench.server}/mcp"
            alone = {"workers": 16, "mcp": server, "streamed": "yes" if streams else "no"}
            floor, through = bench.rounds(
                f"tool loop, {what} c=16",
                [Run(bench.direct, "loop", CHAT, alone), looped(toolway, 16, streams)],
            )
            rates = through["per_second"], "/s", floor["per_second"]
            lines.append(Line("loop", f"tool loops per second, {what}, c=16", *rates, against="floor", least=0.45))
    return lines


@row
def mcp(bench):
    """one tools/call through /mcp: to an MCP server, and to functions behind an HTTP server"""
    server = f"http://127.0.0.1:{bench.server}"
    backends = [
        ("an MCP server", "bench__echo", THREE, {}),
        ("a function with `url`", "api__echo", {"functions": {"url": f"{server}/functions/{{function}}"}, "tools": 1},
         {"most": 2.5, "least": 0.5}),
        ("a function with `endpoint`", "api__echo", {"functions": {"endpoint": f"{server}/tool_calls"}, "tools": 1},
         {"most": 2.5, "least": 0.5}),
    ]  # fmt: skip
    lines = []
    for what, tool, backend, bounds in backends:
        with bench.toolway(**backend) as toolway:
            lines += mcp_lines(bench, toolway, what, tool, bounds)
    return lines


def mcp_lines(bench, toolway, what, tool, bounds):
    floor = Contender("floor", f"http://127.0.0.1:{bench.server}")
    through = Run(toolway, "mcp", "/mcp", {"workers": 16, "tool": tool})
    size = bench.once("how long a result is", through, bench.options.warm_up, warm_up=True).get("bytes_per_reply") or 0
    same = {"workers": 16, "tool": tool, "handshake": "no"}
    floor, nginx, found = bench.rounds(
        f"tools/call, {what}",
        [
            Run(floor, "mcp", "/mcp", {"workers": 16, "tool": "echo"}),
            Run(bench.nginx, "mcp", f"/rpc/{size}", same),
            through,
        ],
    )
    bench.demand(
        nginx["bytes_per_reply"] == found["bytes_per_reply"] == size,
        f"tools/call, {what}: replies of {nginx['bytes_per_reply']}, {found['bytes_per_reply']}, {size} bytes",
    )
    line = cpu_line("mcp", f"CPU per 1000 `tools/call` to {what}, c=16", nginx, found, most=bounds.get("most"))
    rates = found["per_second"], "/s", floor["per_second"]
    return [
        line,
        Line("mcp", f"`tools/call` per second to {what}, c=16", *rates, against="floor", least=bounds.get("least")),
    ]


@row
def rest(bench):
    """one call of a tool of an MCP server over REST"""
    said = "what a client over REST says"
    floor = Contender("floor", f"http://127.0.0.1:{bench.server}")
    posted = {"body": json.dumps({"message": said}), "expect": said, "workers": 16}
    with bench.toolway(**THREE) as toolway:
        floor, found = bench.rounds(
            "a call over REST",
            [
                Run(floor, "mcp", "/mcp", {"workers": 16, "tool": "echo"}),
                Run(toolway, "plain", "/servers/bench/tools/echo", posted),
            ],
        )
    what = "calls over REST per second to an MCP server, c=16"
    return [Line("rest", what, found["per_second"], "/s", floor["per_second"], against="floor", least=0.6)]


@row
def early(bench):
    """a turn that calls a tool and writes on: the time to the end of the answer, early start against none"""
    body = {"model": f"three-calls-{WRITING // 2}ms", "messages": [QUESTION], "stream": True}
    times = {"early start": [], "without": []}
    with bench.toolway(mcp="/mcp/3/0/read-only", tools=3) as reads, bench.toolway(**THREE) as others:
        for _ in range(bench.options.starts):
            for (what, found), toolway in zip(times.items(), [reads, others]):
                begun = time.monotonic()
                said = bench.text(toolway, CHAT, body)
                found.append(time.monotonic() - begun)
                bench.demand("The tool said: waited 2 ms" in said, f"three calls, {what}: {said[-500:]}")
    found, without = (statistics.median(each) * 1000 for each in times.values())
    bench.runs.append({"label": "three calls", "contender": "toolway", **times})
    what = f"a read of {WRITING} ms while the model writes for {WRITING} ms: the end of the answer"
    saved = Line("early", "the same: how much earlier", without - found, "ms", least=600, absolute=True)
    return [Line("early", what, found, "ms", without, against="after the turn"), saved]


# ---- Start ----------------------------------------------------------------------------------------------------------


@row
def start(bench):
    """from the start of the process to the first good answer"""
    silent = socket.create_server(("127.0.0.1", 0))  # Takes connections and says nothing.
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
    times = {None: [], url: []}
    for _ in range(bench.options.starts):
        for server, found in times.items():
            found.append(cold_start(bench, server))
    silent.close()
    alone, beside = (statistics.median(found) * 1000 for found in times.values())
    bench.runs.append({"label": "cold start", "contender": "toolway", "alone": times[None], "beside": times[url]})
    bench.log(f"  {'cold start':40} {'toolway':26} {alone:.1f} ms; beside a silent server {beside:.1f} ms")
    bound = {"most": 50, "absolute": True}
    return [
        Line("start", "cold start to the first good answer", alone, "ms", **bound),
        Line("start", "the same with a server that never answers", beside, "ms", alone, against="without", **bound),
    ]


def cold_start(bench, server_url):
    """Seconds; asks again and again, as fast as the load's core allows."""
    port = machine.free_port()
    config = bench.folder / f"toolway-{port}.toml"
    # The time that a chat waits for servers at the start is not what is measured.
    config.write_text('start_wait = "1ms"\n' + gateways.toolway(bench.folder, port, bench.model, server_url))
    body = json.dumps(PLAIN).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    request = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    begun = time.monotonic()
    process = bench.start_toolway(config)
    while not answered(port, request):
        if time.monotonic() - begun > machine.LONGEST_START:
            raise machine.Failed("toolway gave no good answer")
        time.sleep(0.0005)
    took = time.monotonic() - begun
    bench.processes.end(process)
    return took


def answered(port, request):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=machine.LONGEST_START) as connection:
            connection.sendall(request)
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return False
    return reply.startswith(b"HTTP/1.1 200") and PLAIN_SAYS.encode() in reply


# ---- Requests -------------------------------------------------------------------------------------------------------


def chat(way, body, workers, headers=(), path=CHAT, note=""):
    posted = {"body": json.dumps(body)} if isinstance(body, dict) else {"body_file": body}
    options = {**posted, "expect": PLAIN_SAYS, "workers": workers, "header": list(headers)}
    return Run(way, "plain", path, options, note)


def streamed(way, chunks, pause, workers, headers=(), mode="stream", note=""):
    body = {"model": f"stream-{chunks}-{pause}ms", "messages": [QUESTION], "stream": True}
    expect = {"expect": WORD, "times": chunks}
    options = {"body": json.dumps(body), **expect, "workers": workers, "header": list(headers)}
    return Run(way, mode, CHAT, options, note)


def looped(way, workers, streams):
    body = json.dumps({"model": "call-echo", "messages": [QUESTION], "stream": streams})
    expect = {"expect": f"The tool said: {QUESTION['content']}", "times": 1}
    return Run(way, "stream" if streams else "plain", CHAT, {"body": body, **expect, "workers": workers})


def openai_tools(bench, toolway):
    """The tools in the form in which a client lists them."""
    return [
        {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}
        for tool in bench.get(toolway, "/tools")["tools"]
    ]


def long_chat():
    """A plain request with HISTORY bytes of messages, with the line ends and quotes that texts have."""
    text = 'It was said that "nothing is added"\nby a good gateway, not even a byte. ' * 12
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n}: {text}"} for n in range(HISTORY // len(text))]
    return {"model": "plain", "messages": [*messages, QUESTION]}


def many_values():
    """A chat of LONGEST_BODY bytes whose parts are many and short: three values each, and 500,000 are the most."""
    parts, in_each = 164_000, 100
    text = "word " * ((LONGEST_BODY // parts - len('{"type":"text","text":""},')) // 5)
    content = [{"type": "text", "text": text}] * in_each
    messages = [{"role": "user", "content": content}] * (parts // in_each)
    return {"model": "plain", "max_tokens": 1000, "messages": [*messages, QUESTION]}


def cpu_line(name, what, other, toolway, **bounds):
    cpu = "cpu_ms_per_1000"
    return Line(name, what, toolway[cpu], "ms", other[cpu], **bounds)
