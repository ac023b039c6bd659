"""The evaluation set of a training: what captions are about, and the references of each row, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capeval_core.errors import Problem, Problems, warn
from capeval_core.inputs.images import InputReferences, InputVisual
from capeval_core.inputs.samples import Samples, argument_of, check_decodable, check_visuals, medium_of
from capeval_core.inputs.texts import check_references
from capeval_core.integrations.opening import ChosenMetric
from capeval_core.metric import CaptionMetric


@dataclass(frozen=True)
class GivenVisuals:
    """The visuals that a user hands in, not checked yet.

    argument: its name, `images` or `videos`; None: there are none. values: one per row.
    """

    argument: str | None
    values: Any

    @classmethod
    def among(cls, **arguments: Any) -> GivenVisuals:
        """Those among arguments of which at most one is given.

        Raises:
            TypeError: several are given.
        """
        given = [name for name, value in arguments.items() if value is not None]
        if len(given) > 1:
            raise TypeError(f"pass {' or '.join(given)}, not both: metrics are about one of them")
        return cls(given[0], arguments[given[0]]) if given else cls(None, None)

    @property
    def medium(self) -> str | None:
        """As in `CaptionMetric.media`: `image` or `video`."""
        return None if self.argument is None else medium_of(self.argument)

    def needed_by(self, chosen: Sequence[ChosenMetric]) -> GivenVisuals:
        """These visuals, under the name by which metrics miss them; without a name if none needs any.

        Raises:
            TypeError: a metric is about others.
        """
        problems = Problems()
        needed = [argument_of(one.metric.media) for one in chosen]
        for name, one in zip(needed, chosen, strict=True):
            if self.argument is not None and name not in (None, self.argument):
                found = f"{one.metric.name} is about {name}, but {self.argument} are given"
                problems.add(Problem("metrics", found, f"pass {name}=...", TypeError))
        problems.raise_if_any()
        named = next((name for name in needed if name is not None), None)
        if named is None and self.argument is not None:
            names = ", ".join(one.metric.name for one in chosen)
            warn(f"{names}: only texts are compared, {self.argument} are ignored")
        return GivenVisuals(named, self.values)


@dataclass(frozen=True)
class EvaluationSet:
    """Visuals and references of an evaluation set, by row.

    argument: the name of the visuals, `images` or `videos`; None where texts alone are compared.
    references: per row; None: the labels of an evaluation are its references.
    """

    argument: str | None
    visuals: Sequence[InputVisual[Any]]
    references: list[list[str]] | None

    @classmethod
    def checked(
        cls, given: GivenVisuals, references: Any, chosen: Sequence[ChosenMetric], empty: str
    ) -> EvaluationSet:
        """The set that a user hands in for these metrics.

        Raises:
            TypeError, ValueError: everything that is wrong with visuals and references.
        """
        given = given.needed_by(chosen)
        problems = Problems()
        visuals = None if given.argument is None else _checked_visuals(given, chosen, problems)
        compared = None
        if references is not None and any(one.metric.needs_references for one in chosen):
            count, per = (None if visuals is None else len(visuals)), given.argument or "references"
            compared = check_references(references, count, empty, problems, per=per)
        elif references is not None:
            names = ", ".join(one.metric.name for one in chosen)
            warn(f"{names}: no references are needed, they are ignored")
        elif given.argument is None:
            fix = "pass those of the evaluation set, a list for each of its rows and in its order"
            problems.add(Problem("references", "is missing", fix))
        problems.raise_if_any()
        return cls(given.argument, [visual for visual in visuals or [] if visual is not None], compared)

    def __len__(self) -> int:
        return len(self.references or [] if self.argument is None else self.visuals)

    @property
    def unit(self) -> str:
        """What there is one of for each row, in messages."""
        return "lists of references" if self.argument is None else self.argument

    def samples(self, captions: list[str], references: list[list[str]] | None) -> Samples:
        """The set with a caption for each row."""
        return Samples(captions, self.visuals, references, range(len(captions)))

    def __str__(self) -> str:
        return "" if self.argument is None else f"{self.argument}: {len(self):,}"


def _checked_visuals(
    given: GivenVisuals, chosen: Sequence[ChosenMetric], problems: Problems
) -> Sequence[InputVisual[Any] | None] | None:
    argument, values = str(given.argument), given.values
    media = (medium_of(argument),)
    if isinstance(values, Mapping):
        found = f"{argument} is a dict: one CaptionMetrics belongs to one evaluation set, pass its {argument}"
        problems.add(found, TypeError)
        problems.raise_if_any()
    visuals = check_visuals(values, problems, media)
    if visuals == []:
        problems.add(f"{argument} is empty: there is nothing to caption")
    if any(one.options.on_error == "raise" and one.metric.media for one in chosen):
        check_decodable(visuals or [], problems, media)
    return visuals


def samples_for(metric: CaptionMetric, samples: Samples) -> Samples:
    """The samples as a metric takes them: without references that it does not need, or texts alone."""
    if not metric.media:
        references = enumerate(samples.references or [])
        return replace(
            samples, images=[InputReferences.of(texts, f"references[{i}]") for i, texts in references]
        )
    return samples if metric.needs_references else replace(samples, references=None)
