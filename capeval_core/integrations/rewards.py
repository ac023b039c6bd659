"""A caption metric as the reward of a policy that writes captions: in TRL, verl, EasyR1, or your own loop."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

import torch

from capeval_core.errors import Problem, Problems, at, described, naming, place
from capeval_core.inputs.samples import argument_of, medium_of
from capeval_core.integrations.metric_specs import MetricSpec, open_one

Visuals = Sequence[Any] | torch.Tensor | None
"""Images or videos of captions, each in any form that `CaptionMetric.score` takes."""


class Reward:
    """A reward function that can be pickled: captions and images in, one float per caption out.

        GRPOTrainer(reward_funcs=reward("pacs"), ...)      # its dataset has a column `image` or `images`

        rewards = reward("pacs")                           # self-critical training
        advantages = [a - b for a, b in zip(rewards(sampled, images), rewards(greedy, images))]

        compute_score = reward("pacs").compute_score       # in the file that verl or EasyR1 is pointed to

    Args:
        metric: a name, a dict such as `{"name": "pacs", "w": 2.5}`, or a metric of `capeval_core.load`.
        **options: of a metric given by name, and `media`; `empty="score"` is the default here.

    >>> rewards = reward("pacs", weights="tiny")
    >>> [type(value) for value in rewards(["a red circle", "a star"], torch.rand(2, 3, 48, 48))]
    [<class 'float'>, <class 'float'>]
    """

    def __init__(self, metric: MetricSpec, **options: Any) -> None:
        self.metric = open_one(metric, options, "reward")
        self.__name__ = self.metric.name  # how TRL calls it in logs

    def __call__(
        self,
        completions: Sequence[Any] | None = None,
        images: Visuals = None,
        references: Sequence[Sequence[str] | str] | None = None,
        *,
        videos: Visuals = None,
        image: Visuals = None,
        video: Visuals = None,
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
            image, video: TRL's other names. columns: what else TRL passes is ignored; with verl's keywords,
                and for EasyR1's rows, it is `compute_score`.
        """
        # verl and EasyR1 call whatever their configuration names, and that may be the reward itself.
        if _are_rows(completions) or columns.keys() & {"solution_str", "solution_strs"}:
            return self.compute_score(completions, **columns)  # type: ignore[no-any-return]
        argument = argument_of(self.metric.media)
        inputs: dict[str, Any] = {"captions": _texts(completions)}
        if self.metric.needs_references:
            inputs["references"] = references
        if argument is not None:
            plural, singular = (images, image) if argument == "images" else (videos, video)
            if plural is not None and singular is not None:
                raise TypeError(f"reward: pass {argument} or {medium_of(argument)}, not both")
            inputs[argument] = in_memory(singular if plural is None else plural, argument)
        texts = inputs["captions"]
        for column in inputs.values():
            if not isinstance(column, (list, tuple)) or len(column) != len(texts):
                with naming(notes=False):
                    return [*self.metric.score(**inputs).scores]  # which refuses lists of other lengths
        rows = []  # with an image, where the metric needs one
        for row in range(len(texts)):
            if argument is None or inputs[argument][row] is not None:
                rows.append(row)
        present: dict[str, Any] = {}
        for name, column in inputs.items():
            present[name] = [column[row] for row in rows]

        def of_input(argument: str, path: Sequence[int | str]) -> str:
            return place(argument, [rows[int(path[0])], *path[1:]])

        rewards: list[float | None] = [None] * len(texts)
        if rows or not texts:  # without captions `score` says what is missing
            with naming(row=of_input, notes=False):  # rows of the whole input; a note with each step is noise
                scores = self.metric.score(**present).scores
            for row, score in zip(rows, scores, strict=True):
                rewards[row] = score
        return rewards

    def compute_score(self, reward_inputs: object = None, **columns: Any) -> Any:
        """The reward as verl and EasyR1 ask for it.

            verl    compute_score(data_source=, solution_str=, ground_truth=, extra_info=) -> float
                    compute_score(data_sources=, solution_strs=, ground_truths=, extra_infos=) -> floats
            EasyR1  compute_score({"response", "ground_truth"}) -> {"overall": float, "pac_s": float}
                    compute_score([{...}, ...]) -> list of such dicts

        The image (or video) of a row is `image` or `images` in verl's `extra_info`, in EasyR1's row, or in a
        `ground_truth` that is a dict (or its JSON). References are `references` there, else `ground_truth`.

        Raises:
            ValueError, TypeError: a row without an image that the metric needs; all that `score` refuses.
        """
        if "solution_str" in columns:
            row = {"response": columns["solution_str"], "ground_truth": columns.get("ground_truth")}
            return self._scores_of_rows([row], [columns.get("extra_info")])[0]
        if "solution_strs" in columns:
            answers = list(columns["solution_strs"])
            truths = _as_many(columns.get("ground_truths"), answers)
            rows = []
            for answer, truth in zip(answers, truths, strict=True):
                rows.append({"response": answer, "ground_truth": truth})
            return self._scores_of_rows(rows, _as_many(columns.get("extra_infos"), answers))
        if isinstance(reward_inputs, Mapping):
            return self.compute_score([reward_inputs])[0]
        if not _are_rows(reward_inputs):
            problem = f"is {described(reward_inputs)}, and there is no solution_str"
            fix = "expected EasyR1's rows with a response, or verl's keywords"
            raise Problems([Problem("reward_inputs", problem, fix, TypeError)]).error()
        scores = self._scores_of_rows(reward_inputs, [None] * len(reward_inputs))
        # EasyR1 trains on `overall`, and logs everything else by its name.
        return [{"overall": score, self.metric.key: score} for score in scores]

    def _scores_of_rows(self, rows: Sequence[Mapping[str, Any]], more: Sequence[Any]) -> list[float]:
        """The scores of rows of verl or EasyR1, each with its further columns."""
        argument = argument_of(self.metric.media)
        problems = Problems()
        visuals: list[Any] = []
        references: list[Any] = []
        for i, (row, extra) in enumerate(zip(rows, more, strict=True)):
            truth = _parsed(row.get("ground_truth"))
            mappings = []  # verl's own column first, then the row, then what its ground truth holds
            for mapping in (extra, row, truth):
                if isinstance(mapping, Mapping):
                    mappings.append(mapping)
            texts = _first(mappings, ["references"])
            if texts is None and not isinstance(truth, Mapping):
                texts = truth
            references.append(texts)
            if argument is not None:
                visual = _first(mappings, [medium_of(argument), argument])
                visuals.append(visual)
                if visual is None or (isinstance(visual, (list, tuple)) and not visual):
                    fix = f'write it under "{medium_of(argument)}" in extra_info, the row or ground_truth'
                    problems.add(Problem(f"row {i}", f"has no {medium_of(argument)}", fix))
        problems.raise_if_any()
        inputs = {} if argument is None else {argument: visuals}
        scores = self([row["response"] for row in rows], references=references, **inputs)
        # None is TRL's way to leave a row out, of which verl and EasyR1 know nothing: they want a float.
        rewards: list[float] = []
        for score in scores:
            rewards.append(math.nan if score is None else score)
        return rewards

    def __repr__(self) -> str:
        return f"Reward({self.metric!r})"


