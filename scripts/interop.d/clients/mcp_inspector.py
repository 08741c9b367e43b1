"""The MCP Inspector's command line as a client of toolway: both eras, over stdio and over HTTP."""

import json
import os
import subprocess
from pathlib import Path

from checks import check, equal, run_all

STDIO, HTTP = json.loads(os.environ["INTEROP_MCP_STDIO"]), os.environ["INTEROP_MCP_HTTP"]
INSPECTOR = f"{os.environ['INTEROP_MCP_NPM']}/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
# As in the settings of a client: the Inspector would take toolway's own `--config` for itself.
SETTINGS = Path(os.environ["INTEROP_SIGNS"]) / "inspector.json"
SETTINGS.write_text(json.dumps({"mcpServers": {"toolway": {"command": STDIO[0], "args": STDIO[1:]}}}))
TARGETS = {"stdio": ["--config", str(SETTINGS), "--server", "toolway"], "HTTP": [HTTP, "--transport", "http"]}
ERAS = ["legacy", "modern"]


def inspect(target, era, method, *more):
    """What the Inspector prints for one method."""
    command = [os.environ["INTEROP_NODE"], INSPECTOR, "--cli", *TARGETS[target], "--protocol-era", era, "--method", method, *more]
    env = {**os.environ, "MCP_INSPECTOR_SECRET_STORE": "memory"}  # It would look for a keyring.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, f"exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}"
    return json.loads(done.stdout)


def tools(target, era):
    names = [tool["name"] for tool in inspect(target, era, "tools/list")["tools"]]
    equal({"modern__upper", "desk__shout"} - set(names), set(), "tools that are not listed")
    for name, wanted in [("modern__upper", "ABC"), ("desk__shout", "ABC!")]:
        result = inspect(target, era, "tools/call", "--tool-name", name, "--tool-arg", "text=abc")
        assert wanted in result["content"][0]["text"], f"result of {name}: {result}"


def prompts_and_resources(target, era):
    names = [prompt["name"] for prompt in inspect(target, era, "prompts/list")["prompts"]]
    assert "modern__review" in names, f"prompts: {names}"
    prompt = inspect(target, era, "prompts/get", "--prompt-name", "modern__review", "--prompt-args", "code=f(x)")
    equal(prompt["messages"][0]["content"]["text"], "Please review f(x).", "prompt")
    resources = inspect(target, era, "resources/list")["resources"]
    motto = next(resource["uri"] for resource in resources if "motto" in resource["name"])
    equal(inspect(target, era, "resources/read", "--uri", motto)["contents"][0]["text"], "One gateway.", "resource")


for target in TARGETS:
    for era in ERAS:
        check(f"{era} era over {target}: tools of servers and functions")(lambda t=target, e=era: tools(t, e))
        check(f"{era} era over {target}: prompts and resources")(lambda t=target, e=era: prompts_and_resources(t, e))

if __name__ == "__main__":
    run_all()
