"""Which way of matching is taken, and that a Triton older than the tested one never is."""

from __future__ import annotations

import pytest
import torch

from capeval_core.errors import Problems
from capeval_core.matching.greedy import greedy_match
from capeval_core.matching.paths import OLDEST_TRITON, find_path, reference_matches, triton_matches

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
    problems = Problems()
    taken = find_path(None, torch.device("cuda"), torch.float32, 40, problems)
    assert taken is triton_matches and not problems
    assert find_path(None, torch.device("cuda"), torch.float64, 40, problems) is reference_matches
