"""Problems with the input: collected, raised once, each with argument, index, what was found and the fix."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import capeval_core
from capeval_core.errors import InputError, InputTypeError, ProblemsError


def raised(captions: Any, references: Any = None) -> ProblemsError:
    given = ["a dog"] * len(captions) if references is None else references
    with pytest.raises(ProblemsError) as caught:
        capeval_core.load("rougel").score(captions, references=given)
    return caught.value


def test_one_problem_is_raised_as_its_kind() -> None:
    error = raised(["a", "b", "c", ""])
    assert type(error) is InputError and isinstance(error, ValueError)
    (problem,) = error.problems
    assert problem.where == "captions[3]"
    assert str(error).startswith("captions[3] is empty: ") and 'empty="score"' in str(error)


@pytest.mark.parametrize(
    ("captions", "expected"),
    [([1, 2.5], InputTypeError), ([1, ""], InputError), (["", " "], InputError)],
)
def test_several_problems_make_one_exception(captions: Any, expected: type[ProblemsError]) -> None:
    error = raised(captions)
    assert type(error) is expected
    assert [problem.where for problem in error.problems] == ["captions[0]", "captions[1]"]


def test_a_long_list_is_cut_and_counted() -> None:
    error = raised(list(range(1023)))
    lines = str(error).split("\n")
    assert lines[0] == "1023 problems with the input:" and len(lines) == 22
    assert "captions[19]" in lines[20] and lines[21] == "  and 1,003 more"
    assert len(error.problems) == 1023


def test_equal_problems_are_one_line_with_a_count() -> None:
    assert str(raised(["", ""])).startswith("captions[0] and captions[1] are empty: ")
    error = raised([*[""] * 1_000, None])
    first, second = str(error).split("\n  ")[1:]
    assert first.startswith("captions[0], captions[1], captions[2] and 997 more are empty: ")
    assert second.startswith("captions[1000] is missing") and len(error.problems) == 1_001


def test_an_index_is_written_as_in_python() -> None:
    error = raised(["a", "b", ""], [["a"], ["a", ""], []])
    places = [line.split(" is ")[0] for line in str(error).split("\n  ")[1:]]
    assert sorted(places) == ["captions[2]", "references[1][1]", "references[2]"]
    assert str(raised([], [])).startswith("captions is empty")


def test_an_error_survives_pickling() -> None:
    for error in (raised(["", None]), raised([1])):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert list(again.problems) == list(error.problems)


def test_the_value_of_an_option_stands_beside_its_name() -> None:
    with pytest.raises(InputError) as caught:
        capeval_core.load("pacs", weights="tiny", w=10**5000)
    (problem,) = caught.value.problems
    assert problem.where.startswith("w=1e5000") and len(str(caught.value)) < 100
