from __future__ import annotations

import pytest

from capeval_core.errors import Problems
from capeval_core.inputs.visual import ImageError


def raised(*problems: tuple[str, type[ValueError] | type[TypeError]]) -> Exception:
    gathered = Problems()
    for message, kind in problems:
        gathered.add(message, kind=kind)
    with pytest.raises((ValueError, TypeError)) as caught:
        gathered.raise_if_any()
    return caught.value


def test_nothing_is_raised_without_problems() -> None:
    Problems().raise_if_any()


@pytest.mark.parametrize("kind", [ValueError, TypeError, ImageError])
def test_one_problem_is_raised_as_itself(kind: type[ValueError]) -> None:
    error = raised(("captions[3] is empty", kind))
    assert type(error) is kind
    assert str(error) == "captions[3] is empty"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([TypeError, TypeError], TypeError),
        ([TypeError, ValueError], ValueError),
        ([ImageError, ImageError], ImageError),
        ([ImageError, ValueError], ValueError),
        ([ImageError, TypeError], ValueError),
    ],
)
def test_several_problems_make_one_exception(
    kinds: list[type[ValueError]], expected: type[ValueError]
) -> None:
    error = raised(*((f"problem {i}", kind) for i, kind in enumerate(kinds)))
    assert type(error) is expected
    assert str(error) == "2 problems with the input:\n  problem 0\n  problem 1"


def test_a_long_list_is_cut_and_counted() -> None:
    error = raised(*((f"problem {i}.", ValueError) for i in range(1023)))
    lines = str(error).split("\n")
    assert lines[0] == "1023 problems with the input:"
    assert lines[20] == "  problem 19."
    assert lines[21:] == ["  and 1,003 more"]
