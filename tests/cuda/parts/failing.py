"""One row, then an error."""

from collections.abc import Iterator

from benchmarks.cuda.measuring import Gpu, Row


def measure(gpu: Gpu) -> Iterator[Row]:
    yield Row("before", "1")
    raise ValueError("too | large\nby far")
