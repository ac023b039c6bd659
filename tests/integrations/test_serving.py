"""The reward server at its HTTP door: equal scores, errors that are errors, limits, protocols of others."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import io
import json
import random
import re
import socket
import subprocess
import sys
import threading
import tracemalloc
import urllib.request
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY

import pytest
from PIL import Image

import capeval_core
from capeval_core.cli import main
from capeval_core.demo import demo_set
from capeval_core.registry import metric_class
from capeval_core.testing import count_forwards
from tests.support.reward_server import ENVIRONMENT, free_port, reward_server
from tests.support.seams import LIMITS
from tools.documents import CHECKOUT

pytest.importorskip("starlette", reason="needs starlette: pip install capeval[serve]")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from capeval_core.integrations import serving

ITEMS = demo_set()
CAPTIONS = [getattr(item, kind) for item in ITEMS for kind in ("good", "subtly_wrong", "unrelated")]
IMAGES = [item.image for item in ITEMS for _ in range(3)]


def sent(content: bytes) -> dict[str, str]:
    """An image as a client sends it."""
    return {"bytes": base64.b64encode(content).decode()}


FILES = [sent(image.read_bytes()) for image in IMAGES]


@pytest.fixture(scope="module")
def server() -> Iterator[TestClient]:
    with TestClient(serving.build(["pacs", "clips"], weights="tiny").app) as client:
        yield client


@pytest.fixture(scope="module")
def expected() -> dict[str, list[float]]:
    return {
        name: capeval_core.load(name, weights="tiny").score(CAPTIONS, IMAGES).scores
        for name in ("pacs", "clips")
    }


def test_scores_parts_and_signature_are_those_of_the_metric(
    server: TestClient, expected: dict[str, list[float]]
) -> None:
    reply = server.post("/score", json={"captions": CAPTIONS, "images": FILES})
    assert reply.status_code == 200
    metric = capeval_core.load("pacs", weights="tiny", empty="score")
    for name, scores in expected.items():
        result = reply.json()["results"][name]
        assert result["scores"] == pytest.approx(scores, abs=1e-6)
        assert (
            len(result["parts"]["cosine"])
            == len(result["flags"])
            == len(result["truncated"])
            == len(CAPTIONS)
        )
    assert reply.json()["results"]["pacs"]["signature"] == metric.signature()
    assert server.get("/signature").json()["signatures"]["pacs"] == metric.signature()
    assert server.get("/health").json() == {"status": "ok"}


def test_an_image_is_sent_and_encoded_once(server: TestClient) -> None:
    image = Image.new("RGB", (50, 40), (7, 77, 177))
    image.save(file := io.BytesIO(), "PNG")
    first = server.post("/score", json={"captions": ["blue"], "images": [sent(file.getvalue())]})
    (digest,) = first.json()["digests"]
    with count_forwards() as forwards:
        again = server.post("/score", json={"captions": ["blue"] * 3, "images": [{"digest": digest}] * 3})
    assert again.json()["results"]["pacs"]["scores"] == first.json()["results"]["pacs"]["scores"] * 3
    assert forwards.items == 0


def test_a_digest_that_is_not_here_is_asked_for(server: TestClient) -> None:
    unknown = "sha256:" + "0" * 64
    reply = server.post("/score", json={"captions": ["a"], "images": [{"digest": unknown}]})
    assert reply.status_code == 409 and reply.json()["unknown"] == [unknown]


def test_the_oldest_images_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "served_image_bytes", len(ITEMS[1].image.read_bytes()) + 10)
    with TestClient(serving.build(["pacs"], weights="tiny").app) as client:
        digests = [
            client.post("/score", json={"captions": ["a"], "images": [FILES[3 * number]]}).json()["digests"][
                0
            ]
            for number in range(2)
        ]
        statuses = [
            client.post("/score", json={"captions": ["a"], "images": [{"digest": digest}]}).status_code
            for digest in digests
        ]
    assert statuses == [409, 200]


def test_many_small_images_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "served_image_bytes", 5_000)
    digests: list[str] = []
    with TestClient(serving.build(["pacs"], weights="tiny").app) as client:
        for number in range(8):
            Image.new("L", (4, 4), number).save(file := io.BytesIO(), "PNG")
            reply = client.post("/score", json={"captions": ["a"], "images": [sent(file.getvalue())]})
            digests += reply.json()["digests"]
        first = client.post("/score", json={"captions": ["a"], "images": [{"digest": digests[0]}]})
        last = client.post("/score", json={"captions": ["a"], "images": [{"digest": digests[-1]}]})
    assert (first.status_code, last.status_code) == (409, 200)


def test_an_image_that_is_sent_twice_outlives_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one between them pushes it out while the request is read."""
    monkeypatch.setattr(LIMITS, "served_image_bytes", 10)
    images = [FILES[0], FILES[3], FILES[0]]
    with TestClient(serving.build(["pacs"], weights="tiny").app) as client:
        reply = client.post("/score", json={"captions": ["a"] * 3, "images": images})
    assert reply.status_code == 200
    digests = reply.json()["digests"]
    assert digests[0] == digests[2] != digests[1]


