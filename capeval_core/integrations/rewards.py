"""A caption metric as the reward of a policy that writes captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capeval_core.errors import Problem, Problems, at, naming, place
from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.integrations.opening import open_one, shown


def reward(metric: Any, **options: Any) -> Reward:
    """A reward function: captions and images in, one float per caption out.

    For TRL pass it as it is, for self-critical training call it:

        GRPOTrainer(reward_funcs=reward("pacs"), ...)      # its dataset has a column `image` or `images`

        rewards = reward("pacs")
        advantages = [a - b for a, b in zip(rewards(sampled, images), rewards(greedy, images))]

    Args:
        metric: a name, a dict such as `{"name": "pacs", "w": 2.5}`, or a metric of `capeval_core.load`.
        **options: of a metric given by name, and `media`; `empty="score"` is the default here.

    Raises:
        TypeError, ValueError: as `capeval_core.load`; no `statistics` for a metric that needs them.

    >>> import torch
    >>> rewards = reward("pacs", weights="tiny")
    >>> [type(value) for value in rewards(["a red circle", "a star"], torch.rand(2, 3, 48, 48))]
    [<class 'float'>, <class 'float'>]
    """
    return Reward(metric, options)


class Reward:
    """The reward function that `reward` makes; it can be pickled."""

    def __init__(self, metric: Any, options: Mapping[str, Any]) -> None:
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

        Nothing touches the disk. Images are kept up to 512 MB, texts up to 64 MB.

        Args:
            completions: n captions: texts, or TRL's conversations, whose last message of the assistant
                counts. Reasoning in `<think>...</think>` is left out, also where its beginning or end is
                missing.
            images: n images: a tensor (n, 3, height, width) or n tensors on any device, of uint8 or float
                in [0, 1] before normalisation, or whatever `CaptionMetric.score` takes; a list of one image
                is that image, None or an empty list none. The score of a tensor is exactly that of the same
                pixels, rounded to 8 bits, in a PNG.
            references: n lists of texts, for metrics that compare with references.
            videos: n videos, for a metric on videos: tensors (frames, 3, height, width) or one (n, frames, 3,
                height, width), lists of frames, paths.
            image, video: TRL's other names for `images` and `videos`. What the metric is not about is ignored
                as other columns are.
            columns: everything else that TRL passes is ignored.

        Raises:
            TypeError, ValueError: everything that is wrong with the input, all of it at once.
        """
        given = {"images": images, "image": image, "videos": videos, "video": video}
        argument = argument_of(self.metric.media)
        names = [] if argument is None else [argument, medium_of(argument)]
        if len(values := [given[name] for name in names if given[name] is not None]) > 1:
            raise TypeError(f"reward: pass {' or '.join(names)}, not both")
        captions = _texts(completions)
        references = references if self.metric.needs_references else None
        if argument is None:
            return [*self.metric.score(captions, references=references).scores]
        visuals = in_memory(values[0] if values else None, argument)
        rows = _rows_with(visuals, captions, references)
        if rows is None:
            return [*self.metric.score(captions, references=references, **{argument: visuals}).scores]

        def of_input(argument: str, path: Sequence[int | str]) -> str:
            return place(argument, [rows[int(path[0])], *path[1:]])

        scores: list[float | None] = [None] * len(captions)
        chosen = {"captions": captions, "references": references, argument: visuals}
        present: dict[str, Any] = {
            name: column and [column[row] for row in rows] for name, column in chosen.items()
        }
        with naming(row=of_input):  # the rows of the whole input
            found = self.metric.score(**present).scores if rows else []
        for row, score in zip(rows, found, strict=True):
            scores[row] = score
        return scores

    def __repr__(self) -> str:
        return f"Reward({shown(self.metric)})"


def _texts(completions: Sequence[Any]) -> Sequence[Any]:
    """Captions of completions; other values than texts and conversations are left for the metric's check."""
    if isinstance(completions, (str, Mapping)) or not isinstance(completions, Sequence):
        return completions
    problems = Problems()
    texts = [_text(completion, i, problems) for i, completion in enumerate(completions)]
    problems.raise_if_any()
    return texts


def _text(completion: Any, index: int, problems: Problems) -> Any:
    """A completion's caption: its text, or the last message of the assistant."""
    if isinstance(completion, list) and completion and all(isinstance(one, Mapping) for one in completion):
        answers = [message for message in completion if message.get("role") == "assistant"]
        if not answers:
            roles = ", ".join(str(message.get("role")) for message in completion)
            found = f"no message of the assistant (roles: {roles})"
            problems.add(Problem(at("captions", index), f"has {found}", "pass what the policy wrote"))
            return None
        completion = answers[-1].get("content")
        if isinstance(completion, list):  # parts, of which the texts count
            completion = "".join(part.get("text", "") for part in completion if isinstance(part, Mapping))
    return without_reasoning(completion) if isinstance(completion, str) else completion


def without_reasoning(text: str) -> str:
    """A completion without its reasoning, which may have its beginning in the prompt, or no end.

    >>> without_reasoning("<think>It has four legs.</think> a dog"), without_reasoning("<think>It has")
    ('a dog', '')
    """
    _, end, after = text.rpartition("</think>")
    caption, beginning, _ = after.partition("<think>")
    return caption.strip() if end or beginning else text


def _rows_with(visuals: Any, captions: Any, references: Any) -> list[int] | None:
    """Rows that have a visual, where some have none; None: all have one, or the input is to be refused."""
    listed = [captions, *(column for column in (visuals, references) if column is not None)]
    if not all(isinstance(column, (list, tuple)) for column in listed) or len({*map(len, listed)}) > 1:
        return None
    rows = [row for row, visual in enumerate(visuals or []) if visual is not None]
    return rows if visuals is not None and len(rows) < len(visuals) else None


def in_memory(visuals: Any, argument: str) -> Any:
    """Visuals whose tensors are copied from their device, since pixels are read several times; a list of one
    image is that image, an empty one none.
    """
    if not isinstance(visuals, (list, tuple)):
        return _on_the_host(visuals)
    problems = Problems()
    copied = []
    for i, one in enumerate(visuals):
        if isinstance(one, (list, tuple)) and argument == "images":
            if len(one) > 1:
                problems.add(f"images[{i}] has {len(one)} images: a caption is scored with exactly one")
            copied.append(_on_the_host(one[0]) if one else None)
        elif isinstance(one, (list, tuple)):
            copied.append([_on_the_host(frame) for frame in one])
        else:
            copied.append(_on_the_host(one))
    problems.raise_if_any()
    return copied


def _on_the_host(value: Any) -> Any:
    import torch

    return value.detach().cpu() if isinstance(value, torch.Tensor) and not value.is_meta else value
