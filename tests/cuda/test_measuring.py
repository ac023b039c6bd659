"""What parts of `python -m benchmarks.cuda` measure with."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.cuda.jpeg import decoding_rate, make_files
from benchmarks.cuda.measuring import Row, or_failure


def test_an_error_of_a_step_becomes_a_row_and_holds_no_memory() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def step() -> Iterator[Row]:
        large = torch.zeros(8)
        held.append(weakref.ref(large))
        yield Row("before", "1")
        raise RuntimeError("CUDA error:\nan illegal access")

    rows = or_failure("step", step)
    gc.disable()
    try:
        assert next(rows) == Row("before", "1")
        assert next(rows) == Row("step", "RuntimeError: CUDA error: an illegal access", "runs", False)
        assert held[0]() is None, "the next step has less memory"
    finally:
        gc.enable()


def test_every_file_is_decoded(tmp_path: Path) -> None:
    files = make_files(tmp_path, 5, 2)
    assert len({Path(file).read_bytes() for file in files}) == 5
    assert decoding_rate(files, 2) > 0
    Path(files[3]).write_bytes(b"no JPEG")
    with pytest.raises(RuntimeError, match="5 files, but"):
        decoding_rate(files, 2)
