"""Metrics beside a model in training on one GPU: where they run, what they wait for, what cannot move them.

What needs no GPU runs on a CUDA device without one (`fake.py`), the rest is skipped where there is none.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import EvalPrediction

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.media import argument_of
from capeval_core.integrations import CaptionMetrics, reward
from capeval_core.integrations.rewards import in_memory
from capeval_core.metric import CaptionMetric
from capeval_core.models.device import cuda_is_lost, numbered_device
from capeval_core.registry import METRICS, load, metric_class
from capeval_core.reranking import Reranker
from tests.cuda.fake import fake_cuda
from tests.cuda.host_reads import HostReads
from tests.integrations.captioner import Scenes, make_trainer
from tests.support.seams import LIMITS
from tools.scenes import draw, sample_scene

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there: the tests on it say more")
NETWORKS = [name for name in METRICS if metric_class(name).default_weights is not None]


def rows(count: int) -> tuple[list[str], list[Image.Image]]:
    """Distinct captions of two lengths, and distinct images."""
    rng = np.random.default_rng(3)
    images = [draw(sample_scene(rng), 48) for _ in range(count)]
    colours, shapes = ["red", "green", "blue", "pink"], ["circle", "square", "star", "heart", "cross"]
    captions = [
        f"a {colour} {shape}{end}" for end in ("", " on top") for colour in colours for shape in shapes
    ]
    return captions[:count], images


def score(metric: CaptionMetric, captions: list[str], images: list[Image.Image]) -> list[float]:
    texts: list[Any] = (
        [[text, f"{text} here"] for text in captions] if isinstance(metric, Reranker) else captions
    )
    given: dict[str, Any] = {argument_of(metric.media) or "": images}
    if metric.needs_references:
        given["references"] = [[f"the {text}"] for text in captions]
    return metric.score(texts, **given).scores


# Waits


@NO_GPU
@pytest.mark.parametrize("name", NETWORKS)
def test_the_host_waits_for_batches_and_not_for_rows(name: str) -> None:
    def waits(count: int) -> int:
        options: dict[str, Any] = {"weights": "tiny", "batch_size": count // 2, "cache": FeatureCache(0)}
        if name in ("umic", "vilbertscore"):  # their attention is a kernel of CUDA alone
            metric = load(name, device="cpu", **options)
            with HostReads() as reads:
                score(metric, *rows(count))
            return reads.total
        with fake_cuda() as gpu:
            metric = load(name, device="cuda", **options)
            gpu.clear()
            score(metric, *rows(count))
            assert gpu.launches
            return len(gpu.waits)

    few, many = waits(10), waits(20)
    assert 0 < many < few + 5, (few, many)  # a wait a row would be 10 more; numbers of regions differ


@NO_GPU
@pytest.mark.parametrize("batchwise", [False, True])
def test_an_evaluation_of_a_trainer_waits_once_a_batch(batchwise: bool, tmp_path: Path) -> None:
    def waits(count: int) -> list[str]:
        scenes = Scenes(count)
        with fake_cuda():
            metrics = CaptionMetrics(
                scenes.tokenizer,
                images=scenes.images,
                metrics=["pacs"],
                weights="tiny",
                device="cuda",
                batch_size=count,
            )
        found: list[str] = []

        def compute_metrics(given: EvalPrediction, compute_result: bool | None = None) -> dict[str, float]:
            with fake_cuda() as gpu:
                if batchwise:  # where predictions stay on the device
                    given = EvalPrediction(given.predictions.to("cuda"), given.label_ids.to("cuda"))
                    gpu.clear()
                values = metrics(given, compute_result)
                found.extend(gpu.waits)
                return values

        trainer = make_trainer(
            scenes,
            tmp_path / str(count),
            compute_metrics,
            per_device_eval_batch_size=count // 2,
            batch_eval_metrics=batchwise,
        )
        assert 0 < trainer.evaluate()["eval_pac_s"] < 2
        return found

    few, many = waits(8), waits(24)
    ids = [wait for wait in few if "generated.py" in wait]
    assert len(ids) == (4 if batchwise else 0)  # captions and labels of two batches
    assert 0 < len(many) <= len(few) + 4, sorted(set(many))  # texts of other lengths are batches too


@NO_GPU
def test_images_of_a_reward_cross_to_the_host_together() -> None:
    drawn = [torch.rand(3, 40 + i, 50) for i in range(6)]
    with fake_cuda() as gpu:
        images = [image.to("cuda") for image in drawn]
        videos = [[image.half(), image.half()] for image in images]
        gpu.clear()
        copies = in_memory([images[0], [images[1]], None, *images[2:]], "images")
        assert len(gpu.waits) == 1
        frames = in_memory(videos, "videos")
        assert len(gpu.waits) == 2
        scores = reward("pacs", weights="tiny", device="cpu")(["a star"] * 6, images)
    assert copies[2] is None and all(
        copy.equal(image) for copy, image in zip(copies[3:], drawn[2:], strict=True)
    )
    assert copies[1].equal(drawn[1])
    assert all(frame.equal(drawn[i].half()) for i, video in enumerate(frames) for frame in video)
    assert scores == reward("pacs", weights="tiny", device="cpu")(["a star"] * 6, drawn)


@NO_GPU
def test_a_copy_from_the_device_needs_little_memory_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "packed_bytes", 1000)
    with fake_cuda() as gpu:
        images = [torch.rand(3, 10, 10).to("cuda") for _ in range(4)]  # of 1,200 bytes
        images += [torch.rand(3, 5, 5).to("cuda") for _ in range(6)]  # of 300 bytes
        gpu.clear()
        in_memory(images, "images")
        assert len(gpu.waits) == 4 + 2


# What a program does around a metric


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SURROUNDINGS: dict[str, Any] = {
    "autocast": lambda: torch.autocast("cuda", torch.bfloat16),
    "inference": torch.inference_mode,
    "default device": default_device,
    "default dtype": default_dtype,
}


@NO_GPU
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_what_a_training_switches_on_moves_no_score(surroundings: str) -> None:
    captions, images = rows(6)

    def scored() -> list[float]:
        metric = load("refpacs", weights="tiny", device="cuda", cache=FeatureCache(0))
        return score(metric, captions, images)

    with fake_cuda() as gpu:
        kept = load("refpacs", weights="tiny", device="cuda") if surroundings == "inference" else None
        expected = scored()  # else it is opened anew, within the surroundings
        with SURROUNDINGS[surroundings]():
            if surroundings == "autocast":
                a = torch.ones(2, 2, device="cuda")
                assert (a @ a).dtype == torch.bfloat16  # it is on
            gpu.clear()
            assert scored() == expected
        assert gpu.launches
        del kept


@NO_GPU
def test_a_network_is_opened_once_for_a_gpu_and_its_number() -> None:
    with fake_cuda():
        assert numbered_device(None) == numbered_device("cuda") == torch.device("cuda", 0)
        one = ClipEncoder.from_pretrained("tiny", device="cuda")
        assert one.device == torch.device("cuda", 0)
        assert one is ClipEncoder.from_pretrained("tiny", device="cuda:0")
        assert one is ClipEncoder.from_pretrained("tiny")


def test_a_program_without_cuda_has_not_lost_it() -> None:
    if not torch.cuda.is_initialized():
        assert not cuda_is_lost() and not cuda_is_lost("cuda:0")
    assert not cuda_is_lost("cpu")


# On a GPU


@GPU
@pytest.mark.parametrize("batchwise", [False, True])
def test_a_trainer_on_the_gpu_in_bfloat16_has_the_scores_of_the_cpu(batchwise: bool, tmp_path: Path) -> None:
    scenes = Scenes(12)
    options: dict[str, Any] = {"images": scenes.images, "references": scenes.references, "weights": "tiny"}
    here = CaptionMetrics(scenes.tokenizer, **options)
    trainer = make_trainer(
        scenes,
        tmp_path,
        here,
        use_cpu=False,
        bf16=True,
        batch_eval_metrics=batchwise,
        num_train_epochs=8,
        eval_steps=8,
    )
    trainer.train()
    values = trainer.evaluate()
    assert here.metrics[0].encoder.device.type == "cuda"  # type: ignore[attr-defined]
    there = CaptionMetrics(scenes.tokenizer, device="cpu", **options)
    for name, result in here.results.items():
        metric = next(metric for metric in there.metrics if metric.name == name)
        given = {"references": scenes.references} if metric.needs_references else {}
        expected = metric.score(here.captions, scenes.images, **given)
        assert result.scores == pytest.approx(expected.scores, abs=1e-5)
        assert values[f"eval_{result.key}"] == pytest.approx(expected.mean, abs=1e-5)


@GPU
def test_an_assertion_on_the_device_loses_cuda_and_this_is_noticed() -> None:
    program = """
import torch
from capeval_core.models.device import cuda_is_lost
from tests.support.seams import LIMITS
values = torch.zeros(2, device="cuda")
assert not cuda_is_lost() and not cuda_is_lost("cuda:0")
values[torch.tensor([5], device="cuda")]
assert cuda_is_lost() and cuda_is_lost("cuda") and not cuda_is_lost("cpu")
print("noticed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "noticed" in done.stdout, done.stderr
