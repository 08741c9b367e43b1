"""An MCP server on a pipe that is hard to get rid of. `child.py KIND MARK`; every process has MARK in its arguments.

plain    reads until its input ends
stubborn ignores the end of its input and every signal that can be ignored
escaping starts a helper in a session and a process group of its own, whose parent is gone
counting as escaping, and notes each call with a key in the file `child.py counting MARK FILE` before it answers
"""

import json
import os
import random
import signal
import sys
import time

kind = sys.argv[1]

if kind == "helper":
    time.sleep(300)
    sys.exit()
if kind == "stubborn":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
if kind in ("escaping", "counting") and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, __file__, "helper", sys.argv[2]])
    os._exit(0)

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": kind, "version": "1"},
        },
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
    }
    if kind == "counting" and message["method"] == "tools/call":
        with open(sys.argv[3], "a") as runs:
            runs.write(message["params"]["arguments"]["key"] + "\n")
        time.sleep(random.random() / 200)
        results["tools/call"] = {"content": [{"type": "text", "text": "ran"}]}
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": results.get(message.get("method"), {})}
    print(json.dumps(answer), flush=True)
if kind == "stubborn":
    time.sleep(300)
