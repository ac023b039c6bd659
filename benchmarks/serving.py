"""The reward server beside the same metric in one process; mixed and hostile requests; kills.

    python -m benchmarks.serving [--only throughput] [--minutes 60] [--clients 64] [--groups 256]

Throughput and waiting: a seeded ViT-B/32; each client asks for groups of 8 captions of one JPEG, as rollouts
of GRPO are. In turn, in one run: the metric alone, the server with groups, and the server with one pair a
request. Memory: an hour of new images and captions. Then, with `tiny`: requests of
random captions that mix in batches, each compared with the metric alone; requests that are broken on purpose;
and clients whose server is killed and started again. The output is `benchmarks/results/serving.md`; with
`--only` the other parts of that file stay as they are.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import io
import json
import math
import os
import platform
import random
import re
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import requests
import torch
from PIL import Image

import capeval_core
from benchmarks.workload import ARCHITECTURES, make_weights, make_workload, sentences
from capeval_core.cache import TEXT_BYTES, FeatureCache
from capeval_core.demo import demo_set
from capeval_core.limits import LIMITS
from examples import reward_client
from tests.support.reward_server import RewardServer, free_port, reward_server

GROUP = 8
_ANSWER = 600  # seconds for a reply
_WORDS = [
    "a",
    "the",
    "two",
    "red",
    "dog",
    "man",
    "street",
    "of",
    "on",
    "holding",
    ";",
    "--",
    "7",
    "caf\u00e9",
]
Request = dict[str, Any]


class Clients:
    """So many threads that ask a server, each over a connection of its own."""

    def __init__(self, address: str, count: int) -> None:
        self._address = address
        self._count = count
        self._local = threading.local()

    def ask(self, content: Request) -> tuple[list[float], float]:
        """Scores of a request, and the seconds until they came."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        started = time.perf_counter()
        while True:
            reply = self._local.session.post(f"{self._address}/score", json=content, timeout=_ANSWER)
            if reply.status_code not in (429, 503):
                break
            time.sleep(0.05)
        reply.raise_for_status()
        (result,) = reply.json()["results"].values()
        return result["scores"], time.perf_counter() - started

    def ask_all(self, contents: list[Request]) -> tuple[list[list[float]], list[float], float]:
        """The scores of all requests, the seconds of each, and of all together."""
        started = time.perf_counter()
        with ThreadPoolExecutor(self._count) as pool:
            replies = list(pool.map(self.ask, contents))
        seconds = time.perf_counter() - started
        return [scores for scores, _ in replies], [waited for _, waited in replies], seconds


def encoded(data: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(data).decode()}


def memory(server: RewardServer) -> float:
    """Resident memory in MB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def cpu_seconds(server: RewardServer) -> float:
    """CPU time of the server, which other work on the machine does not change as it changes the clock's."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user mode, in the kernel


def batch_counts(server: RewardServer) -> dict[str, float]:
    """The server's counters."""
    text = requests.get(f"{server.address}/metrics", timeout=_ANSWER).text
    return {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.]+)$", text, re.MULTILINE)}


class BatchTimes(threading.Thread):
    """The seconds of each batch of a server while the block runs, by its counters."""

    def __init__(self, server: RewardServer) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._server = server
        self._counts = batch_counts(server)
        self._done = threading.Event()

    def __enter__(self) -> BatchTimes:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()
        self._look()

    def run(self) -> None:
        while not self._done.wait(0.2):  # batches take some seconds each
            self._look()

    def _look(self) -> None:
        counts = batch_counts(self._server)
        batches = round(counts["capeval_batches_total"] - self._counts["capeval_batches_total"])
        seconds = counts["capeval_batch_seconds_total"] - self._counts["capeval_batch_seconds_total"]
        self.seconds += [seconds / max(batches, 1)] * batches
        self._counts = counts