def test_long_words_do_not_fill_the_memory(server: TestClient) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=50_000)) for _ in range(5)]

    def ask(word: str) -> None:
        content = {"captions": [word], "images": FILES[:1], "metrics": ["clips"]}
        assert server.post("/score", json=content).status_code == 200

    ask(words[0])  # what is kept once, such as features of the image
    tracemalloc.start()
    try:
        for word in words[1:]:
            ask(word)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 4 * sum(map(len, words[1:]))  # the ids of a word take 16 bytes a letter


def test_metrics_of_the_same_weights_encode_an_image_once() -> None:
    references = [[CAPTIONS[0]]]
    content = {"captions": CAPTIONS[:1], "images": FILES[:1], "references": references}
    with TestClient(serving.build(["pacs", "refpacs"], weights="tiny").app) as client:
        with count_forwards() as alone:
            client.post("/score", json={**content, "metrics": ["refpacs"]})
        with count_forwards() as beside:
            client.post("/score", json={**content, "metrics": ["pacs"]})
    assert alone.items > 0 and beside.items == 0


def test_scores_do_not_depend_on_what_else_is_in_the_batch(server: TestClient) -> None:
    """Random requests from many threads, whose batches mix; `benchmarks.serving` sends 10,000 of them."""
    draw = random.Random(0)
    contents: list[dict[str, Any]] = []
    for number in range(120):
        rows = draw.choices(range(len(CAPTIONS)), k=draw.randint(1, 9))
        contents.append(
            {
                # Captions that come once: features of those that came before are in a cache.
                "captions": [
                    f"{CAPTIONS[row]} {number} " + "and so on " * draw.randint(0, 9) for row in rows
                ],
                "images": [FILES[row] for row in rows],
                "metrics": draw.choice([["pacs"], ["clips"], ["clips", "pacs"]]),
            }
        )

    def ask(content: dict[str, Any]) -> dict[str, Any]:
        results: dict[str, Any] = server.post("/score", json=content).json()["results"]
        return results

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(ask, contents))
    for name in ("pacs", "clips"):
        captions: list[str] = []
        images: list[bytes] = []
        scores: list[float] = []
        for content, reply in zip(contents, replies, strict=True):
            assert reply.keys() == set(content["metrics"])
            if name in reply:
                captions += content["captions"]
                images += [base64.b64decode(image["bytes"]) for image in content["images"]]
                scores += reply[name]["scores"]
        alone = capeval_core.load(name, weights="tiny").score(captions, images)
        assert scores == pytest.approx(alone.scores, abs=1e-6)
    counters = server.get("/metrics").text
    batches = int(re.search(r"^capeval_batches_total (\d+)$", counters, re.MULTILINE)[1])  # type: ignore[index]
    assert batches > 0 and "capeval_captions_waiting 0" in counters


