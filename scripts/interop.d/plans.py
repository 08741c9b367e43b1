"""How a check tells the scripted model what to do, and asks it what it saw. Standard library only."""

import itertools
import json
import os
import urllib.request

NUMBERS = itertools.count()


def call(name, **arguments):
    """A tool call of a round; `name` is the offered name or its end."""
    return [name, arguments]


def round_of(*text, calls=(), **more):
    """One answer of the model: deltas of text, then calls. `more`: hang, stream_error, or status with headers and body."""
    return {"text": list(text), "calls": list(calls), **more}


FINAL = round_of("Results: ", "{results}")


def plan(*rounds):
    """A user message that makes the model go through the rounds, and the tag its requests are noted under."""
    tag = f"{os.getpid()}-{next(NUMBERS)}"
    return tag, "Please help. PLAN " + json.dumps({"tag": tag, "rounds": list(rounds)})


def results(text):
    """What the model was told by tools, as the answer to a plan that ends with FINAL quotes it."""
    mark = "Results: "
    if mark not in text:
        raise AssertionError(f"the answer quotes no results: {text[:400]!r}")
    return [(r["name"], r["content"]) for r in json.JSONDecoder().raw_decode(text[text.rindex(mark) + len(mark) :])[0]]


def seen(tag, model_url=None):
    """The requests that the model got for a plan, in order."""
    url = model_url or os.environ["INTEROP_MODEL"]
    with urllib.request.urlopen(f"{url}/seen?tag={tag}", timeout=10) as response:
        return [note for note in json.load(response) if note["tag"] == tag]
