"""Which way of matching is taken, and that a Triton older than the tested one never is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from capeval_core.errors import Problems
from capeval_core.matching import paths, triton_kernels
from capeval_core.matching.greedy import greedy_match
from capeval_core.matching.paths import OLDEST_TRITON, find_path, reference_matches, triton_matches
from capeval_core.matching.sets import Best
from tests.support.interpreter import like_a_gpu

triton = pytest.importorskip("triton")


@pytest.mark.parametrize("version", ["3.0.0", "3.3.0+git1234", "2.3.1"])
def test_an_old_triton_is_refused_by_name_and_passed_over_by_default(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    rows = torch.eye(3)
    oldest = ".".join(map(str, OLDEST_TRITON))
    with pytest.raises(ValueError, match=rf"path='triton', but Triton {version[:3]} .*at least {oldest}"):
        greedy_match(rows, rows, [3], [3], path="triton")
    problems = Problems()
    path = find_path(None, torch.device("cuda"), torch.float32, 40, problems)
    assert path is reference_matches and not problems


@pytest.mark.parametrize("version", ["3.4.0", "3.10.1", "4.0.0"])
def test_the_tested_triton_and_newer_ones_are_taken_on_cuda(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(paths, "_as_reference", lambda *_: True)
    problems = Problems()
    taken = find_path(None, torch.device("cuda"), torch.float32, 40, problems)
    assert taken is triton_matches and not problems
    assert find_path(None, torch.device("cuda"), torch.float64, 40, problems) is reference_matches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_are_tried_before_they_are_used(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "INTERPRETED", False)  # bfloat16 stays what it is
    with like_a_gpu():
        assert paths._as_reference.__wrapped__(torch.device("cpu"), dtype)


@pytest.mark.parametrize("wrong", ["maximum", "index"])
def test_kernels_that_match_otherwise_are_passed_over(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> tuple[Best, Best]:
        of_x, of_y = triton_matches(*given)
        assert of_y.indices is not None
        (of_y.maxima if wrong == "maximum" else of_y.indices)[-1] += 1
        return of_x, of_y

    monkeypatch.setattr(paths, "triton_matches", broken)
    tried = paths._as_reference.__wrapped__
    monkeypatch.setattr(paths, "_as_reference", lambda _, dtype: tried(torch.device("cpu"), dtype))
    with pytest.warns(
        UserWarning, match=f"matching cannot be used on cpu in torch.float32.*{wrong} is off by"
    ):
        assert find_path(None, torch.device("cuda"), torch.float32, 40, Problems()) is reference_matches
