"""A caption metric as the reward of a policy that writes captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from capeval_core.errors import Problem, Problems, at, naming, place
from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.integrations.opening import open_one


class Reward:
    """A reward function that can be pickled: captions and images in, one float per caption out.

        GRPOTrainer(reward_funcs=reward("pacs"), ...)      # its dataset has a column `image` or `images`

        rewards = reward("pacs")                           # self-critical training
        advantages = [a - b for a, b in zip(rewards(sampled, images), rewards(greedy, images))]

    Args:
        metric: a name, a dict such as `{"name": "pacs", "w": 2.5}`, or a metric of `capeval_core.load`.
        **options: of a metric given by name, and `media`; `empty="score"` is the default here.

    >>> rewards = reward("pacs", weights="tiny")
    >>> [type(value) for value in rewards(["a red circle", "a star"], torch.rand(2, 3, 48, 48))]
    [<class 'float'>, <class 'float'>]
    """

    def __init__(self, metric: Any, **options: Any) -> None:
        self.metric = open_one(metric, options, "reward")
        self.__name__ = self.metric.name  # how TRL calls it in logs

    def __call__(
        self,
        completions: Sequence[Any],
        images: Any = None,
        references: Any = None,
        *,
        videos: Any = None,
        image: Any = None,
        video: Any = None,
        **columns: Any,
    ) -> list[float | None]:
        """The score of each caption; None for a row without an image (or video), which TRL leaves out.

        Args:
            completions: n texts, or TRL's conversations, whose last message of the assistant counts; without
                the reasoning in `<think>...</think>`.
            images: tensors (3, height, width) on any device, of uint8 or float in [0, 1], or whatever
                `CaptionMetric.score` takes; a list of one image is that image, None or an empty list none.
            references: n lists of texts, for metrics that compare with references.
            videos: tensors (frames, 3, height, width), lists of frames, paths.
            image, video: TRL's other names. columns: what else TRL passes is ignored.
        """
        argument = argument_of(self.metric.media)
        inputs: dict[str, Any] = {"captions": _texts(completions)}
        if self.metric.needs_references:
            inputs["references"] = references
        if argument is not None:
            many, trl = (images, image) if argument == "images" else (videos, video)
            if many is not None and trl is not None:
                raise TypeError(f"reward: pass {argument} or {medium_of(argument)}, not both")
            inputs[argument] = in_memory(trl if many is None else many, argument)
        texts = inputs["captions"]
        if not all(isinstance(one, (list, tuple)) and len(one) == len(texts) for one in inputs.values()):
            with naming(notes=False):
                return [*self.metric.score(**inputs).scores]  # which refuses lists of other lengths
        rows = [row for row in range(len(texts)) if argument is None or inputs[argument][row] is not None]
        present: dict[str, Any] = {name: [column[row] for row in rows] for name, column in inputs.items()}

        def of_input(argument: str, path: Sequence[int | str]) -> str:
            return place(argument, [rows[int(path[0])], *path[1:]])

        with naming(row=of_input, notes=False):  # rows of the whole input; a note with each step is noise
            found = self.metric.score(**present).scores if rows or not texts else []
        scores = dict(zip(rows, found, strict=True))
        return [scores.get(row) for row in range(len(texts))]

    def __repr__(self) -> str:
        return f"Reward({self.metric!r})"


reward = Reward


def _texts(completions: Sequence[Any]) -> Sequence[Any]:
    """Captions of completions; other values than texts and conversations are left for the metric's check."""
    if isinstance(completions, (str, Mapping)) or not isinstance(completions, Sequence):
        return completions
    problems, texts = Problems(), []
    for i, text in enumerate(completions):
        if isinstance(text, list) and text and all(isinstance(one, Mapping) for one in text):
            answers = [message.get("content") for message in text if message.get("role") == "assistant"]
            if not answers:
                roles = ", ".join(str(message.get("role")) for message in text)
                found = f"has no message of the assistant (roles: {roles})"
                problems.add(Problem(at("captions", i), found, "pass what the policy wrote"))
            text = answers[-1] if answers else None
            if isinstance(text, list):  # parts, of which the texts count
                text = "".join(part.get("text", "") for part in text if isinstance(part, Mapping))
        texts.append(without_reasoning(text) if isinstance(text, str) else text)
    problems.raise_if_any()
    return texts


def without_reasoning(text: str) -> str:
    """A completion without its reasoning, which may have its beginning in the prompt, or no end.

    >>> without_reasoning("<think>It has four legs.</think> a dog"), without_reasoning("<think>It has")
    ('a dog', '')
    """
    _, end, after = text.rpartition("</think>")
    caption, beginning, _ = after.partition("<think>")
    return caption.strip() if end or beginning else text


def in_memory(visuals: Any, argument: str) -> Any:
    """Visuals on the host; of images a list of one is that image, and an empty one none."""
    if isinstance(visuals, torch.Tensor):  # whose pixels are read several times
        return visuals if visuals.is_meta else visuals.detach().cpu()
    if not isinstance(visuals, (list, tuple)):
        return visuals
    problems, copied = Problems(), []
    for i, one in enumerate(visuals):
        if isinstance(one, (list, tuple)) and argument == "images":
            if len(one) > 1:
                problems.add(f"images[{i}] has {len(one)} images: a caption is scored with exactly one")
            one = one[0] if one else None
        copied.append(in_memory(one, ""))
    problems.raise_if_any()
    return copied
