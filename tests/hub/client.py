"""A process of its own that talks to the loopback Hub."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

ROOT = Path(__file__).parents[2]


def log_in(address: str, token: str, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let this process talk to the Hub at `address`, as the owner of a token.

    huggingface_hub read its environment when it was imported, which was long ago.
    """
    patch.setattr(constants, "ENDPOINT", address)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    patch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "tokens"))
    patch.setenv("HF_TOKEN", token)


def environment(address: str, home: Path) -> dict[str, str]:
    """Of a process whose Hub is at `address`."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "CAPEVAL_FETCH": "",  # this Hub is the only network
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        **dict.fromkeys(("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"), "300"),  # a busy machine
        "PYTHONPATH": str(ROOT),
    }


def ask_here(code: str, address: str, home: Path, **more: str) -> Any:
    """As `ask`, in a fork of this process, which has its imports. EOFError: it failed, and said why."""
    answer, told = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        own = environment(address, home) | more
        os.environ.clear()
        os.environ.update(own)
        importlib.reload(constants)  # which read the environment
        os.chdir(home)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, {})
        told.send(out.getvalue().splitlines()[-1])

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    told.close()
    found = json.loads(answer.recv())
    process.join()
    return found


def ask(code: str, address: str, home: Path, **more: str) -> Any:
    """What `code` prints as its last line, in JSON, in a process whose Hub is at `address`.

    The endpoint is read when huggingface_hub and evaluate are imported, hence the process. It works in
    `home`, where no folder can shadow a module of the Hub.
    """
    own = environment(address, home) | more
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=home, env=own, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])
