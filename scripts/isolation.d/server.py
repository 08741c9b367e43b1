"""An MCP server that tries to break out: it reads files, opens the network, forks without end, takes memory."""

import json
import os
import socket
import sys
import threading
import time


def read(path):
    with open(path) as file:
        return file.read()


def write(path):
    with open(path, "w") as file:
        file.write("written")
    return "written"


def connect(address):
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=3):
        return "connected"


def fork(most):
    """How many processes there are when no more can be started; all of them are asleep."""
    children = []
    try:
        for _ in range(int(most)):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    except OSError as error:
        return f"stopped at {len(children)}: {error}"
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return f"started {len(children)}"


def eat(mebibytes):
    held = []
    for _ in range(int(mebibytes)):
        held.append(b"x" * (1 << 20))
    return f"took {len(held)} MiB"


def environment(_):
    return json.dumps(dict(os.environ))


def processes(_):
    return " ".join(name for name in os.listdir("/proc") if name.isdigit())


def stay(_):
    """Goes on without its input, as a server that hangs does."""
    threading.Thread(target=lambda: time.sleep(3600)).start()
    return "stays"


TOOLS = {tool.__name__: tool for tool in (read, write, connect, fork, eat, environment, processes, stay)}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "intruder", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"on": {"type": "string"}}}
        return {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
    if method == "tools/call":
        try:
            text, failed = TOOLS[params["name"]](params["arguments"].get("on", "")), False
        except (OSError, MemoryError) as error:
            text, failed = f"{type(error).__name__}: {error}", True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = answer(message["method"], message.get("params", {}))
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        reply["error"] = {"code": -32601, "message": "unknown method"}
    else:
        reply["result"] = result
    print(json.dumps(reply), flush=True)
