"""The reward server beside the same metric in one process: throughput, waiting, memory, equal scores.

    python -m benchmarks.serving [--minutes 2] [--clients 64] [--weights FOLDER]

A seeded ViT-B/32; each client asks for groups of 8 captions of one JPEG, as GRPO's rollouts are. In turn, in
one run: the metric alone on the same captions and images, the server with groups, and the server with one
pair a request. `benchmarks/serving.md` is the output of this program.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import requests

import capeval_core
from benchmarks.workload import make_weights, make_workload

GROUP = 8
_ANSWER = 600  # seconds for a reply


class Served:
    """A `capeval serve` of its own process."""

    def __init__(self, weights: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "capeval_core", "serve", "pacs", "--weights", str(weights)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert self.process.stdout is not None
        while "served at" not in self.process.stdout.readline():
            assert self.process.poll() is None

    def ask(self, session: requests.Session, captions: list[str], image: str) -> list[float]:
        content: Any = {"captions": captions, "images": [{"bytes": image}] * len(captions)}
        while True:
            reply = session.post(f"http://127.0.0.1:{self.port}/score", json=content, timeout=_ANSWER)
            if reply.status_code not in (429, 503):
                break
            time.sleep(0.05)
        reply.raise_for_status()
        scores: list[float] = reply.json()["results"]["pacs"]["scores"]
        return scores

    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def loaded(
    served: Served, groups: list[tuple[list[str], str]], clients: int
) -> tuple[list[list[float]], list[float], float]:
    """The scores of all groups that so many clients ask for, the seconds of each request, and of all."""
    local = threading.local()

    def ask(group: tuple[list[str], str]) -> tuple[list[float], float]:
        session = getattr(local, "session", None)
        if session is None:
            session = local.session = requests.Session()
        started = time.perf_counter()
        scores = served.ask(session, *group)
        return scores, time.perf_counter() - started

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        replies = list(pool.map(ask, groups))
    seconds = time.perf_counter() - started
    return [scores for scores, _ in replies], [taken for _, taken in replies], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--weights", type=Path)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = flags.weights or make_weights("ViT-B-32", folder)
        work = make_workload(folder, 0.14)
        captions = [work.captions[i : i + GROUP] for i in range(0, 96 * GROUP, GROUP)]
        groups: list[Any] = []
        for number, texts in enumerate(captions):
            data = work.images[number % len(work.images)].read_bytes()
            groups.append((texts, base64.b64encode(data).decode()))

        started = time.perf_counter()
        metric = capeval_core.load("pacs", weights=weights, cache=None)
        flat = [text for texts in captions for text in texts]
        images = [work.images[number % len(work.images)] for number in range(96) for _ in range(GROUP)]
        warm = [text + " ." for text in flat[:64]]
        metric.score(warm, images[:64])
        started = time.perf_counter()
        expected = metric.score(flat[64:], images[64:]).scores
        alone = len(expected) / (time.perf_counter() - started)

        served = Served(weights)
        try:
            loaded(served, [([text + " ." for text in texts], image) for texts, image in groups[:8]], 8)
            replies, taken, seconds = loaded(served, groups[8:], flags.clients)
            grouped = len(expected) / seconds
            distance = np.abs(np.concatenate(replies) - expected).max()
            singles = [([text + " again"], image) for texts, image in groups[8:20] for text in texts]
            single_replies, _, single_seconds = loaded(served, singles, 1)
            single = len(single_replies) / single_seconds
            memories = [served.memory()]
            until = time.monotonic() + 60 * flags.minutes
            turn = 0
            while time.monotonic() < until:
                turn += 1
                fresh = [([f"{text} {turn}" for text in texts], image) for texts, image in groups]
                loaded(served, fresh, flags.clients)
                memories.append(served.memory())
        finally:
            served.process.kill()
    half = len(memories) // 2
    lines = [
        "# The reward server",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores; "
        f"`python -m benchmarks.serving --clients {flags.clients}`: PAC-S, seeded ViT-B/32, groups of "
        f"{GROUP}.",
        "",
        "| | captions a second | of the metric alone |",
        "| --- | ---: | ---: |",
        f"| the metric alone, in one process | {alone:.1f} | 1.00 |",
        f"| the server, {flags.clients} clients | {grouped:.1f} | {grouped / alone:.2f} |",
        f"| the server, one pair a request, one client | {single:.1f} | {single / alone:.2f} |",
        "",
        f"Groups give {grouped / single:.1f} times the captions of one pair a request. Scores differ by at "
        f"most {distance:.1e}. Requests took {np.median(taken):.2f} s (median) and "
        f"{np.percentile(taken, 99):.2f} s (p99); a queue of {flags.clients} groups takes "
        f"{flags.clients * GROUP / grouped:.2f} s.",
        "",
        f"Memory over {flags.minutes:g} minutes of load: {memories[0]:,.0f} MB at first, at most "
        f"{max(memories[: half + 1]):,.0f} MB in the first half and {max(memories[half:]):,.0f} MB in the "
        "second.",
        "",
    ]
    text = "\n".join(lines)
    print(text)
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
