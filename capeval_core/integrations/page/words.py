"""What a page says, of one caption or of captions to choose from, and how it words problems."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from capeval_core.demo import KINDS, DemoItem
from capeval_core.description import describe_metric
from capeval_core.errors import Detail, Index, Piece, Problem, Setting, Words
from capeval_core.inputs.samples import ARGUMENTS, medium_of
from capeval_core.metric import CaptionMetric

_LIST_MARK = re.compile(r"^(?:[-*•–—]|\d{1,3}[.)])(?:\s+|$)")


class PageWords(Words):
    """The words of a page, of one image or video and one caption.

    visual: what captions are about; None for texts alone. references: whether they are compared with any.

    >>> words = PageWords()
    >>> words.needs, PageWords("video", references=True).needs
    ('an image and a caption', 'a video, a caption and references')
    >>> fix = ("write a caption", Setting("empty", "score", " or pass "))
    >>> words.line(Problem("captions", 0, "empty", fix))
    'The caption is empty: write a caption'
    >>> words.line(Problem("images", 0, "None", "every caption needs an image"))
    'The image is missing: every caption needs an image'
    """

    label: ClassVar = "Caption"
    lines: ClassVar = (1, 6)
    """Of the box for captions, at first and at most; where one is enough, Enter scores."""
    compared: ClassVar = "a caption"
    """What is given beside the visual."""
    truncated: ClassVar = "The caption"
    verb: ClassVar = "of"
    """Between the metric's name and the caption that has the score."""
    has_kinds: ClassVar = True
    """Whether an example shows one of its captions, of a kind that can be chosen."""

    def __init__(self, visual: str | None = "image", *, references: bool = False) -> None:
        self.visual, self.references = visual, references

    @property
    def needs(self) -> str:
        """What a press of Score needs."""
        visual = [] if self.visual is None else [f"a{'n' * (self.visual[0] in 'aeiou')} {self.visual}"]
        needed = [*visual, self.compared, *(["references"] if self.references else [])]
        return " and ".join(filter(None, [", ".join(needed[:-1]), needed[-1]]))

    def captions(self, text: str) -> str | list[str]:
        """What is to be scored, of the text in the box."""
        return text

    def example(self, item: DemoItem, kind: str) -> str:
        """The text in the box that an example has."""
        return str(getattr(item, KINDS[kind]))

    def argument(self, argument: str, index: Index) -> str:
        inner = index[1] if isinstance(index, tuple) and len(index) > 1 else None
        if argument == "references":
            return "the list of references" if inner is None else f"reference {int(inner) + 1}"
        names = {"captions": "the caption", **{name: f"the {medium_of(name)}" for name in ARGUMENTS}}
        return names.get(argument) or super().argument(argument, index)

    def line(self, problem: Problem, indices: Sequence[Index] = ()) -> str:
        if problem.found == "None":
            problem = replace(problem, found="missing")
        if problem.argument == "references" and not isinstance(problem.index, tuple):
            problem = replace(problem, fix="write at least one under 'References'")
        return capitalised(super().line(problem, indices))

    def setting(self, setting: Setting) -> str:
        """What an option can do is left out, as the page has none but the weights."""
        if setting.name != "weights":
            return ""
        if setting.value == "tiny":
            return "choose tiny"
        if "SPACE_ID" in os.environ:  # on the Hub, where nobody types commands
            return f"start this page with CAPEVAL_WEIGHTS={setting.value}"
        return f"start `capeval page` with --weights {setting.value}"

    def piece(self, piece: Piece) -> str:
        return "" if isinstance(piece, Detail) else super().piece(piece)

    def of(self, error: BaseException) -> str:
        return capitalised(super().of(error) or type(error).__name__)


class PoolWords(PageWords):
    """The words of a page of captions to choose from, one per line.

    >>> PoolWords().line(Problem("captions", (0, 2), "empty"))
    'Line 3 is empty'
    """

    label = "Captions to choose from, one per line"
    lines = (6, 20)
    compared = "captions to choose from"
    truncated = "A caption"
    verb = "chooses"
    has_kinds = False

    def captions(self, text: str) -> list[str]:
        return lines_of(text)

    def example(self, item: DemoItem, kind: str) -> str:
        return "\n".join([*item.references, *(getattr(item, field) for field in KINDS.values())])

    def argument(self, argument: str, index: Index) -> str:
        if argument != "captions":
            return super().argument(argument, index)
        inner = index[1] if isinstance(index, tuple) and len(index) > 1 else None
        return "the list of captions" if inner is None else f"line {int(inner) + 1}"


_OF_COMMAND = {"score": PageWords, "rerank": PoolWords}


def words_of(metric: type[CaptionMetric]) -> PageWords:
    """The words of a metric's page."""
    described = describe_metric(metric)
    return _OF_COMMAND[described.command](described.visual, references=metric.needs_references)


def lines_of(text: str) -> list[str]:
    """The lines that say something, without the bullets and numbers of a list that was pasted."""
    lines = [_LIST_MARK.sub("", line.strip(), count=1) for line in text.splitlines()]
    return list(filter(None, lines))


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
