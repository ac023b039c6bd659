"""Greedy matching on CUDA: against padded bmm, two one-directional libraries, the roofline, and float64.

The roofline is the longer of two times measured in this run: reading each row once at the device's
bandwidth, and the products at its rate. `kernels` is the device's time alone (a CUDA graph), `call` all of
`greedy_match` with its checks and lists of lengths. The libraries (late-interaction-kernels, flash-maxsim)
give sums of maxima of one side: they are launched once for each side, on packed rows that were normalised
before, which does not count; they multiply in 16 bits, so that only 16-bit rows compare. In a rehearsal,
NumPy 2.5 keeps Triton's interpreter from loops over lengths of sets, which some of them have.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.matching import SHAPES, Workload, padded
from capeval_core.matching.greedy import greedy_match
from capeval_core.matching.triton_kernels import INTERPRETED, SIZES, Plan, Side, Tile, match_kernel

PAIRS = {"5-100": 32768, "3-20": 131072, "uniform 32": 65536}
"""Where no set is shared; so many that offsets fit 32 bits, which the libraries take."""
SHARED = ("words x frames", "tokens x tokens", "all with all")
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-5, torch.float16: 1e-5}


def measure(gpu: Gpu) -> Iterator[Row]:
    if not (gpu.is_cuda or INTERPRETED):
        yield Row("kernels", "not run: set TRITON_INTERPRET=1 for a rehearsal")
        return
    widths = (24,) if gpu.small else (512, 768)
    compile_apart(gpu, [(dtype, width) for dtype in DTYPES for width in widths], every=True)
    for dtype in DTYPES:
        for width, name in product(widths, list(PAIRS)[: 1 if gpu.small else None]):
            yield from or_failure(label(name, width, dtype), partial(against_padded, gpu, name, width, dtype))
        if dtype == DTYPES[0]:
            for width, name in [(widths[0], name) for name in PAIRS] + [(widths[-1], "5-100")]:
                yield from or_failure(
                    f"{name}, D {width}, libraries", partial(against_libraries, gpu, name, width)
                )
    for dtype in DTYPES[:2]:
        yield from or_failure(f"tiles, {dtype}", partial(best_tiles, gpu, widths[0], dtype))
    odd = (20, 25) if gpu.small else (500, 520)
    compile_apart(gpu, [(dtype, width) for dtype in DTYPES[:2] for width in odd])
    for dtype, width in product(DTYPES[:2], odd):
        yield from or_failure(
            label("5-100", width, dtype),
            lambda w=width, d=dtype: iter([against_roofline(gpu, "5-100", w, d, None)]),
        )
    for dtype, name in product(DTYPES[:2], SHARED):
        yield from or_failure(
            label(name, widths[0], dtype), lambda n=name, d=dtype: iter([shared(gpu, n, widths[0], d)])
        )


def label(name: str, width: int, dtype: torch.dtype) -> str:
    return f"{name}, D {width}, {str(dtype).removeprefix('torch.')}"


def workload(gpu: Gpu, name: str, width: int, dtype: torch.dtype, pairs: int | None = None) -> Workload:
    torch.manual_seed(0)
    most = 3 if gpu.small else pairs or PAIRS[name]
    return Workload.of(SHAPES[name], most, width, str(gpu.device), dtype)


def matched(work: Workload) -> Tensor:
    """(pairs, 3) by the kernels, which a rehearsal would not take by itself."""
    path = "triton" if not work.x.is_cuda else None
    pairs = {"x_of_pair": work.x_of_pair, "y_of_pair": work.y_of_pair}
    found = greedy_match(work.x, work.y, work.x_lengths, work.y_lengths, path=path, **pairs)  # type: ignore[arg-type]
    return torch.stack([found.precision, found.recall, found.f], dim=1)


def plan_of(work: Workload) -> Plan:
    sides = (
        Side(lengths.numpy(), of_pair.numpy())
        for lengths, of_pair in ((work.x_lengths, work.x_of_pair), (work.y_lengths, work.y_of_pair))
    )
    return Plan.of(*sides, work.x.element_size(), work.x.device)


def kernel_seconds(gpu: Gpu, run: Callable[[], Any]) -> float:
    """Seconds on the device alone: launches are recorded once, so that the host's time does not count."""
    if not gpu.is_cuda:
        return gpu.seconds(run)
    run()
    gpu.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return gpu.device_seconds(graph.replay)


def roofline(gpu: Gpu, work: Workload) -> float:
    """Seconds that no way of matching undercuts: rows read once, or their products."""
    bytes_read = work.x.nbytes + work.y.nbytes
    return max(bytes_read / gpu.bandwidth, work.operations() / gpu.peak(work.x.dtype))


