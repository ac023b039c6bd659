"""A caption metric as the reward of a policy that writes captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capeval_core.errors import Problem, Problems, at, naming, place
from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.integrations.opening import open_one
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric


def reward(metric: Any, **options: Any) -> Reward:
    """A reward function: captions and images in, one float per caption out.

    For TRL pass it as it is, for self-critical training call it:

        GRPOTrainer(reward_funcs=reward("pacs"), ...)      # its dataset has a column `image` or `images`

        rewards = reward("pacs")
        advantages = [a - b for a, b in zip(rewards(sampled, images), rewards(greedy, images))]

    Args:
        metric: a name, a dict such as `{"name": "pacs", "w": 2.5}`, or a metric of `capeval_core.load`.
        **options: of a metric given by name: `weights`, `device`, `batch_size`, ..., and `media="video"` for
            one on videos. Empty captions are scored as the bare prompt: `empty="score"` is the default here.

    Raises:
        TypeError, ValueError: a metric or an option that does not exist; weights that could not be loaded;
            no `statistics` for a metric that needs those of the whole corpus.

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

        Nothing touches the disk. Equal images are encoded once, and kept up to 512 MB whatever number of
        captions is scored; what texts take is bounded by 64 MB.

        Args:
            completions: n captions: texts, or TRL's conversations, whose last message of the assistant
                counts. Reasoning in `<think>...</think>` is no part of a caption: it is left out, also where
                it has no beginning (the prompt has it) or no end (the policy was cut off, and the caption is
                empty).
            images: n images: a tensor (n, 3, height, width) or n tensors on any device, of uint8 or float
                in [0, 1], PIL images, or whatever `CaptionMetric.score` takes; a list of one image is
                that image, None or an empty list none. Tensors are copied to memory, rounded to 8 bits, and
                go the way of an image file from there: the score is exactly that of the same pixels in a
                PNG. Pass them as they are before normalisation.
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
        scores: list[float | None] = [None] * len(captions)
        if rows:
            scored = self._score_rows(rows, captions, references, visuals, argument)
            for row, score in zip(rows, scored, strict=True):
                scores[row] = score
        return scores

    def _score_rows(
        self, rows: list[int], captions: Any, references: Any, visuals: Any, argument: str
    ) -> list[float]:
        """Scores of these rows; problems name the rows of the whole input."""

        def of_input(argument: str, path: Sequence[int | str]) -> str:
            return place(argument, [rows[int(path[0])], *path[1:]])

        captions, visuals = [captions[row] for row in rows], [visuals[row] for row in rows]
        if references is not None:
            references = [references[row] for row in rows]
        with naming(row=of_input):
            return self.metric.score(captions, references=references, **{argument: visuals}).scores

    def __repr__(self) -> str:
        return f"Reward({shown(self.metric)})"


def shown(metric: CaptionMetric) -> str:
    """An open metric in a log: its key, where it runs, and its signature, which names weights and options.

    >>> import capeval_core
    >>> shown(capeval_core.load("pacs", weights="tiny", device="cpu"))
    "pac_s on cpu: capeval:pacs|weights:tiny@...|dtype:float32|w:2|prompt:'A photo depicts '|v:0.1.0"
    """
    from capeval_core.models.device import resolve_device

    device = "" if metric.default_weights is None else f" on {resolve_device(metric.options.device)}"
    return f"{metric.key}{device}: {metric.signature()}"


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
    """Visuals, copied from a device together, and once: their pixels are read several times."""
    if _is_tensor(visuals):
        return visuals if visuals.is_meta else visuals.detach().cpu()
    if not isinstance(visuals, (list, tuple)):
        return visuals
    problems = Problems()
    chosen = []
    for i, one in enumerate(visuals):
        if isinstance(one, (list, tuple)) and argument == "images":
            if len(one) > 1:
                problems.add(f"images[{i}] has {len(one)} images: a caption is scored with exactly one")
                continue
            one = one[0] if one else None
        chosen.append(one)
    problems.raise_if_any()
    parts = [part for one in chosen for part in (one if isinstance(one, (list, tuple)) else [one])]
    copies = iter(_on_the_host(parts))
    return [[next(copies) for _ in one] if isinstance(one, (list, tuple)) else next(copies) for one in chosen]


def _on_the_host(values: Sequence[Any]) -> list[Any]:
    """The values, tensors among them copied to the host, many by one copy, which waits for the device."""
    import torch

    copied = [value.detach() if _is_tensor(value) else value for value in values]
    together: dict[Any, list[int]] = {}
    for i, value in enumerate(copied):
        if _is_tensor(value) and value.device.type not in ("cpu", "meta"):
            kind = (value.device, value.dtype) if value.layout is torch.strided else i
            together.setdefault(kind, []).append(i)
    for places in together.values():
        for part in _of_bounded_bytes(places, copied):
            if len(part) == 1:
                copied[part[0]] = copied[part[0]].cpu()
                continue
            packed = torch.cat([copied[i].reshape(-1) for i in part]).cpu()
            for i, flat in zip(part, torch.split(packed, [copied[i].numel() for i in part]), strict=True):
                copied[i] = flat.reshape(copied[i].shape)
    return copied


def _of_bounded_bytes(places: list[int], tensors: Sequence[Any]) -> list[list[int]]:
    """Places in runs whose tensors have at most `LIMITS.packed_bytes` bytes, or of one place."""
    runs: list[list[int]] = []
    size = LIMITS.packed_bytes + 1
    for i in places:
        size += tensors[i].numel() * tensors[i].element_size()
        if size > LIMITS.packed_bytes:
            runs.append([])
            size = tensors[i].numel() * tensors[i].element_size()
        runs[-1].append(i)
    return runs


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
