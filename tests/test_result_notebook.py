"""Results in notebooks: captions by number, the worst and the best, tables, drawings, completion."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tests.reports.test_report import Parsed
from tests.test_result import NAN, result

SCORES = [0.5, NAN, 0.1, 0.9, 0.1]


def test_a_caption_has_its_score_parts_and_error() -> None:
    own = result(SCORES, list("aabbc"))
    assert len(own) == 5
    assert own[2] == {"index": 2, "pac_s": 0.1, "cosine": 0.05, "group": "b", "error": None}
    assert own[-1] == own[4] == own[np.int64(4)]
    assert own[1]["error"] == "broken" and math.isnan(own[1]["pac_s"])
    assert [row["index"] for row in own] == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError, match=r"result\[5\]: there are 5 captions, counted from 0"):
        own[5]
    with pytest.raises(IndexError):
        own[-6]
    for wrong in ("1", 1.0, slice(2), True):
        with pytest.raises(TypeError, match="expected the number of a caption"):
            own[wrong]  # type: ignore[index]


def test_worst_and_best_leave_out_failures_and_keep_the_order_of_equals() -> None:
    own = result(SCORES)
    assert [row["index"] for row in own.worst()] == [2, 4, 0, 3]
    assert [row["index"] for row in own.best(3)] == [3, 0, 2]
    assert own.worst(0) == own.best(-1) == [] and result([NAN]).worst() == []


def test_to_pandas_is_a_row_per_caption() -> None:
    parts = {"cosine": [0.1] * 5, "words": [["a"], [], ["b", "c"], [], []]}
    own = result(SCORES, list("aabbc"), parts=parts)
    frame = own.to_pandas()
    assert list(frame.columns) == ["pac_s", "cosine", "words", "group", "error"]
    assert frame.index.name == "index" and list(frame.index) == [0, 1, 2, 3, 4]
    assert frame["pac_s"].mean() == pytest.approx(own.mean) and frame["pac_s"].dtype == np.float64
    assert frame.loc[2, "words"] == ["b", "c"] and frame.loc[1, "error"] == "broken"
    assert frame.loc[0, "error"] is None or frame["error"].isna()[0]
    assert len(result([]).to_pandas()) == 0


def test_a_notebook_shows_the_number_the_ends_and_what_failed() -> None:
    own = result([i / 10 for i in range(10)] + [NAN])
    shown = own._repr_html_()
    parsed = Parsed(shown)
    low, high = own.interval().low, own.interval().high
    assert f"pac_s 0.450 {low:.3f} to {high:.3f} (95%) · 11 captions · 1 failed" in parsed.text
    rows = re.findall("<tr><th[^>]*>(worst|best)</th><td>([0-9]+)</td><td>([0-9.]+)</td>", shown)
    assert rows == [
        ("worst", "0", "0.000"), ("worst", "1", "0.100"), ("worst", "2", "0.200"),
        ("best", "9", "0.900"), ("best", "8", "0.800"), ("best", "7", "0.700"),
    ]  # fmt: skip
    assert "10: broken" in parsed.text and own.signature in parsed.text
    styles = ";".join(attributes.get("style") or "" for _, attributes in parsed.tags)
    assert re.findall(r"(?<![-a-z])(?:color|background):\s*(\w+)", styles) == [
        "inherit",
        "inherit",
        "inherit",
        "none",
    ]


@pytest.mark.parametrize("count", range(1, 9))
def test_a_notebook_shows_no_caption_at_both_ends_unless_it_is_alone(count: int) -> None:
    """At most three at either end, and none twice: of an odd number the one in the middle is left out."""
    shown = result([i / 10 for i in range(count)] + [NAN])._repr_html_()
    ends = re.findall("<tr><th[^>]*>(worst|best)</th><td>([0-9]+)</td>", shown)
    length = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}.get(count, 3)
    worst = [("worst", f"{i}") for i in range(length)]
    assert ends == worst + [("best", f"{count - 1 - i}") for i in range(length)]


def test_what_a_notebook_shows_is_escaped_and_small() -> None:
    hostile = "<script>alert(1)</script>" * 1000
    own = result(
        SCORES,
        parts={hostile: [hostile] * 5, **{f"p{i}": [0.5] * 5 for i in range(100)}},
        signature=hostile,
        errors=dict.fromkeys(range(5), hostile),
        groups=[hostile] * 5,
    )
    shown = own._repr_html_()
    assert len(shown) < 20_000 and "script" not in {tag for tag, _ in Parsed(shown).tags}
    assert "no score" in result([NAN])._repr_html_() and result([])._repr_html_()
    assert " to " not in result(SCORES)._repr_html_()  # too few images for an interval
