"""Claude Code and Codex as their users run them: one question, their own shell and a gateway tool in one turn."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from checks import check, equal, run_all
from plans import FINAL, call, plan, results, round_of, seen

BASE = os.environ["INTEROP_GATEWAY"]
BIN = Path(os.environ["INTEROP_AGENTS"]) / "node_modules/.bin"
# How long an agent may take for two rounds, in seconds; they take one.
LONGEST = 60


def run(command, settings, home):
    """What the program writes, run in a home of its own with nothing else in its environment."""
    env = {"HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}", **settings}
    ended = subprocess.run(
        command, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST
    )
    assert ended.returncode == 0, f"exit code {ended.returncode}: {ended.stdout[-400:]} {ended.stderr[-400:]}"
    return ended.stdout


def held(answer, tag, shell):
    """Both tools have run: the answer quotes what the model was told by them."""
    told = dict(results(answer))
    equal(told["modern__upper"], "A", "result of the gateway's tool")
    assert "interop-hi" in told[shell], told
    equal([note["ended"] for note in seen(tag)], ["done"] * 2, "requests at the model")


@check("Claude Code runs its shell and a gateway tool in one turn")
def claude_code():
    shell = call("Bash", command="echo interop-hi", description="Says hi.")
    tag, text = plan(round_of("Both. ", calls=[shell, call("modern__upper", text="a")]), FINAL)
    settings = {
        "IS_SANDBOX": "1",
        "ANTHROPIC_BASE_URL": BASE,
        "ANTHROPIC_AUTH_TOKEN": "sk-interop",
        "ANTHROPIC_MODEL": "scripted-1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    with tempfile.TemporaryDirectory() as home:
        command = ["claude", "-p", text, "--allowedTools", "Bash", "--output-format", "json"]
        answer = json.loads(run(command, settings, Path(home)))
    equal((answer["subtype"], answer["num_turns"]), ("success", 2), "how it ended, and its turns")
    held(answer["result"], tag, "Bash")


@check("Codex runs its shell and a gateway tool in one turn")
def codex():
    tag, text = plan(round_of("Both. ", calls=[call("exec_command", cmd="echo interop-hi"), call("modern__upper", text="a")]), FINAL)
    settings = f"""
model = "scripted-1"
model_provider = "toolway"
[model_providers.toolway]
name = "toolway"
base_url = "{BASE}/v1"
env_key = "KEY"
wire_api = "responses"
"""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / ".codex").mkdir()
        (Path(home) / ".codex/config.toml").write_text(settings)
        command = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", text]
        answer = run(command, {"KEY": "sk-interop"}, Path(home))
    held(answer, tag, "exec_command")


run_all()
