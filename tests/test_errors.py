"""Problems with the input: collected, raised once, each with argument, index, what was found and the fix."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import capeval_core
from capeval_core.errors import Problem, ProblemsError, signed
from tests.support.seams import Problems


def raised(captions: Any, references: Any = None) -> ProblemsError:
    given = ["a dog"] * len(captions) if references is None else references
    with pytest.raises(ProblemsError) as caught:
        capeval_core.load("rougel").score(captions, references=given)
    return caught.value


def test_a_long_list_is_cut_and_counted() -> None:
    error = raised([*range(1023), 1022])
    lines = str(error).split("\n")
    assert lines[0] == "1023 problems with the input:" and len(lines) == 22
    assert "captions[19]" in lines[20] and lines[21] == "  and 1,003 more"
    assert len(error.problems) == 1024


def test_equal_problems_are_one_line_with_a_count() -> None:
    assert str(raised(["", ""])).startswith("captions[0] and captions[1] are empty: ")
    all_named = "captions[0], captions[1] and captions[2] are empty: "
    assert str(raised(["", "", ""])).startswith(all_named)
    error = raised([*[""] * 1_000, None])
    first, second = str(error).split("\n  ")[1:]
    assert first.startswith("captions[0], captions[1], captions[2] and 997 more are empty: ")
    assert second.startswith("captions[1000] is missing") and len(error.problems) == 1_001


def test_an_error_survives_pickling() -> None:
    for error in (raised(["", None]), raised([1])):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert list(again.problems) == list(error.problems)


def test_verbs_agree_with_their_number() -> None:
    for one, several in {"holds no box": "hold no box", "does not fit": "do not fit", "is": "are"}.items():
        problems = Problems(Problem(f"images[{i}]", one) for i in range(9))
        assert f"and 6 more {several}" in str(problems)
        assert str(Problems(list(problems)[:1])) == f"images[0] {one}"


def test_a_problem_states_whether_its_text_has_a_subject() -> None:
    assert str(Problem("images[0]", "contains no pixels")) == "images[0] contains no pixels"
    assert str(Problem("images[0]", "is it an image?", sentence=True)) == "images[0]: is it an image?"
    several = Problems(Problem(f"images[{i}]", "its file is gone", sentence=True) for i in range(2))
    assert str(several) == "images[0] and images[1]: its file is gone"


def test_a_small_difference_has_the_digits_that_show_it() -> None:
    assert [signed(value, 3) for value in (0.25, 0.00034, -0.0000127, 0.0)] == [
        "+0.250",
        "+0.0003",
        "-0.00001",
        "+0.000",
    ]
