"""Processes that are started, waited for and ended by their own id, and a look at what runs (Linux, /proc)."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path


def until(question, what, seconds, pause=0.02):
    """Waits for a true answer, and returns it. Times are in seconds; `pause` is the one between two questions."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(pause)
    return answer


class Process:
    """A program that runs beside us, with its output in files of the run's folder."""

    def __init__(self, name, command, folder, env=None):
        self.name, self.command, self.env = name, [str(word) for word in command], env or {}
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.start()

    def start(self):
        with self.out.open("wb") as out, self.err.open("wb") as err:
            env = {**os.environ, **self.env}
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)

    def address(self, seconds=30):
        """Where it listens, once it says `… listens on http://…`."""
        return until(self.said_address, f"`{self.name}` says where it listens", seconds)

    def said_address(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"`{self.name}` ended with {self.child.returncode}:\n{tail(self.err)}")
        said = re.search(r"listens on (http://\S+)", self.out.read_text(errors="replace"))
        return said and said.group(1).rstrip("/")

    def end(self, sign=signal.SIGTERM, seconds=10):
        """Sends a signal to it and waits for its exit code; None if it had to be killed."""
        if self.child.poll() is None:
            self.child.send_signal(sign)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            return None


def tail(path, lines=15):
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


# ---- What runs ------------------------------------------------------------------------------------------------------


def marked(mark):
    """The processes that carry `INTEROP_MARK=mark` in their environment, whoever their parent is by now."""
    wanted = f"INTEROP_MARK={mark}".encode()
    return {pid: command_line(pid) for pid in pids() if wanted in read(pid, "environ").split(b"\0")}


def descendants(ancestor):
    """The processes that stand below one, at any depth."""
    parents = {pid: parent(pid) for pid in pids()}
    found, edge = set(), {ancestor}
    while edge:
        edge = {pid for pid, above in parents.items() if above in edge} - found
        found |= edge
    return {pid: command_line(pid) for pid in found}


def pids():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read(pid, name):
    """A file of a process; nothing if the process is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def parent(pid):
    """The parent's id; the second field may hold blanks and brackets, so the count begins after the last one."""
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def command_line(pid):
    return read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def is_running(pid):
    """It is there and no zombie."""
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return bool(fields) and fields[0] != b"Z"
