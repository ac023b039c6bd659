"""Every door with every metric that it takes gives what `metric.score` gives."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tests.doors.doors import DOORS, RATINGS, Answer, two_processes
from tests.doors.given import METRICS, ODD, OF_A_RUN, OPTIONS, Given, every, expected, given, opened

pytestmark = pytest.mark.filterwarnings("ignore")
MATRIX = [f"{name}-{metric}" for name, door in DOORS.items() for metric in door.takes]
SLOW = [f"page-{metric}" for metric in ("refpacs", "hices", "umic")]
"""Pages take seconds to build: in the first lane one of each kind, of images, of boxes and of pools."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doors")


def check(found: Answer, asked: Given, *, alone: bool = False) -> None:
    """The answer is that of `metric.score`, as far as the door says it."""
    result = expected(asked)
    scores = np.array(result.scores)
    if alone:
        scores = np.array([expected(one).scores[0] for one in asked.alone])
    if found.number is not None:
        assert found.number == pytest.approx(result.mean, abs=1e-6)
    if found.scores is not None:
        own = [math.nan if score is None else score for score in found.scores]
        np.testing.assert_allclose(own, scores, rtol=0, atol=1e-6)
    if found.agreement is not None:
        whole = np.isfinite(scores)
        agreement = np.corrcoef(scores[whole], np.array(RATINGS[: len(scores)])[whole])[0, 1]
        assert found.agreement == pytest.approx(agreement, abs=1e-6)
    if found.signature is not None:
        signatures = (
            re.sub(r"\|(refs|images):[^|]*", "", one) for one in (found.signature, result.signature)
        )
        assert len(set(signatures)) == 1


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.system] * (case in SLOW)) for case in MATRIX]
)
def test_the_number_is_that_of_score(case: str, base: Path, tmp_path: Path) -> None:
    name, metric = case.split("-")
    door = DOORS[name]
    asked = given(metric, base, stream=door.stream)
    check(door.call(asked, tmp_path), asked, alone=door.alone)


@pytest.mark.parametrize("case", [case for case in MATRIX if not case.startswith("page")])
def test_an_empty_caption_a_broken_image_and_every_option_arrive(
    case: str, base: Path, tmp_path: Path
) -> None:
    name, metric = case.split("-")
    door = DOORS[name]
    asked = given(metric, base, odd=True, stream=door.stream, lacks=door.lacks)
    counts = expected(asked).counts
    assert counts.failed == ("broken" not in door.lacks and asked.medium is not None)
    assert counts.empty == (metric != "eco")
    check(door.call(asked, tmp_path), asked)


@pytest.mark.parametrize(("row", "found"), [(1, "caption"), (3, "image")])
def test_an_empty_caption_and_a_broken_image_are_refused_by_the_page(
    row: int, found: str, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(pytest.importorskip("gradio").Error, match=f"(?i)the {found}"):
        DOORS["page"].call(given("pacs", base, odd=True, lacks=("options",)).alone[row], tmp_path)


@pytest.mark.system
def test_two_processes_give_the_number_of_one(base: Path, tmp_path: Path) -> None:
    inputs = [given(metric, base, odd=odd, stream=True) for metric in METRICS for odd in (False, True)]
    for found, asked in zip(two_processes(inputs, tmp_path), inputs, strict=True):
        check(found, asked)


@pytest.mark.parametrize("metric", METRICS)
def test_every_option_has_another_value_here(metric: str, base: Path) -> None:
    options = opened(given(metric, base)).options
    names = {one.name for one in fields(options)} - {*options.without}
    either = {"fps", "max_frames"} if ":" in metric else set()
    own = {*every(metric), *ODD, *OF_A_RUN, *OPTIONS.get(metric, ()), *either}
    assert names == own - {*options.without}


@pytest.mark.parametrize("name", [name for name in DOORS if name not in ("lmms_eval", "CocoScores", "page")])
def test_a_type_of_numbers_arrives(name: str, base: Path, tmp_path: Path) -> None:
    asked = given("pacs", base)
    found = DOORS[name].call(replace(asked, options=asked.options | {"dtype": "bfloat16"}), tmp_path)
    assert "|dtype:bfloat16|" in str(found.signature)