def throughput(folder: Path, clients: int, groups: int) -> list[str]:
    """Captions a second, and waiting, with full-size weights."""
    weights = make_weights("ViT-B-32", folder)
    work = make_workload(folder, (groups + 2) / 1000)
    captions = [f"{work.captions[row % len(work.captions)]} {row}" for row in range(groups * GROUP)]
    paths = work.images[:groups]
    unseen = work.images[groups:]  # both sides begin warm, and without features of what is measured
    contents: list[Request] = []
    for group, path in enumerate(paths):
        texts = captions[group * GROUP : (group + 1) * GROUP]
        contents.append({"captions": texts, "images": [encoded(path.read_bytes())] * GROUP})

    metric = capeval_core.load("pacs", weights=weights, cache=None)
    metric.score([f"{text} ." for text in captions[: 2 * GROUP]], unseen * GROUP)
    images = [path for path in paths for _ in range(GROUP)]
    expected: list[float] = []
    seconds_alone = 0.0
    cpu_alone = 0.0

    def score_alone(rows: slice) -> None:
        nonlocal seconds_alone, cpu_alone
        started = time.perf_counter()
        cpu_started = time.process_time()
        expected.extend(metric.score(captions[rows], images[rows]).scores)
        cpu_alone += time.process_time() - cpu_started
        seconds_alone += time.perf_counter() - started

    # One half before the server and one after it: what else the machine does changes from minute to minute.
    half = groups // 2 * GROUP
    score_alone(slice(half))
    with reward_server("pacs", "--weights", str(weights)) as server:
        many = Clients(server.address, clients)
        warm = [
            {"captions": ["warm"] * GROUP, "images": [encoded(path.read_bytes())] * GROUP} for path in unseen
        ]
        many.ask_all(warm)
        before = batch_counts(server)
        cpu_started = cpu_seconds(server)
        with BatchTimes(server) as times:
            replies, waits, seconds = many.ask_all(contents)
        cpu_grouped = cpu_seconds(server) - cpu_started
        after = batch_counts(server)
        # One pair a request, as rewards are often asked for: each has a new image.
        pairs: list[Request] = []
        for number, path in enumerate(paths[:32]):
            data = path.read_bytes() + b" " * (number + 1)  # other bytes of the same image
            pairs.append({"captions": [f"{captions[number]} again"], "images": [encoded(data)]})
        cpu_started = cpu_seconds(server)
        _, _, pair_seconds = Clients(server.address, 1).ask_all(pairs)
        cpu_single = cpu_seconds(server) - cpu_started
    score_alone(slice(half, None))
    distance = np.abs(np.concatenate(replies) - expected).max()
    alone = len(captions) / seconds_alone
    grouped = len(captions) / seconds
    single = len(pairs) / pair_seconds
    batch_captions = (after["capeval_captions_total"] - before["capeval_captions_total"]) / len(times.seconds)
    late = np.percentile(waits, 99)
    rows = [
        ("the metric alone, in one process", alone, 1000 * cpu_alone / len(captions)),
        (f"the server, {clients} clients", grouped, 1000 * cpu_grouped / len(captions)),
        ("the server, one new pair a request", single, 1000 * cpu_single / len(pairs)),
    ]
    return [
        "| PAC-S, ViT-B/32, groups of 8 | captions a second | of the metric alone | CPU ms a text |",
        "| --- | ---: | ---: | ---: |",
        *[f"| {name} | {rate:.1f} | {rate / alone:.2f} | {cpu:.1f} |" for name, rate, cpu in rows],
        "",
        f"- Groups give {grouped / single:.1f} times the captions of one pair a request. By CPU time the "
        f"server has {cpu_alone / cpu_grouped:.2f} of the throughput of the metric alone.",
        f"- Scores differ from those of the metric alone by at most {distance:.1e}.",
        f"- A request took {np.median(waits):.2f} s (median), {late:.2f} s (p99), {max(waits):.2f} s "
        f"(longest). {len(times.seconds)} batches of {batch_captions:.0f} captions on average took "
        f"{np.mean(times.seconds):.2f} s each, the longest {max(times.seconds):.2f} s: p99 is "
        f"{late / max(times.seconds):.2f} of the longest batch, {late / np.mean(times.seconds):.2f} of the "
        "mean one.",
    ]


