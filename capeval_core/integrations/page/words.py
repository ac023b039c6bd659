"""Problems in the words of someone who looks at a page."""

from __future__ import annotations

import os
from collections.abc import Sequence

from capeval_core.errors import Detail, Index, Problem, Setting, Words


class PageWords(Words):
    """The words of a page, of one image and one caption; `pools`: of captions to choose from, line by line.

    >>> words = PageWords()
    >>> fix = ("write a caption", Setting("empty", "score", " or pass "))
    >>> words.line(Problem("captions", 0, "empty", fix))
    'The caption is empty: write a caption'
    >>> words.line(Problem("images", 0, "None", "every caption needs an image"))
    'The image is missing: every caption needs an image'
    >>> PageWords(pools=True).line(Problem("captions", (0, 2), "empty"))
    'Line 3 is empty'
    """

    def __init__(self, *, pools: bool = False) -> None:
        self.pools = pools

    def argument(self, argument: str, index: Index) -> str:
        inner = index[1] if isinstance(index, tuple) and len(index) > 1 else None
        if argument == "references":
            return "the list of references" if inner is None else f"reference {int(inner) + 1}"
        if argument == "captions" and self.pools:
            return "the list of captions" if inner is None else f"line {int(inner) + 1}"
        names = {"captions": "the caption", "images": "the image"}
        return names.get(argument) or super().argument(argument, index)

    def found(self, problem: Problem) -> str:
        return "missing" if problem.found == "None" else super().found(problem)

    def line(self, problem: Problem, indices: Sequence[Index] = ()) -> str:
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

    def detail(self, detail: Detail) -> str:
        return ""

    def of(self, error: BaseException) -> str:
        return capitalised(super().of(error) or type(error).__name__)


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
