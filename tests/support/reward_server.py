"""A `capeval serve` of its own process, as trainers meet it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tools.documents import CHECKOUT

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
"""Of the server, and of clients in processes of their own."""


@dataclass
class RewardServer:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def reward_server(*arguments: str, port: int | None = None, first: str = "") -> Iterator[RewardServer]:
    """`capeval serve` with some arguments, until the block ends. first: Python that it runs first."""
    port = free_port() if port is None else port
    line = ["serve", *arguments, "--port", str(port)]
    program = f"{first}\nfrom capeval_core.cli import main\nraise SystemExit(main({line!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        while "served at" not in process.stdout.readline():
            assert process.poll() is None
        yield RewardServer(process, port)
    finally:
        process.kill()
        process.wait()