def test_a_broken_image_is_an_error_of_its_request_alone(
    server: TestClient, expected: dict[str, list[float]]
) -> None:
    broken = {"captions": ["a", "b", "c"], "images": [FILES[0], sent(b"no image"), FILES[1]]}
    whole = {"captions": CAPTIONS[:2], "images": FILES[:2], "metrics": ["pacs"]}
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda content: server.post("/score", json=content), [broken, whole] * 6))
    for reply in replies[::2]:
        assert reply.status_code == 422 and "results" not in reply.json()
        assert {row["row"] for row in reply.json()["rows"]} == {1}
    for reply in replies[1::2]:
        assert reply.json()["results"]["pacs"]["scores"] == pytest.approx(expected["pacs"][:2], abs=1e-6)


class OutOfMemory(metric_class("pacs")):  # type: ignore[misc]
    """PAC-S on a device that has no memory for one caption."""

    def encode(self, batch: Any) -> Any:
        if "too much" in batch.captions:
            raise MemoryError("too much")
        yield from super().encode(batch)


def test_a_request_that_cannot_be_scored_costs_none_of_its_batch(expected: dict[str, list[float]]) -> None:
    metric = OutOfMemory(capeval_core.load("pacs", weights="tiny").options)
    server = serving.Server({"pacs": metric}, batch_captions=2, seconds=60.0)  # both wait for each other
    contents = [{"captions": [text], "images": FILES[:1]} for text in (CAPTIONS[0], "too much")]
    with TestClient(server.app) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        scored, failed = pool.map(lambda content: client.post("/score", json=content), contents)
    assert scored.json()["results"]["pacs"]["scores"] == pytest.approx(expected["pacs"][:1], abs=1e-6)
    assert failed.status_code >= 500


class Held(metric_class("pacs")):  # type: ignore[misc]
    """PAC-S that begins to score when the test lets it."""

    begun = threading.Event()
    free = threading.Event()

    def encode(self, batch: Any) -> Any:
        self.begun.set()
        assert self.free.wait(60)
        yield from super().encode(batch)


def test_all_that_waits_is_the_next_batch(expected: dict[str, list[float]]) -> None:
    server = serving.Server({"pacs": Held(capeval_core.load("pacs", weights="tiny").options)}, seconds=0.0)
    contents = [{"captions": CAPTIONS[:2], "images": FILES[:2]} for _ in range(6)]
    with TestClient(server.app) as client, concurrent.futures.ThreadPoolExecutor(6) as pool:
        first = pool.submit(client.post, "/score", json=contents[0])
        assert Held.begun.wait(60)
        behind = [pool.submit(client.post, "/score", json=content) for content in contents[1:]]
        while server.batcher.waiting < 10:
            threading.Event().wait(0.01)
        Held.free.set()
        for reply in (first, *behind):
            assert reply.result().json()["results"]["pacs"]["scores"] == pytest.approx(
                expected["pacs"][:2], abs=1e-6
            )
        server.batcher.end()
        server.batcher.join(60)  # a batch is counted once its replies are out
        assert "capeval_batches_total 2\n" in client.get("/metrics").text


