"""The CUDA kernels: in the interpreter on ragged sets, and compiled for three generations of GPUs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from capeval_core.matching import triton_kernels
from capeval_core.matching.greedy import greedy_match
from capeval_core.matching.triton_kernels import Plan, Side, Tile
from tests.support.interpreter import like_a_gpu

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
on_a_device = pytest.mark.skipif(not (CUDA or triton_kernels.INTERPRETED), reason="no GPU, no interpreter")
WIDTHS = {1: 30, 7: 40, 40: 30, 65: 30, 100: 20, 512: 6, 768: 4}  # 320 pairs in all


@on_a_device
@pytest.mark.parametrize(("width", "pairs"), WIDTHS.items())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ragged_sets_agree_with_float64(
    width: int, pairs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_kernels, "INTERPRETED", False)  # bfloat16 stays what it is
    rng = np.random.default_rng(width)
    sizes = [0, 1, 2, 3, 5, 11, 15, 16, 17, 31, 33, 48] + ([64, 65, 129, 140] if width <= 65 else [])
    lengths = [rng.choice(sizes, pairs // 2) for _ in range(2)]
    of_pair = [rng.integers(0, pairs // 2, pairs) for _ in range(2)]
    x, y = (torch.from_numpy(rng.normal(size=(n.sum(), width))).to(DEVICE, dtype) for n in lengths)
    sides = [Side(*side) for side in zip(lengths, of_pair, strict=True)]
    with like_a_gpu():
        found = Plan.of(*sides, x.element_size(), DEVICE).run(x, y, indices=True)
    x_at = y_at = 0
    for i, j in zip(*of_pair, strict=True):
        starts = (side.lengths[:which].sum() for side, which in zip(sides, (i, j), strict=True))
        left, right = (
            rows[start : start + side.lengths[which]].double().cpu()
            for rows, start, side, which in zip((x, y), starts, sides, (i, j), strict=True)
        )
        table = (left / left.norm(dim=1, keepdim=True)) @ (right / right.norm(dim=1, keepdim=True)).T
        for (best, index), at, cosines in ((found[0], x_at, table), (found[1], y_at, table.T)):
            assert index is not None
            part, which = best[at : at + len(cosines)].cpu(), index[at : at + len(cosines)].cpu()
            if not cosines.numel():
                assert not part.any() and (which == -1).all()
                continue
            assert (part - cosines.amax(1)).abs().max() <= 1e-6
            assert (cosines.gather(1, which[:, None])[:, 0] - cosines.amax(1)).abs().max() <= 1e-6
        x_at, y_at = x_at + len(left), y_at + len(right)


@on_a_device
@pytest.mark.parametrize("rows", [20, 150])
def test_of_equal_rows_the_first_wins_on_both_sides_and_over_blocks(rows: int) -> None:
    x = torch.ones(rows, 8, device=DEVICE)
    side = Side(np.array([rows]), np.array([0]))
    for best, index in Plan.of(side, side, 4, DEVICE).run(x, x, indices=True):
        assert index is not None and not index.any()
        assert torch.allclose(best.cpu(), torch.ones(rows))


@on_a_device
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_a_row_without_an_ordinary_norm_is_noticed(value: float, side: int) -> None:
    rows = [torch.ones(n, 24, device=DEVICE) for n in (5, 9)]
    sides = [Side(np.array([len(r)]), np.array([0])) for r in rows]
    odd = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    Plan.of(*sides, 4, DEVICE).run(*rows, odd=odd)
    assert not odd.item()
    rows[side][3] *= value
    Plan.of(*sides, 4, DEVICE).run(*rows, odd=odd)
    assert odd.item()


@on_a_device
def test_given_scales_are_multiplied_in() -> None:
    rng = np.random.default_rng(3)
    x, y = (torch.from_numpy(rng.normal(size=(n, 24))).to(DEVICE, torch.float32) for n in (30, 70))
    scales = tuple(torch.from_numpy(rng.uniform(0.5, 2, len(r))).to(DEVICE, torch.float32) for r in (x, y))
    sides = [Side(np.array([len(r)]), np.array([0])) for r in (x, y)]
    (of_x, none), (of_y, _) = Plan.of(*sides, 4, DEVICE).run(x, y, scales=(scales[0], scales[1]))
    table = (x * scales[0][:, None]) @ (y * scales[1][:, None]).T
    assert none is None
    assert torch.allclose(of_x, table.amax(1), atol=1e-5) and torch.allclose(of_y, table.amax(0), atol=1e-5)


@on_a_device
def test_norms_are_found_once_unless_a_row_needs_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[bool] = []
    run = Plan.run

    def noted(self: Plan, *given: object, **options: object) -> object:
        measured.append(options["scales"] is not None)
        return run(self, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Plan, "run", noted)
    x = torch.randn(6, 24, device=DEVICE)
    plain = greedy_match(x, x, [2, 4], [2, 4], path="triton")
    assert measured == [False]
    x[5] = 0
    found = greedy_match(x, x, [2, 4], [2, 4], path="triton")
    assert measured == [False, False, True]
    assert torch.allclose(found.f.cpu(), torch.tensor([plain.f[0].item(), 0.75]), atol=1e-6)
    greedy_match(x[:2], x, [2], [2, 4], x_of_pair=[0], y_of_pair=[0], path="triton")
    assert measured[3:] == [True]  # a row that no pair reads may be no number


def test_odd_widths_take_narrow_steps() -> None:
    depths = [Tile.of(64, 64, width, 2).depth for width in (512, 520, 500, 66, 65)]
    assert depths == [64, 64, 32, 16, 16]
    assert Tile.of(16, 16, 1, 4).depth == 16


SCRIPT = """
import json
import torch
from benchmarks.matching_kernels import Variant, read
from capeval_core.matching.triton_kernels import Tile

found = {}
for architecture, x, y, width, name in json.loads(input()):
    dtype = getattr(torch, name)
    tile = Tile.of(x, y, width, dtype.itemsize)
    report = read(Variant(tile, width, dtype, architecture))
    narrowest = min(report.copied or report.loaded)
    found[f"{architecture} {x}x{y} {width} {name}"] = [
        report.spills, report.stack, narrowest, list(report.products)[0], report.programs
    ]
print(json.dumps(found))
"""
COMPILED = {
    (80, 32, 32, 512, "bfloat16"): (16, "HMMA"),
    (90, 64, 64, 512, "bfloat16"): (16, "HGMMA"),
    (90, 128, 64, 768, "float16"): (16, "HGMMA"),
    (90, 64, 64, 520, "bfloat16"): (16, "HGMMA"),
    (90, 64, 64, 500, "bfloat16"): (8, "HGMMA"),
    (90, 64, 64, 512, "float32"): (16, "FFMA"),
    (90, 32, 32, 500, "float32"): (16, "FFMA"),
    (100, 128, 64, 512, "bfloat16"): (16, "UTCHMMA"),
}


@pytest.mark.system
def test_machine_code_has_no_spills_and_wide_copies(tmp_path: object) -> None:
    """Tensor cores for 16 bits, plain products for float32, two programs and more on a multiprocessor."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    assert importlib.util.find_spec("benchmarks"), "run from the repository"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(list(COMPILED)), capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for (architecture, x, y, width, name), (narrowest, product) in COMPILED.items():
        spills, stack, width_of_copy, first, programs = found[f"{architecture} {x}x{y} {width} {name}"]
        assert (spills, stack) == (0, 0)
        assert (width_of_copy, first) == (narrowest, product)
        assert programs >= 2
