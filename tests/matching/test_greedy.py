"""Greedy matching on every path: against float64 said another way, properties, definitions, complaints."""

from __future__ import annotations

import importlib.util
import multiprocessing
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.support.seams import LIMITS, greedy_match

Doubles = NDArray[np.float64]

TOLERANCE = 1e-6  # of float32 to float64
CUDA = torch.cuda.is_available()
no_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
PATHS = [
    pytest.param("reference", "cpu", id="reference"),
    pytest.param("slices", "cpu", id="slices"),
    pytest.param("own norms", "cpu", id="slices-own-norms"),
    pytest.param("buckets", "cpu", id="buckets"),
    # Without a GPU, the same kernels in Triton's interpreter.
    pytest.param("triton", "cuda" if CUDA else "cpu", id="triton", marks=no_triton),
    *([pytest.param("reference", "cuda", id="reference-cuda")] if CUDA else []),
]
on_every_path = pytest.mark.parametrize(("path", "device"), PATHS)
few = settings(max_examples=20)  # the interpreter takes a tenth of a second for each


@dataclass
class Case:
    """Sets on two sides, and which of them meet."""

    x: list[Doubles]
    y: list[Doubles]
    pairs: list[tuple[int, int]]

    def match(self, path: str, device: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        given_pairs = {
            "x_of_pair": [i for i, _ in self.pairs],
            "y_of_pair": [j for _, j in self.pairs],
            "path": named(path),
        }
        x, y = (packed(side).to(device, dtype) for side in (self.x, self.y))
        lengths = [len(rows) for rows in self.x], [len(rows) for rows in self.y]
        with pytest.MonkeyPatch.context() as patch:
            if path == "own norms":
                patch.setattr(LIMITS, "norms_from", 0)
            return greedy_match(x, y, *lengths, **{**given_pairs, **options})


def named(path: str) -> Any:
    """The path's own name: slices find norms themselves where they gain by it, and in some tests always."""
    return "slices" if path == "own norms" else path


def packed(sets: list[Doubles]) -> Tensor:
    return torch.from_numpy(np.concatenate(sets))


def rounded(sets: list[Doubles], dtype: torch.dtype) -> list[Doubles]:
    """What is left of the rows in this type."""
    return [torch.from_numpy(rows).to(dtype).double().numpy() for rows in sets]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    width = draw(st.sampled_from([1, 2, 3, 17, 32, 33, 100]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 9, 16, 17, 33]), min_size=1, max_size=4)
    x, y = ([rng.normal(size=(n, width)) for n in draw(sizes)] for _ in range(2))
    pair = st.tuples(st.integers(0, len(x) - 1), st.integers(0, len(y) - 1))
    every = [(i, j) for i in range(len(x)) for j in range(len(y))]
    return Case(x, y, draw(st.one_of(st.just(every), st.lists(pair, max_size=8))))


def cosines(x: Doubles, y: Doubles) -> Doubles:
    """Every cosine on its own, in float64; that of an all-zero row is 0."""
    result = np.zeros((len(x), len(y)))
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            size = np.linalg.norm(a) * np.linalg.norm(b)
            result[i, j] = np.dot(a, b) / size if size else 0
    return result


def expected(case: Case, side: str = "x") -> list[Doubles]:
    """The largest cosine of each row of one side of each pair."""
    return [
        cosines(case.x[i], case.y[j]).max(1 if side == "x" else 0, initial=-2)
        if len(case.x[i]) and len(case.y[j])
        else np.zeros(len(case.x[i] if side == "x" else case.y[j]))
        for i, j in case.pairs
    ]