def memory_over(folder: Path, minutes: float) -> list[str]:
    """Memory of a server to which every request brings a new image and new captions.

    With the features of a wide network each cache reaches its bound within minutes; none is lowered.
    """
    weights = make_weights("wide", folder)
    made = make_workload(folder, 0.008).images[0].read_bytes()
    with Image.open(io.BytesIO(made)) as picture:
        picture.resize((64, 48)).save(smaller := io.BytesIO(), "JPEG")
    # Bytes behind the end of a JPEG are no part of the picture, but of its digest and of what is stored.
    image = smaller.getvalue() + random.Random(0).randbytes(64 << 10)
    captions = sentences(4_096)
    width = ARCHITECTURES["wide"]["embed_dim"]
    # Images after which the store of their bytes and the cache of their features are full.
    images_of_plateau = max(LIMITS.served_image_bytes / len(image), FeatureCache().max_bytes / (4 * width))
    texts_of_plateau = TEXT_BYTES / (4 * width)
    minute_of_plateau = float("nan")
    images = 0
    texts = 0
    points: list[tuple[float, float]] = []  # minutes, megabytes
    with reward_server("pacs", "--weights", str(weights)) as server:
        many = Clients(server.address, 8)
        started = time.monotonic()
        passed = 0.0
        while passed < minutes:
            contents: list[Request] = []
            for _ in range(64):
                images += 1
                count = 1 + images % 8  # requests of several sizes, so that buffers are of several sizes
                group = []
                for _ in range(count):
                    texts += 1
                    group.append(f"{captions[texts % len(captions)]} {texts}")
                content = encoded(image + images.to_bytes(8, "big"))
                contents.append({"captions": group, "images": [content] * count})
            many.ask_all(contents)
            broken: Any = {
                "captions": ["refused"],
                "images": [encoded(b"not an image" + images.to_bytes(8, "big"))],
            }
            if requests.post(f"{server.address}/score", json=broken, timeout=_ANSWER).status_code != 422:
                raise SystemExit("an image that cannot be read was not refused")
            passed = (time.monotonic() - started) / 60
            if math.isnan(minute_of_plateau) and images > images_of_plateau and texts > texts_of_plateau:
                minute_of_plateau = passed
            if len(points) <= passed:
                points.append((passed, memory(server)))
                print(f"{passed:.1f} min: {points[-1][1]:,.0f} MB, {texts:,} captions", flush=True)
        points.append((passed, memory(server)))
    half = [point for point in points if point[0] >= passed / 2]
    slope = np.polyfit([point[0] / 60 for point in half], [point[1] for point in half], 1)[0]
    return [
        f"- Memory over {passed:.0f} minutes of load, {images:,} new images of {len(image) >> 10} KB and "
        f"{texts:,} new captions, with features of {4 * width >> 10} KB: {points[0][1]:,.0f} MB at first; "
        f"the store of images and the caches of features were full after {minute_of_plateau:.0f} minutes; "
        f"{half[0][1]:,.0f} MB after {half[0][0]:.0f} minutes, {points[-1][1]:,.0f} MB at last, "
        f"{slope:+,.1f} MB an hour in the second half."
    ]


def interleaved(count: int) -> list[str]:
    """Requests of 1 to 9 new captions from 32 clients, whose batches mix at random."""
    draw = random.Random(0)
    images = [item.image.read_bytes() for item in demo_set()]
    contents: list[Request] = []
    captions: list[str] = []
    visuals: list[bytes] = []
    for number in range(count):
        texts = []
        for row in range(draw.randint(1, 9)):
            texts.append(f"{number} {row} {' '.join(draw.choices(_WORDS, k=draw.randint(0, 30)))}")
        chosen = draw.choices(images, k=len(texts))
        contents.append({"captions": texts, "images": [encoded(image) for image in chosen]})
        captions += texts
        visuals += chosen
    with reward_server("pacs", "--weights", "tiny") as server:
        before = batch_counts(server)
        replies, _, seconds = Clients(server.address, 32).ask_all(contents)
        batches = batch_counts(server)["capeval_batches_total"] - before["capeval_batches_total"]
    expected = capeval_core.load("pacs", weights="tiny", cache=None).score(captions, visuals).scores
    distance = np.abs(np.concatenate(replies) - expected).max()
    return [
        f"- {count:,} requests of random captions ({len(captions):,}) from 32 clients in {batches:,.0f} "
        f"mixed batches ({seconds:.0f} s): scores differ from the metric alone by {distance:.1e}."
    ]


