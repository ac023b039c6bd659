"""A caption metric as a scorer of Inspect: the model's output against the sample's image."""

from __future__ import annotations

import base64
import math
from functools import partial
from typing import Any

from capeval_core.errors import wrong_option
from capeval_core.inputs.samples import argument_of
from capeval_core.integrations.metric_specs import open_one
from capeval_core.integrations.rewards import without_reasoning
from capeval_core.project import needs

with needs("inspect_ai", "inspect"):
    from anyio import Lock, to_thread
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import TaskState


def caption_score(metric: str | dict[str, Any] = "pacs", **options: Any) -> Scorer:
    """Score each output as the caption of the last image of its sample's input.

        Task(dataset=..., solver=generate(), scorer=caption_score("pacs"))

    The mean is that of `CaptionMetric.score` over all samples. References are the sample's target, a list of
    texts or one. Reasoning in `<think>...</think>` is left out. A score has the caption as its answer, the
    parts of the metric and its signature as metadata.

    Args:
        metric: a name, or a dict such as `{"name": "pacs", "w": 2.5}`.
        **options: `weights`, `device`, ...; `empty` is "score" by default. With `on_error="nan"` a sample
            whose image cannot be read is unscored, with the reason.
    """
    opened = open_one(metric, options, "caption_score")
    fix = "score its log by `score`"
    if opened.formula is not None:
        raise wrong_option("metric", opened.name, "is a number of all captions, not a mean", fix)
    if argument_of(opened.media) == "videos":
        raise wrong_option("metric", opened.name, "scores videos", fix, sentence=True)
    lock = Lock()  # samples are scored concurrently, and share one network

    async def score(state: TaskState, target: Target) -> Score:
        caption = without_reasoning(state.output.completion).strip()
        async with lock:
            images = [last_image(state.input)] if opened.media else None  # None is refused by `score`
            references = [list(target)] if opened.needs_references else None
            run = partial(opened.score, [caption], images, references)
            result = await to_thread.run_sync(run)  # the event loop goes on: it waits for other answers
        parts = {name: values[0] for name, values in result.parts.items()}
        metadata = {**parts, "signature": result.signature}
        # Unscored and not NaN, which would make the mean of all samples NaN.
        if not math.isfinite(result.scores[0]):
            reason = result.errors.get(0, "the score is not finite")
            return Score.unscored(answer=caption, explanation=reason, metadata=metadata)
        return Score(value=result.scores[0], answer=caption, metadata=metadata)

    # Inspect registers a function that makes a scorer, and logs the arguments that it is called with.
    named = scorer(metrics=[mean(), stderr()], name=opened.name)(lambda metric, **options: score)
    return named(metric, **options)


def last_image(messages: str | list[Any]) -> str | bytes | None:
    """The last image of a sample's input: a path, the bytes of a data URL, or None."""
    if isinstance(messages, str):
        return None
    images: list[str] = []
    for message in messages:
        # A text alone, or parts.
        for part in [] if isinstance(message.content, str) else message.content:
            if part.type == "image":
                images.append(part.image)
    if not images:
        return None
    image = images[-1]  # images before it are examples of the prompt
    if image.startswith("data:"):
        return base64.b64decode(image.partition(",")[2])
    return image
