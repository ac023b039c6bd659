"""Problems as data: collected, raised once, put into words."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from capeval_core.errors import (
    Argument,
    Detail,
    FileError,
    InputError,
    InputTypeError,
    Kind,
    Piece,
    Problem,
    Problems,
    ProblemsError,
    Setting,
    Text,
    Words,
    in_file,
    renamed,
    wrong_option,
)
from capeval_core.inputs.visual import ImageError


def raised(*problems: Problem) -> ProblemsError:
    with pytest.raises(ProblemsError) as caught:
        Problems(problems).raise_if_any()
    return caught.value


def plain(text: str, kind: Kind = ValueError) -> Problem:
    return Problem("", None, text, verb="", kind=kind)


def test_nothing_is_raised_without_problems() -> None:
    Problems().raise_if_any()


@pytest.mark.parametrize(
    ("kind", "error_class"),
    [(ValueError, InputError), (TypeError, InputTypeError), (ImageError, ImageError)],
)
def test_one_problem_is_raised_as_its_kind(kind: Kind, error_class: type[ProblemsError]) -> None:
    problem = Problem("captions", 3, "empty", kind=kind)
    error = raised(problem)
    assert type(error) is error_class and isinstance(error, kind)
    assert str(error) == "captions[3] is empty" and list(error.problems) == [problem]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([TypeError, TypeError], InputTypeError),
        ([TypeError, ValueError], InputError),
        ([ImageError, ImageError], ImageError),
        ([ImageError, ValueError], InputError),
        ([ImageError, TypeError], InputError),
    ],
)
def test_several_problems_make_one_exception(kinds: list[Kind], expected: type[ProblemsError]) -> None:
    error = raised(*(plain(f"problem {i}", kind) for i, kind in enumerate(kinds)))
    assert type(error) is expected
    assert str(error) == "2 problems with the input:\n  problem 0\n  problem 1"


def test_a_long_list_is_cut_and_counted() -> None:
    error = raised(*(plain(f"problem {i}.") for i in range(1023)))
    lines = str(error).split("\n")
    assert lines[0] == "1023 problems with the input:"
    assert lines[20] == "  problem 19."
    assert lines[21:] == ["  and 1,003 more"]
    assert len(error.problems) == 1023 and len(list(error.problems)) == 20


def test_equal_problems_are_one_line_with_a_count() -> None:
    empty = [Problem("captions", index, "empty", "write a caption") for index in range(1_000)]
    assert str(raised(*empty[:2])) == "captions[0] and captions[1] are empty: write a caption"
    error = raised(*empty, Problem("images", 5, "None"))
    assert str(error).split("\n  ") == [
        "2 problems with the input:",
        "captions[0], captions[1], captions[2] and 997 more are empty: write a caption",
        "images[5] is None",
    ]
    assert len(error.problems) == 1_001
    ragged = [Problem("c.csv", f"line {line}", "3 cells", verb="has", kind=FileError) for line in (2, 5)]
    assert str(raised(*ragged)) == "c.csv: line 2 and line 5 have 3 cells"


def test_problems_that_differ_in_anything_else_stay_apart() -> None:
    one = Problem("w", None, "", "expected 2", "", 3)
    others = [
        Problem("v", None, "", "expected 2", "", 3),
        Problem("w", None, "", "expected 1", "", 3),
        Problem("w", None, "", "expected 2", "", 4),
        Problem("w", None, "", "expected 2", "", 3, TypeError),
        Problem("w", None, "red", "expected 2", "", 3),
        Problem("w", None, "", "expected 2", "", 3, source="a.pth"),
    ]
    for other in others:
        assert str(raised(one, other)).startswith("2 problems"), other
    assert str(raised(one, one)) == "w=3: expected 2"


def test_the_same_problem_twice_names_its_index_once() -> None:
    assert str(raised(*[Problem("captions", 3, "empty")] * 2)) == "captions[3] is empty"


def test_a_whole_argument_and_positions_in_it_stay_apart() -> None:
    error = raised(*(Problem("captions", index, "empty") for index in (None, 3, (3, 1), "line 2", 4)))
    assert str(error).split("\n  ")[1:] == [
        "captions is empty",
        "captions[3] and captions[4] are empty",
        "captions[3][1] is empty",
        "captions: line 2 is empty",
    ]


def test_problems_beyond_the_last_line_survive_another_error_and_a_change() -> None:
    many = Problems(plain(f"problem {i}", TypeError if i < 20 else ValueError) for i in range(25))
    others = Problems()
    others.extend(many)
    error = many.error()
    error.change(lambda problem: replace(problem, source="a.csv"))
    for problems in (many, others, error.problems):
        assert len(problems) == 25 and str(problems.error()).endswith("\n  and 5 more")
        assert type(problems.error()) is InputError  # some of them are no TypeErrors


def test_an_equal_problem_beyond_the_last_line_still_counts_with_its_equals() -> None:
    error = raised(*(plain(f"problem {i}") for i in range(25)), plain("problem 3"))
    assert "and 5 more" in str(error) and len(error.problems) == 26


@pytest.mark.parametrize(
    ("index", "place"),
    [(None, "images"), (3, "images[3]"), ((3, 1), "images[3][1]"), ((3, "bytes"), 'images[3]["bytes"]')],
)
def test_an_index_is_written_as_in_python(index: int | None, place: str) -> None:
    assert Words().line(Problem("images", index, "empty")) == f"{place} is empty"


def test_an_error_survives_pickling() -> None:
    error = raised(
        Problem("captions", 3, "empty", kind=ImageError), Problem("captions", 4, "empty", kind=ImageError)
    )
    again = pickle.loads(pickle.dumps(error))
    assert (
        type(again) is ImageError
        and str(again) == str(error)
        and list(again.problems) == list(error.problems)
    )
    option = pickle.loads(pickle.dumps(raised(plain("x"))))
    assert str(option) == "x"  # that it is not about an option is pickled too
    assert str(pickle.loads(pickle.dumps(FileError("a.json: is empty")))) == "a.json: is empty"


def test_names_change_in_every_part_of_a_problem() -> None:
    found: Text = ("len(", Argument("captions"), ")=2")
    with pytest.raises(InputError) as caught, renamed(captions="predictions", empty="on_empty"):
        raise raised(
            Problem("captions", 1, "empty", Setting("empty", "score", "pass ")), Problem("", None, found)
        )
    assert [problem.argument for problem in caught.value.problems] == ["predictions", ""]
    assert 'predictions[1] is empty: pass on_empty="score"' in str(caught.value)
    assert "len(predictions)=2" in str(caught.value) and "captions" not in str(caught.value)
    with pytest.raises(KeyError), renamed(captions="predictions"):
        raise KeyError("captions")


def test_another_door_has_other_words() -> None:
    class Spoken(Words):
        def setting(self, setting: Setting) -> str:
            return ""

        def piece(self, piece: Piece) -> str:
            return "" if isinstance(piece, Detail) else super().piece(piece)

        def argument(self, argument: str, index: object) -> str:
            return f"the {argument.removesuffix('s')}"

    fix: Text = ("crop it", Setting("on_error", "nan", " or pass "), Detail(", or raise PIL.LIMIT"))
    error = raised(Problem("images", 3, ("cannot decode", Detail(" (at 7)")), fix, ""))
    assert str(error) == 'images[3]: cannot decode (at 7): crop it or pass on_error="nan", or raise PIL.LIMIT'
    assert Spoken().of(error) == "the image: cannot decode: crop it"
    assert Spoken().of(KeyError("images")) == "'images'"


def test_the_value_of_an_option_stands_beside_its_name() -> None:
    error = wrong_option("batch_size", 10**5000, "too large", kind=TypeError)
    assert isinstance(error, InputTypeError) and str(error) == "batch_size=1e5000 or so is too large"
    (problem,) = error.problems
    assert (problem.argument, problem.value) == ("batch_size", 10**5000)


def test_the_file_of_a_problem_comes_first() -> None:
    error = in_file("a.pth", wrong_option("head_width", 20, "the width", verb="does not divide"))  # type: ignore[arg-type]
    assert str(error) == "a.pth: head_width=20 does not divide the width"
    assert str(in_file("a.pth", ValueError("no tensors"))) == "a.pth: no tensors"
