"""Requests to the reward server: counts, limits to the item, batches in order, marks, protocols of others."""

from __future__ import annotations

import concurrent.futures
import io
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from PIL import Image

import capeval_core
from capeval_core.registry import metric_class
from tests.support.seams import LIMITS

pytest.importorskip("starlette", reason="needs starlette: pip install capeval[serve]")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from capeval_core.integrations import serving
from tests.integrations.test_serving import FILES, sent

TEXTS: dict[str, Any] = {"captions": ["a dog runs", "two cats"], "references": [["a dog"], ["two cats sit"]]}


@pytest.fixture(scope="module")
def texts() -> Iterator[TestClient]:
    """A server of a metric that compares texts alone."""
    with TestClient(serving.build(["rougel"]).app) as client:
        yield client


@pytest.fixture(scope="module")
def seeing() -> Iterator[TestClient]:
    with TestClient(serving.build(["pacs", "clips"], weights="tiny").app) as client:
        yield client


def grey(level: int) -> dict[str, str]:
    Image.new("L", (4, 4), level).save(file := io.BytesIO(), "PNG")
    return sent(file.getvalue())


# ---- what is counted, and in which order


def test_rows_without_a_score_are_counted_once_and_listed_by_metric(seeing: TestClient) -> None:
    broken = sent(b"no image")
    content = {"captions": ["a", "b", "c", "d"], "images": [FILES[0], broken, FILES[1], broken]}
    reply = seeing.post("/score", json=content)
    assert reply.status_code == 422 and reply.json()["error"].startswith("2 of 4 captions")
    places = [(row["metric"], row["row"]) for row in reply.json()["rows"]]
    assert places == [("pacs", 1), ("pacs", 3), ("clips", 1), ("clips", 3)]
    assert all("image" in row["problem"] for row in reply.json()["rows"])
    alone = seeing.post("/score", json={**content, "metrics": ["clips"]}).json()
    assert [(row["metric"], row["row"]) for row in alone["rows"]] == [("clips", 1), ("clips", 3)]


def test_counters_are_those_of_requests_captions_and_batches() -> None:
    server = serving.build(["rougel"])
    with TestClient(server.app) as client:
        for _ in range(2):
            assert client.post("/score", json=TEXTS).status_code == 200
        for content in ({"captions": []}, {"captions": 5}, {**TEXTS, "metrics": ["cider"]}):
            assert client.post("/score", json=content).status_code == 422
        client.get("/health")
        server.batcher.end()
        server.batcher.join(60)  # a batch is counted once its replies are out
        counters = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
    assert counters['capeval_requests_total{status="200"}'] == "2"
    assert counters['capeval_requests_total{status="422"}'] == "3"
    assert counters["capeval_captions_total"] == "4" and counters["capeval_batches_total"] == "2"
    assert counters["capeval_captions_waiting"] == "0"
    assert (
        0 < float(counters["capeval_batch_seconds_total"]) < float(counters["capeval_request_seconds_total"])
    )


def test_metrics_are_answered_as_they_are_asked_for(texts: TestClient, seeing: TestClient) -> None:
    for metrics, names in (
        (None, ["pacs", "clips"]),
        ([], ["pacs", "clips"]),
        (["clips"], ["clips"]),
        (["clips", "pacs"], ["clips", "pacs"]),
    ):
        content = {"captions": ["a"], "images": FILES[:1], "metrics": metrics}
        assert sorted(seeing.post("/score", json=content).json()["results"]) == sorted(names)
    refused = seeing.post("/score", json={**content, "metrics": ["umic"]}).json()["error"]
    assert "pacs, clips" in refused
    reply = texts.post("/score", json=TEXTS).json()
    scores = capeval_core.load("rougel").score(TEXTS["captions"], references=TEXTS["references"]).scores
    assert reply["results"]["rougel"]["scores"] == pytest.approx(scores) and "digests" not in reply
    assert reply["results"]["rougel"]["truncated"] == [False, False]


def test_a_caption_that_is_cut_off_is_marked_in_its_row(seeing: TestClient) -> None:
    captions = ["a dog", "dog " * 90, "a cat"]
    result = seeing.post("/score", json={"captions": captions, "images": FILES[:3]}).json()["results"]["pacs"]
    assert result["truncated"] == [False, True, False]
    assert [("unread" in flags) for flags in result["flags"]] == [False, True, False]