reward = Reward  # called like a function, and a class so that it can be pickled


def _are_rows(value: object) -> TypeGuard[Any]:
    """True for rows of EasyR1, or one."""
    # TRL's conversations are lists of mappings, too; theirs have a `content`, and no `response`.
    if isinstance(value, Mapping):
        return "response" in value
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) == 0:
        return False
    return all(isinstance(row, Mapping) and "response" in row for row in value)


def _as_many(values: Iterable[Any] | None, answers: Sequence[Any]) -> Sequence[Any]:
    """A column of verl's as a list; None: of nothing."""
    return [None] * len(answers) if values is None else list(values)


def _parsed(truth: object) -> object:
    """A ground truth, of which JSON of a dict is that dict."""
    # verl's Parquet files have texts as ground truths. A caption that begins with a brace stays one.
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        with suppress(ValueError):
            parsed: object = json.loads(truth)
            return parsed
    return truth


def _first(places: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    """The first value under one of these names, None where none has one."""
    for mapping in places:
        for name in names:
            if mapping.get(name) is not None:
                return mapping[name]
    return None


def _texts(completions: object) -> object:
    """Captions of completions; other values than texts and conversations are left for the metric's check."""
    if isinstance(completions, (str, Mapping)) or not isinstance(completions, Sequence):
        return completions
    problems = Problems()
    texts = []
    for i, text in enumerate(completions):
        if isinstance(text, list) and text and all(isinstance(message, Mapping) for message in text):
            roles = [message.get("role") for message in text]
            if "assistant" not in roles:
                problem = f"has no message of the assistant (roles: {', '.join(map(str, roles))})"
                problems.add(Problem(at("captions", i), problem, "pass what the policy wrote"))
                continue
            last = len(roles) - 1 - roles[::-1].index("assistant")  # earlier ones are examples of the prompt
            text = _joined_parts(text[last].get("content"))
        texts.append(without_reasoning(text) if isinstance(text, str) else text)
    problems.raise_if_any()
    return texts


def _joined_parts(content: object) -> object:
    """A message's content; of parts, such as texts and images, the texts in one."""
    if not isinstance(content, list):
        return content
    text = ""
    for part in content:
        if isinstance(part, Mapping):
            text += part.get("text", "")
    return text


def without_reasoning(text: str) -> str:
    """A completion without its reasoning, which may have its beginning in the prompt, or no end.

    >>> without_reasoning("<think>It has four legs.</think> a dog"), without_reasoning("<think>It has")
    ('a dog', '')
    """
    _, end, after = text.rpartition("</think>")
    caption, beginning, _ = after.partition("<think>")
    return caption.strip() if end or beginning else text


def in_memory(visuals: object, argument: str) -> Any:
    """Visuals on the host; of images a list of one is that image, and an empty one none."""
    if isinstance(visuals, torch.Tensor):
        # Copied at once: pixels are read several times. One without content is refused by the check.
        return visuals if visuals.is_meta else visuals.detach().cpu()
    if not isinstance(visuals, (list, tuple)):
        return visuals
    problems = Problems()
    copied = []
    for i, visual in enumerate(visuals):
        # TRL's column `images` has a list for each prompt. A list of a video is its frames.
        if isinstance(visual, (list, tuple)) and argument == "images":
            if len(visual) > 1:
                problems.add(f"images[{i}] has {len(visual)} images: a caption is scored with exactly one")
            visual = visual[0] if visual else None
        copied.append(in_memory(visual, ""))
    problems.raise_if_any()
    return copied
