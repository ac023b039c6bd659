"""Metrics beside a model in training on one GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from capeval_core.integrations import CaptionMetrics
from tests.integrations.captioner import Scenes, make_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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
    for name, result in here.results[-1].items():
        metric = next(metric for metric in there.metrics if metric.name == name)
        given = {"references": scenes.references} if metric.needs_references else {}
        expected = metric.score(here.captions, scenes.images, **given)
        assert result.scores == pytest.approx(expected.scores, abs=1e-5)
        assert values[f"eval_{result.key}"] == pytest.approx(expected.mean, abs=1e-5)


def test_an_assertion_on_the_device_loses_cuda_and_this_is_noticed() -> None:
    program = """
import torch
from tests.support.seams import cuda_is_lost
values = torch.zeros(2, device="cuda")
assert not cuda_is_lost() and not cuda_is_lost("cuda:0")
values[torch.tensor([5], device="cuda")]
assert cuda_is_lost() and cuda_is_lost("cuda") and not cuda_is_lost("cpu")
print("noticed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "noticed" in done.stdout, done.stderr