def f_of(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision > 0 and recall > 0 else 0.0


def close(ours: Tensor, theirs: Any, tolerance: float = TOLERANCE) -> None:
    mine, other = ours.double().cpu().numpy(), np.asarray(theirs, dtype=np.float64)
    assert mine.shape == other.shape
    assert np.abs(mine - other).max(initial=0) <= tolerance


@on_every_path
@few
@given(cases())
def test_agrees_with_float64(path: str, device: str, case: Case) -> None:
    found = case.match(path, device, return_indices=True, return_maxima=True)
    means = {}
    for side, mean in (("x", found.precision), ("y", found.recall)):
        best = expected(case, side)
        means[side] = [float(rows.mean()) if len(rows) else 0.0 for rows in best]
        close(mean, means[side])
        close(getattr(found, f"{side}_maxima"), np.concatenate([np.zeros(0), *best]))
        offsets, indices = getattr(found, f"{side}_offsets"), getattr(found, f"{side}_indices").tolist()
        assert offsets.tolist() == [0, *np.cumsum([len(rows) for rows in best]).tolist()]
        # The row that is named has the best cosine, up to rounding.
        for p, (i, j) in enumerate(case.pairs):
            table = cosines(case.x[i], case.y[j])
            table = table if side == "x" else table.T
            for row, index in enumerate(indices[offsets[p] : offsets[p + 1]]):
                if table.shape[1]:
                    assert table[row, index] >= best[p][row] - TOLERANCE
                else:
                    assert index == -1
    close(found.f, [f_of(p, r) for p, r in zip(means["x"], means["y"], strict=True)])
    assert found.precision.dtype == torch.float32 and found.precision.device.type == device


@on_every_path
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(path: str, device: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    case = Case(
        [rng.normal(size=(n, 96)) for n in (7, 40)],
        [rng.normal(size=(n, 96)) for n in (20, 1)],
        [(0, 1), (1, 0)],
    )
    if path == "triton" and dtype == torch.float64:
        with pytest.raises(ValueError, match="path='triton', but the rows are float64"):
            case.match(path, device, dtype)
        return
    found = case.match(path, device, dtype)
    assert found.f.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    case = Case(rounded(case.x, dtype), rounded(case.y, dtype), case.pairs)
    # Products of 16-bit numbers are exact in float32, in which they are added up.
    close(
        found.precision,
        [rows.mean() for rows in expected(case)],
        1e-12 if dtype == torch.float64 else TOLERANCE,
    )
    close(
        found.recall, [r.mean() for r in expected(case, "y")], 1e-12 if dtype == torch.float64 else TOLERANCE
    )


@on_every_path
def test_of_equal_rows_the_first_is_taken(path: str, device: str) -> None:
    rng = np.random.default_rng(5)
    # Signs: products are whole numbers, so that equal cosines are equal on every path.
    rows = rng.choice([-1.0, 1.0], size=(150, 4))
    case = Case([rows[:80], rows[:9]], [rows[80:], rows[100:110]], [(0, 0), (1, 0), (1, 1), (0, 1)])
    found = case.match(path, device, return_indices=True)
    tables = [cosines(case.x[i], case.y[j]) for i, j in case.pairs]
    assert found.x_indices is not None and found.y_indices is not None
    assert found.x_indices.tolist() == np.concatenate([t.argmax(1) for t in tables]).tolist()
    assert found.y_indices.tolist() == np.concatenate([t.argmax(0) for t in tables]).tolist()


@on_every_path
def test_no_maximum_is_beyond_1(path: str, device: str) -> None:
    rng = np.random.default_rng(14)
    rows = rng.normal(size=(60, 67))
    for sign in (1, -1):
        found = Case([rows], [sign * rows[:1]], [(0, 0)]).match(path, device, return_maxima=True)
        assert found.x_maxima is not None and found.x_maxima.abs().max() <= 1
    found = Case([rows], [rows * 3], [(0, 0)]).match(path, device, return_maxima=True)
    for maxima in (found.x_maxima, found.y_maxima):
        assert maxima is not None
        close(maxima, np.ones(60))
        assert maxima.max() <= 1  # many a rounded cosine of equal rows is beyond it


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So little at once that every loop goes round several times."""
    monkeypatch.setattr(LIMITS, "matched_rows", {"cpu": 40, "cuda": 40})
    monkeypatch.setattr(LIMITS, "slice_cells", 60)
    monkeypatch.setattr(LIMITS, "bucket_rows", 30)
    monkeypatch.setattr(LIMITS, "bucket_pairs", 4)
    yield


@on_every_path
@pytest.mark.usefixtures("small_parts")
def test_parts_make_the_whole(path: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(11)
    x, y = ([rng.normal(size=(n, 20)) for n in rng.integers(0, 12, 9)] for _ in range(2))
    pairs = [(int(i), int(j)) for i, j in rng.integers(0, 9, (60, 2))] + [(3, j) for j in range(9)]
    options = {
        "return_indices": True,
        "return_maxima": True,
        "x_padded": [p % 2 == 0 for p in range(len(pairs))],
    }
    parts = Case(x, y, pairs).match(path, device, **options)
    monkeypatch.undo()
    whole = Case(x, y, pairs).match(path, device, **options)
    for name in ("precision", "recall", "f", "x_maxima", "y_maxima"):
        close(getattr(parts, name), getattr(whole, name).cpu())
    for name in ("x_indices", "y_indices", "x_offsets", "x_weightless"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))


@on_every_path
def test_a_row_that_matches_padding_best_has_no_partner(path: str, device: str) -> None:
    case = Case([np.eye(2)], [np.array([[-1.0, 0.0]])], [(0, 0)])
    found = case.match(path, device, return_indices=True, return_maxima=True, y_padded=True)
    assert found.x_indices is not None and found.x_maxima is not None
    assert found.x_maxima.tolist() == [0.0, 0.0] and found.x_indices.tolist() == [-1, 0]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("path", ["slices", "buckets"])
def test_threads_change_nothing(path: str) -> None:
    rng = np.random.default_rng(12)
    x, y = ([rng.normal(size=(n, 64)) for n in rng.integers(1, 60, 80)] for _ in range(2))
    case = Case(x, y, [(i, i) for i in range(80)])
    two = case.match(path, "cpu", return_indices=True)
    torch.set_num_threads(1)
    one = case.match(path, "cpu", return_indices=True)
    close(one.f, two.f, 1e-7)
    assert one.x_indices is not None and two.x_indices is not None
    assert torch.equal(one.x_indices, two.x_indices)


@pytest.mark.parametrize("place", [(0, 0), (29, 3)])
def test_rows_that_are_no_numbers_are_named_beside_the_products(
    place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "norms_from", 0)
    x, y = torch.ones(30, 4), torch.ones(30, 4)
    x[place], y[7, 0] = float("inf"), float("nan")
    with pytest.raises(ValueError, match="2 problems") as error:
        greedy_match(x, y, [3] * 10, [6] * 5 + [0] * 5, path="slices")
    assert f"x[{place[0]}], row {place[0] % 3} of set {place[0] // 3}, holds NaN" in str(error.value)
    assert "y[7], row 1 of set 1, holds NaN or infinity" in str(error.value)
    x[place] = 1  # in a set that meets an empty one, or none at all
    with pytest.raises(ValueError, match=r"y\[7\], row 7 of set 0"):
        greedy_match(x[:3], y, [3, 0], [10, 20], path="slices")
    with pytest.raises(ValueError, match=r"y\[7\], row 7 of set 0"):
        greedy_match(x, y, [30], [10, 20], x_of_pair=[0], y_of_pair=[1], path="slices")


def test_a_pair_of_a_set_that_is_not_there_is_named() -> None:
    rows = torch.ones(4, 3)
    with pytest.raises(ValueError, match=r"y_of_pair\[1\] is 2"):
        greedy_match(rows, rows, [2, 2], [2, 2], x_of_pair=[0, 1], y_of_pair=[0, 2])


def test_sides_that_differ_are_named_with_what_each_has() -> None:
    rows = torch.ones(4, 3)
    with pytest.raises(ValueError, match=r"x has rows of 3 numbers, y of 5"):
        greedy_match(rows, torch.ones(4, 5), [4], [4])
    with pytest.raises(TypeError, match=r"x is torch\.float32, y is torch\.float64"):
        greedy_match(rows, rows.double(), [4], [4])
    with pytest.raises(ValueError, match=r"y_lengths add up to 5, but y has 4 rows"):
        greedy_match(rows, rows, [4], [2, 3])
    with pytest.raises(ValueError, match=r"2 x sets but 1 in y_of_pair"):
        greedy_match(rows, rows, [2, 2], [2, 2], y_of_pair=[1])


def test_a_fork_does_not_wait_for_its_parent() -> None:
    """A child matches, though a thread of its parent was inside a match when it was forked."""
    many, few_rows = torch.ones(4000, 64), torch.eye(4)
    stop = threading.Event()

    def match_on() -> None:
        while not stop.is_set():
            greedy_match(many, many, [2000, 2000], [2000, 2000], path="slices")

    thread = threading.Thread(target=match_on)
    thread.start()
    try:
        for _ in range(5):
            process = multiprocessing.get_context("fork").Process(
                target=greedy_match, args=(few_rows, few_rows, [4], [4]), kwargs={"path": "slices"}
            )
            process.start()
            process.join(60)
            assert process.exitcode == 0
    finally:
        stop.set()
        thread.join()


ROWS = torch.eye(4)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"x_lengths": [2, -3, 2]}, ["x_lengths[1] is -3"]),
        ({"y_lengths": [4, -1]}, ["y_lengths[1] is -1"]),
        ({"x_of_pair": [0, 1, 2], "y_of_pair": [0, 0, 0]}, ["x_of_pair[2] is 2", "2 x sets"]),
        ({"x_of_pair": [0, -1, 1], "y_of_pair": [0, 0, 0]}, ["x_of_pair[1] is -1", "2 x sets"]),
        ({"x_of_pair": [0] * 3, "y_of_pair": [0, 7, 0]}, ["y_of_pair[1] is 7", "2 y sets"]),
        ({"x_of_pair": [0] * 3, "y_of_pair": [0] * 5}, ["3 in x_of_pair", "5 in y_of_pair"]),
        ({"x_weights": [1, 0, 2, -0.5]}, ["x_weights[3] is -0.5", "1e+15"]),
        ({"y_weights": [1, float("nan"), 2, 2e15]}, ["y_weights[1] is nan", "y_weights[3] is 20000"]),
        ({"y_weights": [1, 2]}, ["y_weights has shape (2,)", "4 rows of y"]),
        ({"x_padded": [True]}, ["x_padded has shape (1,)", "2 pairs"]),
        ({"y_padded": [0, 1]}, ["y_padded has shape (2,)", "2 pairs"]),
        ({"weighted_similarity": True}, ["x_weights, y_weights"]),
        ({"path": "slice"}, ["'slice'", "did you mean 'slices'", "reference, slices, buckets, triton"]),
        ({"x_lengths": [1.5, 2.5]}, ["x_lengths has shape (2,)", "whole numbers"]),
        ({"y_lengths": [[2, 2]]}, ["y_lengths has shape (1, 2)", "whole numbers"]),
        ({"y": ROWS.long()}, ["y is torch.int64"]),
        ({"x": ROWS.numpy()}, ["x is a ndarray"]),
        ({"y": ROWS[0]}, ["y has shape (4,)"]),
    ],
)
def test_a_wrong_argument_is_named_with_its_place_and_value(options: Any, parts: list[str]) -> None:
    given_arguments: dict[str, Any] = {
        "x": ROWS,
        "y": ROWS,
        "x_lengths": [2, 2],
        "y_lengths": [2, 2],
        **options,
    }
    with pytest.raises((ValueError, TypeError)) as caught:
        greedy_match(**given_arguments)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize("path", ["reference", "slices", "buckets"])
def test_weights_average_and_those_of_zero_are_flagged(path: Any) -> None:
    """Worked out by hand; weights may be as large as 1e15, and of one side alone."""
    x = torch.tensor([[1.0, 0], [3, 4], [0, -1], [0, 0]])
    y = torch.tensor([[2.0, 0], [0, 1]])
    # Maxima of x: 1 and 0.8, then 0 and 0; of y: 1 and 0.8, then 0 and 0 (of the row of zeros).
    pairs: dict[str, Any] = {"x_of_pair": [0, 1, 1], "y_of_pair": [0, 0, 1], "path": path}
    match = greedy_match(
        x, y, [2, 2], [2, 0], x_weights=[1e15, 3e15 / 4, 0, 0], y_weights=[0, 2], return_maxima=True, **pairs
    )
    assert match.x_maxima is not None
    assert match.x_maxima.tolist() == pytest.approx([1, 0.8, 0, 0, 0, 0])
    assert match.precision.tolist() == pytest.approx([(1 + 0.75 * 0.8) / 1.75, 0, 0])
    assert match.recall.tolist() == pytest.approx([0.8, 0, 0])
    assert match.x_weightless.tolist() == [False, True, True]
    assert match.y_weightless.tolist() == [False, False, True]
    weighted = greedy_match(
        x, y, [2, 2], [2, 0], x_weights=[2, 3, 1, 0], weighted_similarity=True, return_maxima=True, **pairs
    )
    assert weighted.x_maxima is not None and weighted.y_maxima is not None
    assert weighted.x_maxima.tolist() == pytest.approx([2, 2.4, 0, 0, 0, 0])
    assert weighted.y_maxima.tolist() == pytest.approx([2, 2.4, 0, 0])
    assert weighted.precision.tolist() == pytest.approx([(2 * 2 + 3 * 2.4) / 5, 0, 0])
    assert weighted.recall.tolist() == pytest.approx([2.2, 0, 0])
    assert weighted.x_weightless.tolist() == [False, False, False]


def test_a_match_of_no_pair_is_empty() -> None:
    match = greedy_match(
        ROWS, ROWS, [4], [4], x_of_pair=[], y_of_pair=[], return_maxima=True, return_indices=True
    )
    for value in (match.precision, match.recall, match.f, match.x_maxima, match.y_indices):
        assert value is not None and value.shape == (0,)
    assert match.x_offsets is not None and match.x_offsets.tolist() == [0]
    assert match.x_maxima is not None and match.x_maxima.dtype == torch.float32
    assert match.x_indices is not None and match.x_indices.dtype == torch.int64