def test_digests_are_in_the_shape_of_the_request(seeing: TestClient) -> None:
    images = [FILES[0], FILES[3], FILES[0]]
    digests = seeing.post("/score", json={"captions": ["a"] * 3, "images": images}).json()["digests"]
    assert digests[0] == digests[2] != digests[1] and all(digest.startswith("sha256:") for digest in digests)
    with TestClient(serving.build(["pacs"], weights="tiny", media="video", idf=False).app) as client:
        content = {"captions": ["a", "b"], "videos": [[FILES[3]], [FILES[0], FILES[3]]]}
        reply = client.post("/score", json=content).json()
        assert reply["digests"] == [[digests[1]], [digests[0], digests[1]]]
        again = {**content, "videos": [[{"digest": one} for one in row] for row in reply["digests"]]}
        assert client.post("/score", json=again).json() == reply


def test_digests_that_are_not_here_are_listed_and_no_other_ones(seeing: TestClient) -> None:
    (digest,) = seeing.post("/score", json={"captions": ["a"], "images": [FILES[0]]}).json()["digests"]
    unknown = ["sha256:" + "0" * 64, "x" * 101]
    images = [{"digest": one} for one in (unknown[0], digest, unknown[1])]
    reply = seeing.post("/score", json={"captions": ["a"] * 3, "images": images})
    assert reply.status_code == 409 and reply.json()["unknown"] == [unknown[0], "x" * 100]
    assert reply.json()["error"].startswith("2 images")
    wrong = seeing.post("/score", json={"captions": ["a"] * 2, "images": [images[0], {"bytes": "%"}]})
    assert wrong.status_code == 422  # to send the bytes of the first would not help
    (problem,) = wrong.json()["problems"]
    assert (problem["where"], problem["problem"]) == ("images[1]", "is not base64") and problem["fix"]


def test_all_problems_of_a_request_come_with_their_places(seeing: TestClient) -> None:
    images = [FILES[0], {"bytes": 5}, {}, {"bytes": "AAAA", "digest": "x"}, FILES[0]]
    reply = seeing.post("/score", json={"captions": ["a"] * 5, "images": images})
    assert [problem["where"] for problem in reply.json()["problems"]] == [f"images[{i}]" for i in (1, 2, 3)]
    with TestClient(serving.build(["pacs"], weights="tiny", media="video", idf=False).app) as client:
        videos = [[FILES[0]], [FILES[0], {"bytes": "%"}]]
        reply = client.post("/score", json={"captions": ["a"] * 2, "videos": videos})
        assert [problem["where"] for problem in reply.json()["problems"]] == ["videos[1][1]"]
    reply = seeing.post("/score", json={"zeta": 1, "captions": ["a"], "alpha": 2, "images": [FILES[0]]})
    assert "'alpha', 'zeta'" in reply.json()["error"] and "captions" not in reply.json()["error"]


# ---- limits, to the item


def status(client: TestClient, content: Any) -> int:
    return client.post("/score", json=content).status_code


def test_limits_take_what_is_just_within_them(texts: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"captions": ["a"], "references": [["a"]]}
    monkeypatch.setattr(LIMITS, "served_captions", 2)
    assert status(texts, TEXTS) == 200
    assert status(texts, {"captions": ["a"] * 3, "references": [["a"]] * 3}) == 413
    assert status(texts, {"captions": ["a"], "references": [["a"] * 7]}) == 200  # four times as many in all
    reply = texts.post("/score", json={"captions": ["a"], "references": [["a"] * 8]})
    assert reply.status_code == 413 and reply.json()["error"].startswith("9 captions, references and frames")
    monkeypatch.setattr(LIMITS, "served_characters", 10)
    for text, expected in (("a" * 10, 200), ("a" * 11, 413)):
        assert status(texts, {**one, "captions": [text]}) == expected
        assert status(texts, {**one, "references": [["a", text]]}) == expected
    assert status(texts, {**one, "references": ["a" * 11]}) == 413  # also where a list is expected
    monkeypatch.setattr(LIMITS, "served_characters", 1_000)
    body = json.dumps(one).encode()
    for room, expected in ((0, 200), (-1, 413)):
        monkeypatch.setattr(LIMITS, "served_body_bytes", len(body) + room)
        assert texts.post("/score", content=body).status_code == expected
    monkeypatch.setattr(LIMITS, "served_body_bytes", 5 << 20)
    reply = texts.post("/score", content=bytes((5 << 20) + 1))
    assert reply.status_code == 413 and "5 MB" in reply.json()["error"]


def test_values_of_a_body_are_counted_by_their_marks(
    texts: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"captions": ["a"], "references": [["a"]]}).encode()  # { [ , [ [
    for most, expected in ((5, 200), (4, 413)):
        monkeypatch.setattr(LIMITS, "served_values", most)
        assert texts.post("/score", content=body).status_code == expected


