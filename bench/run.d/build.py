"""Builds what is measured and what it is measured with."""

import os
import subprocess

from machine import Missing


def tools(root, log):
    """The folder with mock-model, mock-server and load; CARGO_TARGET_DIR, or target/bench of the repository."""
    target = root / os.environ.get("CARGO_TARGET_DIR", "target/bench")
    cargo(root, target, ["--release", "--manifest-path", "bench/Cargo.toml"], "the mocks and the load", log)
    return target / "release"


def toolway(root, given, log):
    """The binary that is measured: the one given, or a build of what is here in the profile `dist`."""
    if given:
        if not given.is_file():
            raise Missing(f"{given} is no file")
        return given.resolve()
    target = root / os.environ.get("CARGO_TARGET_DIR", "target")
    cargo(root, target, ["--profile", "dist", "--bin", "toolway"], "toolway", log)
    return target / "dist" / "toolway"


def cargo(root, target, arguments, what, log):
    log(f"building {what}")
    command = ["cargo", "build", "--locked", "--quiet", *arguments]
    try:
        subprocess.run(command, cwd=root, env={**os.environ, "CARGO_TARGET_DIR": str(target)}, check=True)
    except FileNotFoundError:
        raise Missing("cargo is not here: https://rustup.rs") from None
    except subprocess.CalledProcessError:
        raise Missing(f"building {what} failed") from None
