"""What every Python client program shares: named checks, each ending in one JSON line on standard output."""

import asyncio
import inspect
import json
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

CHECKS = []


def check(name):
    """Registers a function (async or not) as a check. It holds when the function returns."""

    def register(function):
        CHECKS.append((name, function))
        return function

    return register


def equal(got, wanted, what="value"):
    assert got == wanted, f"{what}: got {got!r}, should be {wanted!r}"


def until(question, what, seconds=10):
    """Waits for a true answer, and returns it."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return answer


def run_all():
    """Prints how many checks there are, then runs them in order and prints what held. One that fails costs no other."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [(name, function) for name, function in CHECKS if wanted in name]
    print(json.dumps({"checks": len(chosen)}), flush=True)
    loop = asyncio.new_event_loop()
    for name, function in chosen:
        started, why = time.monotonic(), ""
        try:
            outcome = function()
            if inspect.isawaitable(outcome):
                loop.run_until_complete(outcome)
        except Exception as failure:
            while inner := getattr(failure, "exceptions", None):  # What a task group makes of one failure.
                failure = inner[0]
            why = f"{type(failure).__name__}: {failure}"
            traceback.print_exc()
        print(json.dumps({"check": name, "why": why, "seconds": round(time.monotonic() - started, 2)}), flush=True)
