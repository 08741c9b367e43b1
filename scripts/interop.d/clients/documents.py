"""The snippets of the documents, run as they stand: only the address is replaced, and there is no key in the environment.

`python`, `js` and `sh` run and must show the result of a gateway tool, which the scripted model calls when it is asked
for the time. What needs a program that only `--all` installs is parsed without it, and so are `toml` and `json`.
"""

import ast
import json
import os
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

from checks import check, run_all

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ["INTEROP_PYTHON"])
MORE = os.environ["INTEROP_MORE"]  # Empty without `--all`, and so is the next.
AGENTS = os.environ["INTEROP_AGENTS"]
ADDRESS = "http://127.0.0.1:4242"
# What each of these shows of the tool's result.
SHOWN = "Europe/Berlin"
# How long one snippet may take, in seconds; coding agents take ten.
LONGEST = 90


def snippets(page):
    """The fenced blocks of a page: its section, language, text, and what number of its section it is."""
    section, found = "", []
    for match in re.finditer(r"^#+ ([^\n]*)$|^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
        if match[1]:
            section, number = match[1], 0
            continue
        number += 1
        found.append((section, match[2], match[3], number))
    return found


def run(command, home, **env):
    """What the program writes, in an environment with nothing else in it."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "INTEROP_NPM": os.environ["INTEROP_NPM"], **env}
    said = subprocess.run(command, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST)
    assert said.returncode == 0, f"exit code {said.returncode}: {said.stdout[-400:]} {said.stderr[-600:]}"
    return said.stdout


def python(text, section, home):
    needs_more = section == "LlamaIndex"
    if needs_more and not MORE:
        return ast.parse(text)
    folder = Path(MORE) if needs_more else PYTHON
    return shown(run([folder / "bin/python", "-c", text], home))


def js(text, section, home):
    file = home / "snippet.mjs"
    file.write_text(text)
    packages = os.environ["INTEROP_NPM"]
    if "@openai/agents" in text:
        if not AGENTS:
            return run([os.environ["INTEROP_NODE"], "--check", file], home)
        packages = AGENTS
    preload = Path(__file__).with_name("packages.mjs")
    return shown(run([os.environ["INTEROP_NODE"], "--import", preload, file], home, INTEROP_NPM=packages))


def sh(text, section, home):
    if section == "Open WebUI" or (section == "Claude Code" and not AGENTS):
        return run(["bash", "-n", "-c", text], home)
    path = f"{AGENTS}/node_modules/.bin:{os.environ['PATH']}"
    quiet = {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return shown(run(["bash", "-ec", text], home, PATH=path, **quiet))


def toml(text, section, home):
    tomllib.loads(text)
    if section == "Codex" and AGENTS:
        (home / ".codex").mkdir()
        (home / ".codex/config.toml").write_text(text)
        command = [f"{AGENTS}/node_modules/.bin/codex", "exec", "--skip-git-repo-check", "What time is it in Berlin?"]
        shown(run(command, home))


def shown(said):
    assert SHOWN in said, f"nothing of the tool's result is shown: {said[:400]!r}"


RUNNERS = {"python": python, "js": js, "sh": sh, "toml": toml, "json": lambda text, *_: json.loads(text)}


def register(page, wanted=lambda section, language, text: True):
    chosen = [snippet for snippet in snippets(page) if wanted(*snippet[:3])]
    assert chosen, f"{page} has no such snippet"
    for section, language, text, number in chosen:

        @check(f"{page}: {section}, {language}{f' {number}' if number > 1 else ''}")
        def runs(section=section, language=language, text=text):
            with tempfile.TemporaryDirectory() as home:
                RUNNERS[language](text.replace(ADDRESS, os.environ["INTEROP_GATEWAY"]), section, Path(home))


register("docs/clients.md")
register("README.md", lambda _, language, text: language == "python")
asks_the_gateway = lambda _, language, text: language == "sh" and text.startswith("curl " + ADDRESS)
register("docs/apis.md", asks_the_gateway)

run_all()
