"""Batches whose values arrive late: in order, a few at a time, and smaller where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders import engine as module
from capeval_core.encoders.engine import Encoding, Units, encode_stream
from capeval_core.inputs.visual import InputImage
from capeval_core.models.batching import BatchSize, count_forwards
from capeval_core.models.copies import Arriving, arriving, stacked_on_device, to_host

Floats = NDArray[np.float32]


class Device:
    """A device that computes in the order of the launches, and only when it is waited for.

    Until then the values of a batch are NaN. `memory`: the units that fit at the launch.
    """

    def __init__(self, *, memory: int = 10**6) -> None:
        self.memory = memory
        self.queue: list[Callable[[], None]] = []
        self.batches: list[int] = []
        self.most = 0

    def forward(self, units: list[Any]) -> Arriving:
        if len(units) > self.memory:
            raise RuntimeError("CUDA out of memory at the launch")
        rows, place = np.full((len(units), 1), np.nan, dtype=np.float32), len(self.batches)

        def run() -> None:
            rows[:] = np.array([units], dtype=np.float32).T

        def values() -> Floats:
            self.finish(place)
            return np.array(rows)

        self.batches.append(len(units))
        self.queue.append(run)
        self.most = max(self.most, len(self.queue))
        return Arriving(values, arrived=lambda: False)

    def finish(self, place: int) -> None:
        while len(self.batches) - len(self.queue) <= place:
            self.queue.pop(0)()


def encoding(device: Device, size: BatchSize) -> Encoding:
    return Encoding(
        size=size,
        keys=lambda content, _: (content,),
        prepare=lambda image: int(np.asarray(image).ravel()[0]) + 256 * int(np.asarray(image).ravel()[1]),
        forward=device.forward,
    )


def images(values: Sequence[int]) -> list[tuple[InputImage, None]]:
    pixels = np.zeros((len(values), 2, 2, 3), dtype=np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = np.array(values) % 256, np.array(values) // 256
    return [(InputImage.of(each, f"images[{i}]"), None) for i, each in enumerate(pixels)]


def encoded(device: Device, values: Sequence[int], size: BatchSize) -> list[float]:
    parts = encode_stream(images(values), encoding(device, size), FeatureCache(0))
    return [float(item.array((1,))[0]) for part in parts for item in part]


def test_values_that_arrive_late_keep_their_order() -> None:
    values = (np.random.default_rng(0).permutation(3000) % 1700).tolist()
    device = Device()
    with count_forwards() as count:
        assert encoded(device, values, BatchSize(16, automatic=True)) == values
    assert count.batches == len(device.batches) and count.items == sum(device.batches)
    assert device.most == module.RUNNING + 1


def test_a_batch_that_does_not_fit_is_repeated_smaller() -> None:
    device, size = Device(memory=5), BatchSize(16, automatic=True)
    values = list(range(300))
    assert encoded(device, values, size) == values
    assert size.size == 4 and device.batches[-1] <= 4


def test_a_size_that_was_given_is_kept() -> None:
    with pytest.raises(MemoryError, match="batch_size=16 does not fit"):
        encoded(Device(memory=5), range(300), BatchSize(16, automatic=False))


def test_a_batch_whose_copy_does_not_fit_is_repeated_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out where values are copied to the host, too."""

    def scarce(values: Any) -> Arriving:
        if len(values) > 5:
            raise RuntimeError("CUDA out of memory at the copy")
        return arriving(values)

    monkeypatch.setattr(module, "arriving", scarce)
    size, values = BatchSize(16, automatic=True), list(range(20))
    own = replace(encoding(Device(), size), forward=torch.tensor)
    found = [item for part in encode_stream(images(values), own, FeatureCache(0)) for item in part]
    assert [float(item.array((1,))[0]) for item in found] == values and size.size == 4


def test_another_error_is_the_callers() -> None:
    def fail() -> Any:
        raise RuntimeError("device-side assert")

    own = replace(encoding(Device(), BatchSize(4, automatic=True)), forward=lambda units: Arriving(fail))
    with pytest.raises(RuntimeError, match="device-side assert"):
        list(encode_stream(images([1]), own, FeatureCache(0)))


def test_what_is_shared_with_an_item_that_runs_is_waited_for() -> None:
    """The second item's arrays are computed for the first one; it must not run again, nor be empty."""
    device = Device()

    def units(item: Any, loaded: Any, prepared: Any, missing: Sequence[str]) -> Units:
        return Units([[(label, label) for label, key in enumerate(item[1]) if key in missing]])

    def arrays(keys: Sequence[str], units: Units, values: Mapping[int, Any]) -> dict[str, Floats]:
        return {keys[label]: value for label, value in values.items()}

    own = Encoding(
        size=BatchSize(2, automatic=True),
        keys=lambda content, extra: extra,
        prepare=lambda image: None,
        forward=device.forward,
        units=units,
        arrays=arrays,
    )
    grey = images([1])[0][0]
    items = [(grey, ("a", "b", "c")), (grey, ("a", "c")), (grey, ("c", "d"))]
    found = [item for part in encode_stream(items, own, FeatureCache(0)) for item in part]
    assert [sorted(item.arrays or {}) for item in found] == [["a", "b", "c"], ["a", "c"], ["c", "d"]]
    assert not any(np.isnan(value).any() for item in found for value in (item.arrays or {}).values())
    assert sum(device.batches) == 4


def test_on_the_cpu_values_are_there_at_once() -> None:
    arrays = [np.full((2, 3), i, dtype=np.uint8) for i in range(3)]
    there = stacked_on_device(torch.device("cpu"), arrays)
    assert there.shape == (3, 2, 3) and there.dtype == torch.uint8
    back = to_host(there.to(torch.bfloat16))
    assert back.arrived() and back.values().dtype == np.float32 and (back.values() == np.stack(arrays)).all()