def test_frames_and_pixels_within_the_limit_are_taken(
    seeing: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "page_image_pixels", 12)
    for size, expected in (((4, 3), 200), ((13, 1), 422)):
        Image.new("L", size, 9).save(file := io.BytesIO(), "PNG")
        assert status(seeing, {"captions": ["a"], "images": [sent(file.getvalue())]}) == expected
    monkeypatch.setattr(LIMITS, "page_frames_encoded", 2)
    frames = [grey(1), grey(2), grey(3)]
    with TestClient(serving.build(["pacs"], weights="tiny", media="video", idf=False).app) as client:
        monkeypatch.setattr(LIMITS, "page_image_pixels", 16)
        assert status(client, {"captions": ["a"], "videos": [frames[:2]]}) == 200
        reply = client.post("/score", json={"captions": ["a", "b"], "videos": [frames[:1], frames]})
        assert reply.status_code == 413 and reply.json()["error"].startswith("videos[1]: has 3 frames")


def test_an_image_that_is_used_again_stays_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its bytes and 1,000 more; asked for or sent again it counts as the newest."""
    images = [grey(level) for level in range(1, 4)]
    sizes = [len(image["bytes"]) // 4 * 3 - image["bytes"].count("=") for image in images]
    assert len(set(sizes)) == 1
    for room, use_again, gone in ((0, None, [0]), (0, "digest", [1]), (0, "bytes", [1]), (-1, None, [0, 1])):
        monkeypatch.setattr(LIMITS, "served_image_bytes", 2 * (sizes[0] + 1_000) + room)
        with TestClient(serving.build(["clips"], weights="tiny").app) as client:
            digests = []
            for number, image in enumerate(images):
                reply = client.post("/score", json={"captions": ["a"], "images": [image]})
                digests += reply.json()["digests"]
                if number == 1 and use_again is not None:
                    again = {"digest": digests[0]} if use_again == "digest" else images[0]
                    assert status(client, {"captions": ["a"], "images": [again]}) == 200
            unknown = client.post(
                "/score", json={"captions": ["a"] * 3, "images": [{"digest": digest} for digest in digests]}
            )
        assert unknown.json()["unknown"] == [digests[number] for number in gone], (room, use_again)


def test_bodies_of_refused_requests_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "served_bodies_bytes", 2_000)
    with TestClient(serving.build(["rougel"]).app) as client:
        refused = {"captions": ["a" * 1_000], "references": []}
        assert [status(client, refused) for _ in range(3)] == [422] * 3
        assert status(client, TEXTS) == 200


# ---- batches


class Held(metric_class("clips")):  # type: ignore[misc]
    """CLIPScore that begins its first batch when the test lets it, and notes the captions of each."""

    def hold(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()
        self.batches: list[list[str]] = []

    def encode(self, batch: Any) -> Any:
        self.begun.set()
        assert self.free.wait(60)
        self.batches.append(list(batch.captions))
        yield from super().encode(batch)


def batches_of(sizes: Sequence[int], batch_captions: int) -> list[int]:
    """The sizes of batches that requests of these sizes, in this order, become behind a running one."""
    metric = Held(capeval_core.load("clips", weights="tiny").options)
    metric.hold()
    server = serving.Server({"clips": metric}, batch_captions=batch_captions, seconds=0.0)
    with TestClient(server.app) as client, concurrent.futures.ThreadPoolExecutor(len(sizes) + 1) as pool:
        replies = []
        waiting = 0
        for number, size in enumerate([1, *sizes]):
            captions = [f"{number} {row}" for row in range(size)]
            content = {"captions": captions, "images": FILES[:1] * size}
            replies.append(pool.submit(client.post, "/score", json=content))
            if number == 0:
                assert metric.begun.wait(60)
                continue
            waiting += size
            while server.batcher.waiting < waiting:
                threading.Event().wait(0.002)
        metric.free.set()
        for size, reply in zip([1, *sizes], replies, strict=True):
            assert len(reply.result().json()["results"]["clips"]["scores"]) == size
    server.batcher.join(60)  # a batch is counted once its replies are out
    assert server.batcher.waiting == 0 and server.batcher.counts.captions == waiting + 1
    captions = [text for batch in metric.batches for text in batch]
    numbers = [int(text.split()[0]) for text in captions]
    assert numbers == sorted(numbers)  # in the order in which they came
    return [len(batch) for batch in metric.batches[1:]]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([2, 2, 2], [4, 2]),  # as many as fit, to the caption
        ([3, 2, 2, 1], [3, 4, 1]),  # none overtakes one that does not fit
        ([5, 1], [5, 1]),  # a request above the size is a batch of its own
        ([1, 5, 1], [1, 5, 1]),
    ],
)
def test_a_batch_takes_whole_requests_in_their_order(sizes: list[int], batches: list[int]) -> None:
    assert batches_of(sizes, batch_captions=4) == batches


def test_a_trickle_of_requests_does_not_keep_the_first_one_waiting() -> None:
    server = serving.build(["rougel"], seconds=0.5)
    one = {"captions": ["a"], "references": [["a"]]}
    with TestClient(server.app) as client, concurrent.futures.ThreadPoolExecutor(128) as pool:
        first = pool.submit(client.post, "/score", json=one)
        count = 0
        while not first.done() and count < 100:  # were each to begin the wait anew, it would go on
            pool.submit(client.post, "/score", json=one)
            threading.Event().wait(0.05)
            count += 1
        assert first.done()


def test_a_batch_that_is_full_begins_at_once_and_an_end_scores_what_waits() -> None:
    server = serving.build(["rougel"], seconds=600.0, batch_captions=2)
    with TestClient(server.app) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert status(client, TEXTS) == 200  # two captions are a batch, whatever the wait
        one = {"captions": ["a"], "references": [["a"]]}
        replies = [pool.submit(client.post, "/score", json=one) for _ in range(2)]
        assert [reply.result().status_code for reply in replies] == [200, 200]
        alone = pool.submit(client.post, "/score", json=one)
        while not server.batcher.waiting:
            threading.Event().wait(0.002)
        server.batcher.end()
        assert alone.result().status_code == 200
    server.batcher.join(60)
    assert (server.batcher.counts.batches, server.batcher.counts.captions) == (3, 5)


def test_the_queue_takes_what_just_fits_and_a_first_request_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LIMITS, "served_waiting", 3)
    one = {"captions": ["a"], "references": [["a"]]}
    for first, second, expected in ((TEXTS, one, 200), (TEXTS, TEXTS, 429), (one, TEXTS, 200)):
        server = serving.build(["rougel"], seconds=600.0)
        with TestClient(server.app) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(client.post, "/score", json=first)]
            while not server.batcher.waiting:
                threading.Event().wait(0.002)
            replies.append(pool.submit(client.post, "/score", json=second))
            most = len(first["captions"]) + len(second["captions"])
            while server.batcher.waiting < most and not replies[1].done():
                threading.Event().wait(0.002)
            server.batcher.end()
            assert [reply.result().status_code for reply in replies] == [200, expected]
    large = {"captions": ["a"] * 5, "references": [["a"]] * 5}
    with TestClient(serving.build(["rougel"], seconds=0.0).app) as client:
        assert status(client, large) == 200


# ---- marks of a caption


MARKED: dict[str, list[str]] = {
    "a b c a b c": ["repetitive"],  # 1 of 4 sequences of three words came before
    "A b c a B C": ["repetitive"],
    "a b c d a b c": [],  # 1 of 5
    "a a a": [],
    "a a a a": ["repetitive"],
    "x b c d e f g h": ["quotes_prompt"],  # eight words in a row
    "so X b c d e f g H it is": ["quotes_prompt"],
    "x b c d e f g, h": [],
    "b c d e f g h": [],
    "ab 12": [],  # half of it letters
    "ab 123": ["not_text"],
    "हिन्दी में एक वाक्य है": [],  # with marks, which count as letters
    "\u00a0é\u3000-": [],  # blanks of any kind do not count
    "\n \t": ["empty"],
    "": ["empty"],
    "7 7 7 7 7": ["repetitive", "not_text"],
}


def test_marks_begin_at_their_bounds(texts: TestClient) -> None:
    content = {
        "captions": list(MARKED),
        "references": [["a"]] * len(MARKED),
        "prompts": ["Say: x b c d e f g h"] * len(MARKED),
        "metrics": ["rougel"],
    }
    flags = texts.post("/score", json=content).json()["results"]["rougel"]["flags"]
    assert dict(zip(MARKED, flags, strict=True)) == MARKED


# ---- protocols of others


def verified(client: TestClient, output: Any, **more: Any) -> Any:
    content = {"response": {"output": output}, "references": ["a dog runs", "the dog"], **more}
    return client.post("/verify", json=content)


def message(*parts: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in parts], **more}


def test_the_caption_of_nemo_gym_is_the_text_of_the_last_message(texts: TestClient) -> None:
    references = [["a dog runs", "the dog"]]
    (expected,) = capeval_core.load("rougel").score(["a dog runs on"], references=references).scores
    refusal = {"type": "refusal", "refusal": "no"}
    for output in (
        [message("a dog ", "runs on")],
        [message("two cats"), message("a dog runs on"), {"type": "function_call", "content": "x"}],
        [{"content": "a dog runs on"}],  # a message unless it says otherwise
        [message("<think>cats</think> a dog runs on")],
        ["x", {"type": "message", "content": [refusal, {"text": "a dog runs on"}]}],
    ):
        reply = verified(texts, output)
        assert reply.json()["reward"] == pytest.approx(expected), output
        assert reply.json()["references"] == references[0]
    assert verified(texts, [message("7 7 7 7 7")]).json()["flags"] == ["repetitive", "not_text"]
    assert verified(texts, [message("a")], references=None).status_code == 422
    for output in (None, "x", [{"type": "reasoning", "content": "x"}], [message("x"), message()]):
        reply = verified(texts, output)
        assert reply.status_code == 422 and "response.output" in reply.json()["error"]
    reply = texts.post("/verify?metric=cider", json={})
    assert reply.status_code == 422 and reply.json()["error"].endswith(" rougel")


def test_the_image_of_nemo_gym_is_the_last_one_of_the_input(seeing: TestClient) -> None:
    def shown(image: dict[str, str]) -> dict[str, Any]:
        return {"type": "input_image", "image_url": f"data:image/png;base64,{image['bytes']}"}

    turns = [
        {"role": "system", "content": "x"},
        {"role": "user", "content": ["x", shown(FILES[0]), {"type": "input_text", "text": "?"}]},
        {"role": "user", "content": [shown(FILES[3]), {"type": "input_text", "image_url": "x"}]},
    ]
    content = {"response": {"output": [message("a")]}, "responses_create_params": {"input": turns}}
    expected = seeing.post("/score", json={"captions": ["a"], "images": [FILES[3]]}).json()["results"]
    reply = seeing.post("/verify", json=content).json()
    assert reply["reward"] == pytest.approx(expected["pacs"]["scores"][0], abs=1e-6)
    for url in ("data:text/png;base64,AAAA", "data:image/png,AAAA", "https://host/a.png", None):
        turns[2]["content"] = [{"type": "input_image", "image_url": url}]
        refused = seeing.post("/verify", json=content)
        assert refused.status_code == 422 and "image_url" in refused.json()["error"]


def rewarded(client: TestClient, captions: Sequence[str], labels: Any, prompt: str = "P: ") -> Any:
    queries = [prompt + caption for caption in captions]
    content = {"query": queries, "prompts": [prompt] * len(queries), "labels": labels}
    return client.post("/reward", json=content)


def test_captions_of_openrlhf_end_before_special_tokens_and_have_their_labels(texts: TestClient) -> None:
    captions = ["a dog runs on", "two cats"]
    references = [["a dog"], ["two dogs", "cats"]]
    labels = [{"references": references[0]}, json.dumps({"references": references[1]})]
    expected = capeval_core.load("rougel").score(captions, references=references).scores
    for end in ("", "</s>", " <|im_end|>\n<pad><pad>", "<eos>", "<end_of_turn> ", "<|eot_id|></s>"):
        reply = rewarded(texts, [text + end for text in captions], labels).json()
        assert reply["rewards"] == reply["scores"] == pytest.approx(expected), end
    reply = rewarded(texts, [f"<think>x</think>{text}" for text in captions], labels, "P: <think>").json()
    assert reply["rewards"] == pytest.approx(expected)
    inner = rewarded(texts, ["a <pad> dog", "two cats"], labels).json()["rewards"]
    assert inner[0] != expected[0]  # what does not stand at the end is the caption's
    logs = rewarded(texts, ["a b c a b c", "x x x x"], labels).json()["extra_logs"]
    assert logs == {"repetitive": 2, "unread": 0}


def test_labels_of_some_rows_are_no_references_of_others(texts: TestClient) -> None:
    labels: list[Any] = [{"references": ["a"]}, {"references": ["b"]}]
    assert rewarded(texts, ["a", "b"], labels).status_code == 200
    for wrong in ([labels[0]], [labels[0], {}], [labels[0], "{"], [labels[0], {}, labels[1]], [], None):
        reply = rewarded(texts, ["a", "b"], wrong)
        assert reply.status_code == 422 and "references" in reply.json()["error"], wrong
    content = {"query": ["P: a", "Q: b"], "prompts": ["P: ", "P: "], "labels": labels}
    reply = texts.post("/reward", json=content)
    assert reply.status_code == 422 and reply.json()["error"].startswith("query[1] ")