def against_padded(gpu: Gpu, name: str, width: int, dtype: torch.dtype) -> Iterator[Row]:
    work, what = workload(gpu, name, width, dtype), label(name, width, dtype)
    count = len(work.x_of_pair)
    call = gpu.seconds(lambda: matched(work), repeats=7)
    part = workload(gpu, name, width, dtype, count // 4)  # its time grows with its batches, which are alike
    baseline = gpu.seconds(lambda: padded(part), repeats=2, warm_up=1) * count / len(part.x_of_pair)
    yield Row.at_least(f"{what}: padded bmm (by a quarter of the pairs) / call", baseline / call, 5)
    plan = plan_of(work)
    alone = kernel_seconds(gpu, lambda: plan.run(work.x, work.y))
    share = roofline(gpu, work) / alone
    yield Row.at_least(f"{what}: kernels' share of the roofline (80% is the next goal)", share, 0.6, "{:.0%}")
    times = f"{alone / count * 1e9:.0f} and {call / count * 1e9:.0f} ns"
    yield Row(
        f"{what}: a pair, kernels and call", f"{times}; roofline / call {roofline(gpu, work) / call:.0%}"
    )
    memory = gpu.memory(lambda: matched(work)), gpu.memory(lambda: padded(work))
    if gpu.is_cuda:
        yield Row.at_most(f"{what}: memory, call / padded", memory[0] / memory[1], 0.25)
    yield from agreement(work, what)


def agreement(work: Workload, what: str) -> Iterator[Row]:
    """Of the first pairs with float64 on the CPU, and of two runs with each other."""
    few = min(64, len(work.x_lengths))
    lengths = work.x_lengths[:few], work.y_lengths[:few]
    rows = work.x[: int(lengths[0].sum())], work.y[: int(lengths[1].sum())]
    options: dict[str, Any] = {"return_maxima": True, "return_indices": True}
    exact = greedy_match(*(side.cpu().double() for side in rows), *lengths, **options)
    path = "triton" if not work.x.is_cuda else None
    first, again = (greedy_match(*rows, *lengths, path=path, **options).to("cpu") for _ in range(2))
    names = ("precision", "recall", "f", "x_maxima", "y_maxima")
    error = max(float((getattr(first, n).double() - getattr(exact, n)).abs().max()) for n in names)
    yield Row.at_most(f"{what}: |difference| to float64", error, TOLERANCE[work.x.dtype])
    equal = all(torch.equal(getattr(first, n), getattr(again, n)) for n in (*names, "x_indices", "y_indices"))
    equal = equal and torch.equal(matched(work), matched(work))
    yield Row(f"{what}: two runs", "bit-equal" if equal else "differ", "bit-equal", equal)


def against_roofline(
    gpu: Gpu, name: str, width: int, dtype: torch.dtype, goal: float | None, pairs: int | None = None
) -> Row:
    work = workload(gpu, name, width, dtype, pairs)
    plan = plan_of(work)
    part = kernel_seconds(gpu, lambda: plan.run(work.x, work.y))
    what, share = f"{label(name, width, dtype)}: kernels' share of the roofline", roofline(gpu, work) / part
    return Row(what, f"{share:.0%}") if goal is None else Row.at_least(what, share, goal, "{:.0%}")


def shared(gpu: Gpu, name: str, width: int, dtype: torch.dtype) -> Row:
    """Pairs that share sets: from memory once, from the second-level cache once a pair."""
    work = workload(gpu, name, width, dtype, 100_000)
    baseline, call = (
        gpu.seconds(lambda way=way: way(work), repeats=2, warm_up=1) for way in (padded, matched)
    )
    row = against_roofline(gpu, name, width, dtype, None, 100_000)
    return replace(row, measured=f"{row.measured}; padded bmm / call {baseline / call:.1f}")


# ---- libraries that match in one direction


def late_interaction(x: Tensor, y: Tensor, x_ends: Tensor, y_ends: Tensor, most: tuple[int, int]) -> Tensor:
    module = library("late_interaction_kernels.score_pairs", "_scatter_fwd_kernel", x)
    pairs = torch.arange(len(x_ends) - 1, dtype=torch.int32, device=x.device)
    limits = {"max_seqlen_q": most[0], "max_seqlen_d": most[1]}
    sums: Tensor = module.score_pairs_packed(x, y, x_ends, y_ends, pairs, pairs, **limits)
    return sums


def flash_maxsim(x: Tensor, y: Tensor, x_ends: Tensor, y_ends: Tensor, most: tuple[int, int]) -> Tensor:
    module = library("flash_maxsim.flash_maxsim_varlen", "_maxsim_varlen_kernel", x)
    sums: Tensor = module.flash_maxsim_varlen(x, y, x_ends, y_ends, *most)
    return sums


def flash_maxsim_dense(x: Tensor, y: Tensor, x_ends: Tensor, y_ends: Tensor, most: tuple[int, int]) -> Tensor:
    """For sets of one length only."""
    module = library("flash_maxsim.flash_maxsim_pairs_dense", "", x)
    pairs = (len(x_ends) - 1, -1, x.shape[1])
    sums: Tensor = module.flash_maxsim_pairs_dense(x.view(pairs), y.view(pairs))
    return sums


def library(name: str, kernel: str, rows: Tensor) -> Any:
    module = importlib.import_module(name)
    if not rows.is_cuda and kernel:  # a rehearsal cannot time its configurations
        tuned = getattr(module, kernel)
        tuned.configs = tuned.configs[:1]
    return module


def against_libraries(gpu: Gpu, name: str, width: int) -> Iterator[Row]:
    work, what = (
        workload(gpu, name, width, torch.float16 if gpu.small else torch.bfloat16),
        f"{name}, D {width}",
    )
    x, y = (normalize(side.float(), dim=1).to(side.dtype) for side in (work.x, work.y))
    unit = replace(work, x=x, y=y)
    call = gpu.seconds(lambda: matched(unit), repeats=7)
    plan = plan_of(unit)
    kernels = kernel_seconds(gpu, lambda: plan.run(x, y))
    lengths = work.x_lengths, work.y_lengths
    x_ends, y_ends = (
        torch.tensor(np.append(0, np.cumsum(sizes)), dtype=torch.int32, device=gpu.device)
        for sizes in lengths
    )
    widest, highest = (int(sizes.max()) for sizes in lengths)
    ways = [late_interaction, flash_maxsim, *([flash_maxsim_dense] if "uniform" in name else [])]
    few = slice(0, 1000)
    ours_few = matched(unit)[few, :2]
    for way in ways:
        title = f"{what}: two launches of {way.__name__}"

        def both(way: Any = way) -> Tensor:
            return torch.stack(
                [way(x, y, x_ends, y_ends, (widest, highest)), way(y, x, y_ends, x_ends, (highest, widest))],
                1,
            )

        try:
            means = (both().cpu() / torch.stack(lengths, 1))[few]
            seconds = gpu.seconds(both, repeats=7)
        except ImportError as error:
            yield Row(title, f"not measured: {error}")
            continue
        except Exception as error:  # theirs, e.g. a width that they cannot hold: it must not end the part
            yield Row(title, f"failed: {type(error).__name__}: {str(error)[:200]}")
            continue
        yield Row.at_least(f"{title} / our call", seconds / call, 1.5)
        error_of_means = float((means - ours_few.cpu()).abs().max())
        yield Row.at_most(f"{title}: |difference| of means to ours", error_of_means, 2e-3)
        what_alone = f"{title} / our kernels, on the device alone"  # which waits for nothing, as theirs may
        yield from or_failure(
            what_alone,
            lambda both=both, title=what_alone: iter(
                [Row.at_least(title, kernel_seconds(gpu, both) / kernels, 1.5)]
            ),
        )


# ---- the best tiles


def alternatives(tile: Tile, size: int) -> list[Tile]:
    """The default, and its neighbours."""
    if INTERPRETED:
        return [tile, replace(tile, depth=tile.depth * 2)]
    found = [tile, replace(tile, stages=tile.stages + 1), replace(tile, stages=tile.stages - 1)]
    found += [replace(tile, depth=tile.depth * 2), replace(tile, warps=tile.warps * 2)]
    found += [replace(tile, depth=tile.depth // 2, stages=tile.stages + 1)] if tile.depth > 16 else []
    found += [replace(tile, precision="tf32x3")] if size == 4 else []
    return found


def best_tiles(gpu: Gpu, width: int, dtype: torch.dtype) -> Iterator[Row]:
    """For each kind of pairs of 5-100, the default tile against its neighbours."""
    work = workload(gpu, "5-100", width, dtype, 16384)
    plan, size = plan_of(work), work.x.element_size()
    sides = sorted({(kind.x, kind.y, kind.split) for kind in plan.kinds})
    default = {key: Tile.of(*key[:2], width, size) for key in sides}
    compile_tiles(
        gpu,
        [
            (dtype, width, tile, key[2], False, False)
            for key in sides
            for tile in alternatives(default[key], size)
        ],
    )
    total, least = 0.0, 0.0
    exact = matched(work).double()
    worst = 0.0
    for key in sides:
        kinds = [kind for kind in plan.kinds if (kind.x, kind.y, kind.split) == key]
        part = replace(plan, kinds=kinds)
        times: dict[Tile, float] = {}
        for tile in alternatives(default[key], size):
            run = lambda part=part, tile=tile: part.run(work.x, work.y, tile_of=lambda *_: tile)  # noqa: E731
            try:
                times[tile] = kernel_seconds(gpu, run)
            except Exception as error:  # e.g. more shared memory than there is
                yield Row(f"{label('5-100', width, dtype)}, tile {tile}", f"failed: {str(error)[:100]}")
        plain = [tile for tile in times if tile.precision == "ieee"]
        best = min(plain, key=lambda tile: times[tile])
        total, least = total + times[default[key]], least + times[best]
        text = f"default {times[default[key]] * 1e6:.1f} us, best {times[best] * 1e6:.1f} us: {best}"
        for tile, seconds in times.items():
            if tile.precision != "ieee":
                text += f"; {tile.precision} {seconds * 1e6:.1f} us"
        yield Row(f"{label('5-100', width, dtype)}, {key[0]}x{key[1]}{' split' * key[2]}", text)
    yield Row(f"{label('5-100', width, dtype)}: default tiles / best tiles", f"{total / least:.2f}")
    if size == 4:
        in_parts = lambda *sizes: replace(Tile.of(*sizes), precision="tf32x3")  # noqa: E731
        seconds = kernel_seconds(gpu, lambda: plan.run(work.x, work.y, tile_of=in_parts))
        (x_best, _), _ = plan.run(work.x, work.y, tile_of=in_parts)
        rows = torch.segment_reduce(
            x_best.double().clamp(-1, 1), "mean", lengths=work.x_lengths.to(x_best.device)
        )
        worst = float((rows - exact[:, 0]).abs().max())
        same, _ = Plan.of(side_of(work, 0), side_of(work, 0), size, work.x.device).run(
            work.x, work.x, tile_of=in_parts
        )
        worst = max(worst, float((same[0] - 1).abs().max()))  # each row meets itself: the worst truncation
        share = f"{roofline(gpu, work) / seconds:.0%} of the roofline"
        yield Row(f"{label('5-100', width, dtype)} in tf32x3", share)
        yield Row.at_most(f"{label('5-100', width, dtype)} in tf32x3: |difference|", worst, 1e-6)


def side_of(work: Workload, which: int) -> Side:
    lengths, of_pair = ((work.x_lengths, work.x_of_pair), (work.y_lengths, work.y_of_pair))[which]
    return Side(lengths.numpy(), of_pair.numpy())


# ---- compilation in processes, since one takes a second


Wanted = tuple[torch.dtype, int, Tile, bool, bool, bool]
"""Type and width of rows, tile, and whether SPLIT, INDICES, MEASURED."""


def compile_apart(gpu: Gpu, settings: list[tuple[torch.dtype, int]], *, every: bool = False) -> None:
    """Compile all kernels of these types and widths, so that measuring finds them in Triton's cache.

    every: those that give indices, and those of rows with scales, as well.
    """
    wanted: list[Wanted] = []
    variants = [(False, False), *([(True, False), (False, True)] if every else [])]
    for dtype, width in settings:
        sizes = SIZES[dtype.itemsize]
        tiles = [(Tile.of(x, y, width, dtype.itemsize), False) for x in sizes for y in sizes if y <= x]
        if sizes[-1] < 100:
            tiles.append((tiles[-1][0], True))
        wanted += [(dtype, width, *tile, *variant) for variant in variants for tile in tiles]
    compile_tiles(gpu, wanted)


def compile_tiles(gpu: Gpu, wanted: list[Wanted]) -> None:
    if gpu.is_cuda:
        list(compilers().map(compile_one, wanted, chunksize=2))


@cache
def compilers() -> ProcessPoolExecutor:
    """Processes that stay, since each takes some seconds to start."""
    workers = max(1, min(12, (os.cpu_count() or 2) - 2))
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def compile_one(wanted: Wanted) -> None:
    """Compile for a launch with 32-bit work."""
    dtype, width, tile, split, indices, measured = wanted
    integers = {"work": torch.int32, "odd": torch.int32}
    integers |= dict.fromkeys(("x_index", "y_index", "x_codes", "y_codes"), torch.int64)
    best = dict.fromkeys(("x_best", "y_best"), torch.float32)
    scales = dict.fromkeys(("x_scale", "y_scale"), torch.float32 if measured else dtype)
    pointers = {"x": dtype, "y": dtype, **scales, **best, **integers}
    with suppress(Exception):  # a tile that does not fit is reported where it is measured
        match_kernel.warmup(
            **pointers,
            WIDTH=width, MEASURED=measured, INDICES=indices, SPLIT=split, grid=(1,), **tile.options(),
        )  # fmt: skip
