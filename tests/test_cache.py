"""`FeatureCache`: its bound, its order, its disk, and keys that keep settings apart."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.demo import demo_set
from capeval_core.testing import count_forwards
from tests.support.seams import network
from tests.support.seeded import made_up_boxes, release


def row(key: str, length: int = 4) -> NDArray[np.float32]:
    """The feature of a key, always the same."""
    return np.random.default_rng(int.from_bytes(key.encode(), "little")).random(length, dtype=np.float32)


def filled(cache: FeatureCache, *keys: str) -> FeatureCache:
    for key in keys:
        cache.put({key: row(key)})
    return cache


EACH = filled(FeatureCache(), "00").nbytes
"""Bytes that a feature of a key of two characters takes."""
NUMBERS = st.lists(st.integers(0, 30), max_size=8)
ACTIONS = st.lists(st.tuples(st.sampled_from(["put", "get"]), NUMBERS), max_size=40)


@pytest.mark.parametrize("width", [1, 2])
def test_nobody_changes_a_feature_that_others_read(width: int) -> None:
    """Neither through what was put nor through what is got; of a tuple, neither of any array."""
    cache = FeatureCache()
    arrays = tuple(row(f"{place}") for place in range(width))
    cache.put({"key": arrays if width > 1 else arrays[0]})
    for array in arrays:
        array[:] = 0
    features = cache.get(["key"])["key"]
    stored = features if isinstance(features, tuple) else (features,)
    assert len(stored) == width
    for place, feature in enumerate(stored):
        with pytest.raises(ValueError, match="read-only"):
            feature[0] = 1
        assert np.array_equal(feature, row(f"{place}"))


@given(actions=ACTIONS, rows=st.integers(0, 12))
@settings(max_examples=80)
def test_the_bound_holds_and_the_least_recently_used_leave(
    actions: list[tuple[str, list[int]]], rows: int
) -> None:
    cache = FeatureCache(max_bytes=rows * EACH)
    model: OrderedDict[str, None] = OrderedDict()
    for action, numbers in actions:
        keys = [f"{number:02}" for number in numbers]
        if action == "put":
            cache.put({key: row(key) for key in keys})
            touched = list(dict.fromkeys(keys))
        else:
            features = cache.get(keys)
            assert features.keys() == model.keys() & set(keys)
            assert all(np.array_equal(value, row(key)) for key, value in features.items())
            touched = [key for key in keys if key in model]
        for key in touched:
            model[key] = None
            model.move_to_end(key)
        while len(model) > rows:
            model.popitem(last=False)
        assert cache.nbytes == len(model) * EACH <= cache.max_bytes
    assert cache.get(f"{number:02}" for number in range(31)).keys() == model.keys()


def test_what_is_held_can_not_be_changed_from_outside() -> None:
    cache = FeatureCache()
    batch = np.ones((3, 4), np.float32)
    cache.put({"a": batch[1]})
    batch[:] = 7
    assert cache.get(["a"])["a"].tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        cache.get(["a"])["a"][0] = 5
    assert cache.get(["a"])["a"].base is None  # no view that keeps its batch alive


def test_threads_share_a_cache_and_a_folder(tmp_path: Path) -> None:
    cache, start = FeatureCache(max_bytes=20 * EACH), threading.Barrier(4)

    def work(first: int) -> None:
        start.wait()
        disk = FeatureCache(folder=tmp_path)  # which all make at the same moment
        for i in range(first, first + 60):
            key = f"{i % 50:02}"
            for each in (cache, disk):
                each.put({key: row(key)})
                for stored, value in each.get([key, f"{(i * 7) % 50:02}"]).items():
                    assert np.array_equal(value, row(stored))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [0, 13, 26, 39]))
    assert cache.nbytes <= cache.max_bytes
    assert len(FeatureCache(folder=tmp_path).get(f"{i:02}" for i in range(50))) == 50


def test_the_disk_keeps_every_bit_shape_and_key(tmp_path: Path) -> None:
    odd = np.array([1e-45, -0.0, np.inf, np.nan, 3.4028235e38, 1 + 2**-23], np.float32)
    features = {"a": odd, "ß|'": odd.reshape(2, 3), **{f"{i:04}": row(str(i)) for i in range(2345)}}
    turned = {"T": odd.reshape(2, 3).T, "every other": odd[::2], "a column": odd.reshape(3, 2)[:, 1]}
    features |= {**turned, "one": np.float32(3)}
    cache = FeatureCache(max_bytes=0, folder=tmp_path / "new" / "folder")
    cache.put(features)
    assert cache.nbytes == 0
    for reader in (cache, FeatureCache(folder=tmp_path / "new" / "folder")):
        found = reader.get([*features, "none"])
        assert found.keys() == features.keys()
        for key, value in features.items():
            assert (found[key].tobytes(), found[key].shape) == (value.tobytes(), value.shape)


def test_a_changed_setting_never_meets_an_old_feature(images: list[Path], tmp_path: Path) -> None:
    original = release()
    moved = {**original.tensors, "ln_final.bias": original.tensors["ln_final.bias"] + 0.1}
    paler = {**original.config["preprocessing"], "mean": [0.4, 0.4, 0.4]}
    configs = {
        "activation": ({**original.config, "activation": "gelu"}, original.tensors),
        "weights": (original.config, moved),
        "preprocessing": ({**original.config, "preprocessing": paler}, original.tensors),
        "usual": (original.config, original.tensors),
        "twin": (dict(original.config), dict(original.tensors)),
    }
    cache, items = FeatureCache(), dict[str, int]()
    for name, (config, tensors) in configs.items():
        network("clip", {k: v for k, v in config.items() if k != "canary"}, tensors).save_pretrained(
            tmp_path / name
        )
        scores = []
        for used in (cache, FeatureCache()):
            metric = capeval_core.load("clips", weights=str(tmp_path / name), device="cpu", cache=used)
            with count_forwards() as forwards:
                scores.append(metric.score(["a dog", "a cat"], images[:2]).scores)
            items.setdefault(name, forwards.items)
        assert scores[0] == scores[1], name
    assert items == {"activation": 4, "weights": 4, "preprocessing": 4, "usual": 4, "twin": 0}


def test_another_option_never_meets_an_old_feature() -> None:
    scene, cache = demo_set()[0], FeatureCache()
    picture = Image.open(scene.image).crop((0, 0, 192, 120))
    for metric, shown, name, values in (
        ("hices", picture, "max_regions", (1, 2)),
        ("hices", picture, "mask_transform", ("square_crop", "released")),
        ("umic", made_up_boxes(50), "selection", ("bua10_100", "lxmert36")),
    ):
        scores: list[float] = []
        for value, used in product(values, (cache, FeatureCache())):
            opened = capeval_core.load(metric, weights="tiny", cache=used, **{name: value})
            scores += opened.score([scene.good], [shown]).scores
        assert scores[0] == scores[1] != scores[2] == scores[3], name