WRONG: dict[str, tuple[Any, int, str]] = {
    "not JSON": (b"{", 400, "JSON"),
    "deep": (b"[" * 100_000, 400, "JSON"),
    "a list": (b"[]", 400, "object"),
    "no captions": ({"images": []}, 422, "captions"),
    "captions are one text": ({"captions": "a dog", "images": FILES[:1]}, 422, "captions"),
    "a number": ({"captions": ["a", 3], "images": FILES[:2]}, 422, "captions[1]"),
    "null": ({"captions": ["a", None], "images": FILES[:2]}, 422, "captions[1]"),
    "no images": ({"captions": ["a"]}, 422, "images"),
    "too few images": ({"captions": ["a", "b"], "images": FILES[:1]}, 422, "len(images)=1"),
    "a path": ({"captions": ["a"], "images": ["/etc/passwd"]}, 422, "images[0]"),
    "a path in a dict": ({"captions": ["a"], "images": [{"path": "/etc/passwd"}]}, 422, "images[0]"),
    "bytes and a path": ({"captions": ["a"], "images": [{"bytes": "/etc/passwd"}]}, 422, "images[0]"),
    "an address": ({"captions": ["a"], "images": ["https://example.com/a.png"]}, 422, "images[0]"),
    "a digest of a path": ({"captions": ["a"], "images": [{"digest": "../../etc/passwd"}]}, 409, "digest"),
    "a digest of a list": ({"captions": ["a"], "images": [{"digest": ["x"]}]}, 409, "digest"),
    "no digest": ({"captions": ["a"], "images": [{"digest": None}]}, 409, "digest"),
    "a digest of a surrogate": (b'{"captions": ["a"], "images": [{"digest": "\\ud800"}]}', 409, "digest"),
    "NaN": (b'{"captions": ["a"], "images": [NaN]}', 400, "JSON"),
    "videos for images": ({"captions": ["a"], "videos": [{"bytes": FILES[0]["bytes"]}]}, 422, "images"),
    "a long text": ({"captions": ["a" * 100_001], "images": FILES[:1]}, 413, "100,001"),
    "many references": (
        {"captions": ["a"], "images": FILES[:1], "references": [["b"] * 20_000]},
        413,
        "20,001",
    ),
    "many values": (b'{"captions": [' + b"{}," * 1_000_001 + b"1]}", 413, "values"),
    "two media": ({"captions": ["a"], "images": FILES[:1], "videos": [FILES[:1]]}, 422, "videos"),
    "unknown metric": ({"captions": ["a"], "images": FILES[:1], "metrics": ["umic"]}, 422, "metrics"),
    "metric as text": ({"captions": ["a"], "images": FILES[:1], "metrics": "pacs"}, 422, "metrics"),
    "unknown key": ({"captions": ["a"], "image": FILES[:1]}, 422, "'image'"),
    "prompts": ({"captions": ["a"], "images": FILES[:1], "prompts": ["a", "b"]}, 422, "prompts"),
    "a surrogate": (b'{"captions": ["\\ud800"], "images": [{"bytes": "AAAA"}]}', 422, "captions[0]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_an_error_with_its_place(server: TestClient, case: str) -> None:
    content, status, place = WRONG[case]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    reply = server.post("/score", content=body)
    assert reply.status_code == status and place in reply.json()["error"], reply.text
    assert "root:" not in reply.text


def test_too_large_requests_and_images_are_refused(
    server: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "served_captions", 2)
    reply = server.post("/score", json={"captions": ["a"] * 3, "images": FILES[:3]})
    assert reply.status_code == 413 and "captions" in reply.json()["error"]
    monkeypatch.setattr(LIMITS, "page_image_pixels", 1_000)
    Image.new("RGB", (50, 41)).save(file := io.BytesIO(), "PNG")
    reply = server.post("/score", json={"captions": ["a"], "images": [sent(file.getvalue())]})
    assert reply.status_code == 422 and reply.json()["problems"][0]["where"] == "images[0]"
    monkeypatch.setattr(LIMITS, "served_body_bytes", 1_000)
    assert server.post("/score", content=b" " * 1_001).status_code == 413


def test_a_full_queue_asks_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "served_waiting", 3)
    served = serving.build(["pacs"], weights="tiny", seconds=30.0)  # a batch waits until the server ends
    with TestClient(served.app) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        content = {"captions": CAPTIONS[:2], "images": FILES[:2]}
        first = pool.submit(client.post, "/score", json=content)
        while not served.batcher.waiting:
            threading.Event().wait(0.01)
        second = client.post("/score", json=content)
        assert second.status_code == 429 and int(second.headers["retry-after"]) >= 1
        served.batcher.end()
        assert first.result().status_code == 200


def test_without_the_token_nothing_is_answered() -> None:
    with TestClient(serving.build(["pacs"], weights="tiny", token="secret").app) as client:
        content = {"captions": CAPTIONS[:1], "images": FILES[:1]}
        for header in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
            assert client.post("/score", json=content, headers=header).status_code == 401
            assert client.get("/metrics", headers=header).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert client.post("/score", json=content, headers=right).status_code == 200
        assert client.get("/health").status_code == 200


def test_flags_mark_what_a_policy_may_learn(server: TestClient) -> None:
    prompt = "Describe what you see in this picture in one sentence please."
    captions = ["a dog " * 60, prompt, "?!? 1234 :-)", "", "a red circle on the left"]
    content = {"captions": captions, "images": FILES[:5], "prompts": [prompt] * 5, "metrics": ["pacs"]}
    flags = server.post("/score", json=content).json()["results"]["pacs"]["flags"]
    assert flags == [["repetitive", "unread"], ["quotes_prompt"], ["not_text"], ["empty"], []]


@pytest.mark.parametrize("name", ["bleu", "eco", "unknown"])
def test_what_is_no_reward_of_a_caption_is_not_served(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        serving.build([name])


def test_references_and_videos_are_scored_too() -> None:
    references = [[item.good] for item in ITEMS[:2] for _ in range(3)]
    with TestClient(serving.build(["refpacs", "rougel"], weights="tiny").app) as client:
        content = {"captions": CAPTIONS[:6], "images": FILES[:6], "references": references}
        reply = client.post("/score", json=content).json()["results"]
    for name in ("refpacs", "rougel"):
        tiny: Any = {"weights": "tiny"} if name == "refpacs" else {}
        metric: Any = capeval_core.load(name, **tiny)
        images = IMAGES[:6] if name == "refpacs" else None
        scores = metric.score(CAPTIONS[:6], images, references).scores
        assert reply[name]["scores"] == pytest.approx(scores, abs=1e-6)
    with TestClient(serving.build(["pacs"], weights="tiny", media="video", idf=False).app) as client:
        content = {"captions": CAPTIONS[:1], "videos": [[FILES[0], FILES[3], FILES[6]]]}
        reply = client.post("/score", json=content).json()["results"]
    film = capeval_core.load("pacs", media="video", weights="tiny", idf=False)
    scores = film.score(CAPTIONS[:1], videos=[[IMAGES[0], IMAGES[3], IMAGES[6]]]).scores
    assert reply["pacs"]["scores"] == pytest.approx(scores, abs=1e-6)


# ---- protocols of others


def test_nemo_gym_verifies_a_response(server: TestClient, expected: dict[str, list[float]]) -> None:
    url = f"data:image/png;base64,{FILES[0]['bytes']}"
    question = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]
    text = f"<think>hm</think>{CAPTIONS[0]}"
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    content = {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "response": {"id": "r", "output": [{"type": "reasoning", "summary": []}, answer]},
        "task": "of theirs",
    }
    reply = server.post("/verify", json=content).json()
    assert reply["reward"] == pytest.approx(expected["pacs"][0], abs=1e-6)
    assert reply["task"] == "of theirs" and reply["response"]["id"] == "r"
    reply = server.post("/verify?metric=clips", json=content).json()
    assert reply["reward"] == pytest.approx(expected["clips"][0], abs=1e-6)
    question[1]["image_url"] = "file:///etc/passwd"
    assert server.post("/verify", json=content).status_code == 422
    for output in ([], [{"type": "message", "content": [{"type": "output_text", "text": None}]}]):
        content["response"] = {"output": output}
        assert server.post("/verify", json=content).status_code == 422


def test_openrlhf_gets_its_rewards(server: TestClient, expected: dict[str, list[float]]) -> None:
    prompts = ["USER: what is this?\nASSISTANT: "] * 3
    labels: list[Any] = [{"image": image} for image in FILES[:3]]
    labels[1] = json.dumps(labels[1])
    queries = [prompt + caption for prompt, caption in zip(prompts, CAPTIONS, strict=False)]
    content = {"query": queries, "prompts": prompts, "labels": labels}
    reply = server.post("/reward", json=content).json()
    assert reply["rewards"] == reply["scores"] == pytest.approx(expected["pacs"][:3], abs=1e-6)
    ended = [query + "<|im_end|></s>" for query in queries]
    assert server.post("/reward", json={**content, "query": ended}).json()["rewards"] == reply["rewards"]
    changes: list[dict[str, Any]] = [
        {"labels": []},
        {"labels": 5},
        {"prompts": prompts[:2]},
        {"prompts": ["USER: another"] * 3},
        {"query": "a dog"},
    ]
    for change in changes:
        assert server.post("/reward", json={**content, **change}).status_code == 422


def test_an_inference_endpoint_replies_as_the_server(server: TestClient) -> None:
    content = {"captions": CAPTIONS[:3], "images": FILES[:3]}
    endpoint = serving.Endpoint("tiny")
    reply = endpoint({"inputs": content})
    served = server.post("/score", json={**content, "metrics": ["pacs"]}).json()
    assert reply.keys() == served.keys() and reply["digests"] == served["digests"]
    result = reply["results"]["pacs"]
    served_result = served["results"]["pacs"]
    assert result["scores"] == pytest.approx(served_result["scores"], abs=1e-6)
    assert result | {"scores": ANY, "parts": ANY} == served_result
    (digest, *_) = reply["digests"]
    again = endpoint({"inputs": {"captions": CAPTIONS[:1], "images": [{"digest": digest}]}})
    assert again["results"]["pacs"]["scores"] == pytest.approx(
        reply["results"]["pacs"]["scores"][:1], abs=1e-6
    )
    broken = {"captions": ["a"], "images": [sent(b"no image")]}
    with pytest.raises(ValueError) as refused:
        endpoint({"inputs": broken})
    assert (
        json.loads(str(refused.value)) == server.post("/score", json={**broken, "metrics": ["pacs"]}).json()
    )
    for data in ({"inputs": "a dog"}, {}, {"inputs": content, "parameters": {"metrics": ["clips"]}}):
        with pytest.raises(ValueError, match="inputs"):
            endpoint(data)


# ---- the process, and the client that trainers use


@pytest.mark.system
def test_a_killed_server_costs_no_reward(expected: dict[str, list[float]]) -> None:
    """The client of `examples/` asks again while the server is killed and started anew."""
    port = free_port()
    asking = f"""
import sys
sys.path.insert(0, {str(CHECKOUT / "examples")!r})
import reward_client
from tests.integrations.test_serving import CAPTIONS, IMAGES
reward_client.SERVER = "http://127.0.0.1:{port}"
for _ in range(30):
    print(*reward_client.ask(CAPTIONS, IMAGES)["scores"], flush=True)
"""
    with reward_server("pacs", "--weights", "tiny", port=port) as server:
        client = subprocess.Popen(
            [sys.executable, "-c", asking], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        lines = [client.stdout.readline() for _ in range(3)]
        server.process.kill()
    with reward_server("pacs", "--weights", "tiny", port=port):
        output, _ = client.communicate(timeout=300)
    lines += output.splitlines()
    assert client.returncode == 0 and len(lines) == 30
    for line in lines:
        assert [float(score) for score in line.split()] == pytest.approx(expected["pacs"], abs=1e-6)


@pytest.mark.system
def test_headers_that_do_not_end_leave_the_server_free() -> None:
    """As many connections as it takes, each with half of its headers, one more byte now and then."""
    patient = "from capeval_core.limits import LIMITS; LIMITS.served_header_seconds = 2.0"
    with (
        reward_server("pacs", "--weights", "tiny", first=patient) as server,
        contextlib.ExitStack() as connections,
    ):
        idle = [
            connections.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(256)
        ]
        for connection in idle[:128]:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost:")
        for connection in idle[128:]:  # a further request of a connection that had an answer
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\nHo")
        closed = 0
        while closed < len(idle):
            closed = 0
            for connection in idle:
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    connection.sendall(b"a")
                try:
                    while connection.recv(4096):
                        pass
                except BlockingIOError:
                    continue
                except ConnectionError:
                    pass
                closed += 1
            threading.Event().wait(0.2)
        with urllib.request.urlopen(f"{server.address}/health", timeout=60) as reply:
            assert reply.status == 200


def test_the_command_refuses_what_it_cannot_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for line, named in (
            (["serve", "pacs", "--port", port], "--port"),
            (["serve", "pacs", "--token", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
            (["serve", "bleu", "--port", "0"], "--port"),
            (["serve", "pacs", "--wait", "-1"], "--wait"),
        ):
            assert main(line) == 2
            assert named in capsys.readouterr().err
