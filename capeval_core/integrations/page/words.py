"""What a page says, of one caption or of captions to choose from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from capeval_core.demo import KINDS, DemoItem
from capeval_core.description import describe_metric
from capeval_core.errors import naming, place
from capeval_core.inputs.samples import ARGUMENTS, medium_of
from capeval_core.metric import CaptionMetric

_LIST_MARK = re.compile(r"^(?:[-*•–—]|\d{1,3}[.)])(?:\s+|$)")


@dataclass(frozen=True)
class PageTexts:
    """What a page calls things.

    lines: of the box for captions, at first and at most; where one is enough, Enter scores. compared: what is
    given beside the visual. verb: between the metric's name and the caption that has the score. pool: whether
    captions are chosen from; otherwise an example shows one caption, of a kind that can be chosen.
    """

    label: str
    lines: tuple[int, int]
    compared: str
    truncated: str
    verb: str
    pool: bool

    def captions(self, text: str) -> str | list[str]:
        """What is to be scored, of the text in the box."""
        return lines_of(text) if self.pool else text

    def example(self, item: DemoItem, kind: str) -> str:
        """The text in the box that an example has."""
        if self.pool:
            return "\n".join([*item.references, *(getattr(item, field) for field in KINDS.values())])
        return str(getattr(item, KINDS[kind]))

    def naming(self) -> AbstractContextManager[None]:
        """Let problems be those of the page's boxes.

        >>> from capeval_core.errors import at
        >>> with CHOICE.naming():
        ...     at("captions", (0, 2)), at("images", 0)
        ('line 3', 'the image')
        """
        names = {"captions": "the list of captions" if self.pool else "the caption"}
        names |= {
            "references": "the list of references",
            **{name: f"the {medium_of(name)}" for name in ARGUMENTS},
        }

        def row(argument: str, path: Sequence[int | str]) -> str:
            if len(path) > 1 and isinstance(path[1], int) and argument in ("captions", "references"):
                return f"{'line' if argument == 'captions' else 'reference'} {path[1] + 1}"
            return place(argument, path[1:])

        return naming(names, row=row, advice=_advice)


CAPTION = PageTexts("Caption", (1, 6), "a caption", "The caption", "of", pool=False)
CHOICE = PageTexts(
    "Captions to choose from, one per line",
    (6, 20),
    "captions to choose from",
    "A caption",
    "chooses",
    pool=True,
)


def texts_of(metric: type[CaptionMetric]) -> PageTexts:
    """The texts of a metric's page."""
    return CHOICE if describe_metric(metric).command == "rerank" else CAPTION


def needs_of(metric: type[CaptionMetric]) -> str:
    """What a press of Score needs."""
    visual = describe_metric(metric).visual
    visuals = [] if visual is None else [f"a{'n' * (visual[0] in 'aeiou')} {visual}"]
    needed = [*visuals, texts_of(metric).compared, *(["references"] if metric.needs_references else [])]
    return " and ".join(filter(None, [", ".join(needed[:-1]), needed[-1]]))


def _advice(name: str, value: Any) -> str:
    """How an option is set; the page has none but the weights."""
    if name != "weights":
        return ""
    if value == "tiny":
        return "choose tiny"
    if "SPACE_ID" in os.environ:  # on the Hub, where nobody types commands
        return f"start this page with CAPEVAL_WEIGHTS={value}"
    return f"start `capeval page` with --weights {value}"


def lines_of(text: str) -> list[str]:
    """The lines that say something, without the bullets and numbers of a list that was pasted."""
    lines = [_LIST_MARK.sub("", line.strip(), count=1) for line in text.splitlines()]
    return list(filter(None, lines))


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
