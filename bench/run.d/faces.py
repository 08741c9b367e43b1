"""What a stream costs in each API, of clients and of models, beside one whose both sides speak chat completions."""

import json

from measure import Run
from rows import CHAT, QUESTION, THREE, WORD, cpu_line, row

SPOKEN = ["chat", "responses", "anthropic", "gemini"]  # The values of `api`, which the models' names end with.
CHUNKS = 100
WORKERS = 16

# Of the client's API: its name, its path, members of a request, what a chunk and the last event have.
ASKED = {"messages": [QUESTION]}
CHAT_FACE = ("chat", CHAT, ASKED, WORD, "[DONE]")
INPUT = {"input": QUESTION["content"]}
RESPONSES = ("responses", "/v1/responses", {**INPUT, "store": False}, '"delta":" word"', "response.completed")
STORED = ("stored responses", "/v1/responses", INPUT, '"delta":" word"', "response.completed")
MESSAGES = ("messages", "/v1/messages", {**ASKED, "max_tokens": 1024}, '"text":" word"', "message_stop")

# The client's API, the model's, and the bound. What it costs to store a response is not bounded.
PAIRS = [
    (RESPONSES, "responses", 1.2),
    (MESSAGES, "anthropic", 1.2),
    (STORED, "responses", None),
    (RESPONSES, "chat", 2.0),
    (MESSAGES, "chat", 2.0),
    (CHAT_FACE, "anthropic", 2.0),
    (CHAT_FACE, "responses", 2.0),
    (CHAT_FACE, "gemini", 2.0),
]


@row
def faces(bench):
    """streams in other APIs, passed through and with tools: CPU, against a chat stream"""
    upstreams = [{"name": api, "api": api, "models": [f"*-{api}"]} for api in SPOKEN]
    lines = []
    for what, tools in [("no tool", {}), ("3 tools offered", THREE)]:
        with bench.toolway(upstreams=upstreams, **tools) as toolway:
            pairs = [(CHAT_FACE, "chat"), *(pair[:2] for pair in PAIRS)]
            chat, *others = bench.rounds(f"streams, {what}", [between(toolway, *pair) for pair in pairs])
        for (face, api, most), found in zip(PAIRS, others):
            about = f"CPU per 1000 streams of {CHUNKS} chunks, {face[0]} → {api}, {what}, c={WORKERS}"
            lines.append(cpu_line("faces", about, chat, found, most=most, against="chat → chat"))
    return lines


def between(toolway, face, api):
    """Streams to a client of this face, from a model of this API."""
    name, path, members, expect, end = face
    body = {"model": f"stream-{CHUNKS}-1ms-{api}", **members, "stream": True}
    options = {"body": json.dumps(body), "expect": expect, "times": CHUNKS, "end": end, "workers": WORKERS}
    return Run(toolway, "stream", path, options, f"{name} → {api}")