def broken_body(draw: random.Random, body: bytes) -> bytes:
    """A request that is broken in some way."""
    ways = ("cut", "bytes", "type", "path", "nesting", "number", "pickle")
    way = draw.choice(ways)
    if way == "cut":
        return body[: draw.randrange(len(body))]
    if way == "bytes":
        damaged = bytearray(body)
        for _ in range(draw.randint(1, 20)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        return bytes(damaged)
    content = json.loads(body)
    key = draw.choice(["captions", "images", "references", "prompts", "metrics", "videos"])
    if way == "type":
        content[key] = draw.choice(
            [None, 3, {}, [None], [[]], "text", [{"bytes": 3}], [{"digest": []}], True]
        )
    elif way == "path":
        value = draw.choice(
            ["/etc/passwd", "file:///etc/passwd", "../../etc/passwd", "http://127.0.0.1:1/a.png"]
        )
        content["images"] = [draw.choice([value, {"bytes": value}, {"path": value}, {"digest": value}])]
    elif way == "nesting":
        return b'{"captions": ' + b"[" * draw.choice([10, 100_000]) + body
    elif way == "number":
        return body.replace(
            b'"captions"', draw.choice([b'"captions": NaN, "a"', b'"captions": 1e999, "a"']), 1
        )
    else:  # what a server that unpickles would run
        payload = b"cos\nsystem\n(S'touch /tmp/capeval-was-here'\ntR."
        return draw.choice([payload, json.dumps({**content, "images": [encoded(payload)]}).encode()])
    return json.dumps(content).encode()


def hostile(count: int) -> list[str]:
    """Broken requests, also of the protocols, with pieces of HTTP between them."""
    draw = random.Random(1)
    item = demo_set()[0]
    image = encoded(item.image.read_bytes())
    body = json.dumps({"captions": [item.good], "images": [image], "prompts": ["Describe it."]}).encode()
    mark = Path("/tmp/capeval-was-here")
    statuses: dict[int, int] = {}
    with reward_server("pacs", "--weights", "tiny") as server:
        right, _ = Clients(server.address, 1).ask(json.loads(body))
        first = memory(server)
        for number in range(count):
            if number % 10 == 0:
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(draw.randbytes(200))
            door = draw.choice(["score", "score", "score", "verify", "reward"])
            reply = requests.post(f"{server.address}/{door}", data=broken_body(draw, body), timeout=_ANSWER)
            statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
            answer = reply.json()
            if "root:" in reply.text or (reply.status_code == 200) != ("error" not in answer):
                raise SystemExit(f"request {number}: {reply.status_code} {reply.text[:300]}")
        after, _ = Clients(server.address, 1).ask(json.loads(body))
        last = memory(server)
    if mark.exists() or abs(after[0] - right[0]) > 1e-6:
        raise SystemExit("something was executed, or a score has changed")
    table = ", ".join(f"{number} of status {status}" for status, number in sorted(statuses.items()))
    return [
        f"- {count} hostile requests: {table}; nothing executed, no file read, the same score before and "
        f"after; {first:,.0f} MB before, {last:,.0f} MB after."
    ]


def killed(times: int) -> list[str]:
    """Eight clients of `examples/reward_client.py` while the server is killed and started again."""
    item = demo_set()[0]
    captions = [f"{item.good} {row}" for row in range(1200)]
    image = item.image.read_bytes()
    port = free_port()
    reward_client.SERVER = f"http://127.0.0.1:{port}"
    ask_client: Any = reward_client.ask  # an example, without types
    asked = 0

    def ask(caption: str) -> float:
        nonlocal asked
        (score,) = ask_client([caption], [image])["scores"]
        asked += 1
        return float(score)

    pool = ThreadPoolExecutor(8)
    scores = pool.map(ask, captions)
    for kill in range(times):
        with reward_server("pacs", "--weights", "tiny", port=port):
            while asked < (kill + 1) * 150:
                time.sleep(0.01)
    with reward_server("pacs", "--weights", "tiny", port=port):
        answered = list(scores)
    expected = capeval_core.load("pacs", weights="tiny").score(captions, [image] * len(captions)).scores
    distance = np.abs(np.array(answered) - expected).max()
    return [
        f"- {times} times SIGKILL and a new start under {len(captions):,} requests of 8 clients: "
        f"{len(answered):,} answers, one for each; scores differ from the metric alone by {distance:.1e}."
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=("throughput", "memory", "interleaved", "hostile", "killed")
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of load, over which memory is looked at")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--groups", type=int, default=256, help="of 8 captions, for the throughput")
    parser.add_argument("--requests", type=int, default=10_000, help="that mix in batches")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "serving.md")
    flags = parser.parse_args()
    torch.set_num_threads(1)  # as the server has
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = {
            "throughput": partial(throughput, folder, flags.clients, flags.groups),
            "memory": partial(memory_over, folder, flags.minutes),
            "interleaved": partial(interleaved, flags.requests),
            "hostile": partial(hostile, 500),
            "killed": partial(killed, 5),
        }
        chapters = chapters_of(flags.out)
        for step in flags.only or steps:
            lines = [heading(step, flags), "", *steps[step]()]
            print("\n".join(lines), flush=True)
            chapters[step] = "\n".join(lines)
            # After each step, so that a later one that fails costs none that was measured.
            text = "".join(f"\n## {step}\n\n{chapters[step]}\n" for step in steps if step in chapters)
            flags.out.write_text(f"# The reward server\n{text}")


def heading(step: str, flags: argparse.Namespace) -> str:
    """The day, the machine, and the command of a step."""
    of_step = {
        "throughput": f" --clients {flags.clients} --groups {flags.groups}",
        "memory": f" --minutes {flags.minutes:g}",
        "interleaved": f" --requests {flags.requests}",
    }
    command = f"python -m benchmarks.serving --only {step}{of_step.get(step, '')}"
    day = datetime.date.today()
    return f"{day}, {platform.machine()}, {os.cpu_count()} cores, one thread each: `{command}`."


def chapters_of(path: Path) -> dict[str, str]:
    """What a file of results has under the heading of each step."""
    chapters = {}
    for chapter in path.read_text().split("\n## ")[1:] if path.exists() else []:
        step, _, text = chapter.partition("\n")
        chapters[step] = text.strip()
    return chapters


if __name__ == "__main__":
    main()
