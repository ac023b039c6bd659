"""`caption_score` in Inspect: a task with pictures, whose outputs a mock model gives."""

from __future__ import annotations

import inspect
import tempfile
from operator import attrgetter
from typing import Any

import capeval_core
from tests.adapters import CAPTIONS, IMAGES, REFERENCES, Comparison

METRICS: dict[str, dict[str, Any]] = {
    "pacs": {"weights": "tiny"},
    "refpacs": {"weights": "tiny"},
    "rougel": {},
}


def check_recorded() -> None:
    """Compare the interface that the test suite has recorded with that of the real package."""
    from inspect_ai import scorer

    from tests.integrations.recorded_inspect import PARAMETERS

    for name, recorded in PARAMETERS.items():
        real = list(inspect.signature(attrgetter(name)(scorer)).parameters)
        if real[: len(recorded)] != recorded:
            raise RuntimeError(f"inspect_ai.scorer.{name} takes {real}, the tests have recorded {recorded}")


def trial() -> list[Comparison]:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatMessageUser,
        ContentImage,
        ContentText,
        ModelOutput,
        ModelUsage,
        get_model,
    )

    from capeval_core.integrations.inspect_ai import caption_score

    check_recorded()
    samples = [
        Sample(
            input=[
                ChatMessageUser(
                    content=[ContentText(text="Describe the image."), ContentImage(image=str(image))]
                )
            ],
            target=references,
        )
        for image, references in zip(IMAGES, REFERENCES, strict=True)
    ]
    outputs = [
        ModelOutput.from_content("mockllm/model", f"<think>What is it?</think>\n{caption}")
        for caption in CAPTIONS
    ]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it is downloaded
    task = Task(
        dataset=MemoryDataset(samples),
        scorer=[caption_score(name, **options) for name, options in METRICS.items()],
    )
    with tempfile.TemporaryDirectory() as folder:
        (log,) = eval(
            task,
            model=get_model("mockllm/model", custom_outputs=outputs),
            log_dir=folder,
            display="none",
            max_connections=1,
            max_samples=1,
        )
        if log.status != "success":
            raise RuntimeError(f"the evaluation ended with {log.status}: {log.error}")
        compared = []
        for (name, options), scored in zip(METRICS.items(), log.results.scores, strict=True):
            metric = capeval_core.load(name, **options)
            expected = metric.score(
                CAPTIONS, IMAGES if metric.media else None, REFERENCES if metric.needs_references else None
            )
            compared.append(
                Comparison(f"{scored.name}, mean: {name}", expected.mean, scored.metrics["mean"].value)
            )
            for i, sample in enumerate(log.samples):
                value = sample.scores[scored.name].value
                compared.append(Comparison(f"{scored.name}, sample {i}: {name}", expected.scores[i], value))
    return compared
