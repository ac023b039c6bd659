"""`FeatureCache`: its bound, its order, its disk, and keys that keep settings apart."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import sqlite3
import threading
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capeval_core.cache import SHARED, FeatureCache, _cost, shared_cache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.visual import InputImage
from tests.cache_process import put_some, row
from tests.support.counting import counted
from tests.support.seeded import encoder, release
from tests.support.small_disk import fill


def filled(cache: FeatureCache, *keys: str) -> FeatureCache:
    for key in keys:
        cache.put({key: row(key)})
    return cache


def held(cache: FeatureCache, keys: str) -> str:
    """Which one-letter keys are there, without a change of the order in which they were used."""
    return "".join(sorted(copy.deepcopy(cache._rows).keys() & set(keys)))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, 30), max_size=8)),
        st.tuples(st.just("get"), st.lists(st.integers(0, 30), max_size=8)),
    ),
    max_size=40,
)


@given(actions=ACTIONS, rows=st.integers(0, 12))
@settings(max_examples=80)
def test_the_bound_holds_and_the_least_recently_used_leave(
    actions: list[tuple[str, list[int]]], rows: int
) -> None:
    each = _cost("00", row("00"))
    cache = FeatureCache(max_bytes=rows * each)
    model: OrderedDict[str, None] = OrderedDict()
    for action, numbers in actions:
        keys = [f"{number:02}" for number in numbers]
        if action == "put":
            cache.put({key: row(key) for key in keys})
            touched = list(dict.fromkeys(keys))
        else:
            features = cache.get(keys)
            assert features.keys() == model.keys() & set(keys)
            for key, value in features.items():
                assert np.array_equal(value, row(key))
            touched = [key for key in keys if key in model]
        for key in touched:
            model[key] = None
            model.move_to_end(key)
        while len(model) > rows:
            model.popitem(last=False)
        assert list(cache._rows) == list(model)
        assert cache.nbytes == len(model) * each <= cache.max_bytes


def test_a_row_longer_than_the_bound_is_not_held() -> None:
    cache = FeatureCache(max_bytes=2000)
    cache.put({"a": row("a"), "long": row("long", 10_000), "b": row("b")})
    assert cache.nbytes <= 2000
    assert "long" not in cache.get(["a", "long", "b"])


def test_nothing_is_held_with_no_bytes() -> None:
    assert FeatureCache(max_bytes=0).nbytes == 0
    assert filled(FeatureCache(max_bytes=0), "a").get(["a"]) == {}


def test_fewer_than_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes=-1"):
        FeatureCache(max_bytes=-1)


def test_what_is_held_can_not_be_changed_from_outside() -> None:
    cache = FeatureCache()
    batch = np.ones((3, 4), np.float32)
    cache.put({"a": batch[1]})
    batch[:] = 7
    assert cache.get(["a"])["a"].tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        cache.get(["a"])["a"][0] = 5
    assert cache.get(["a"])["a"].base is None  # no view that keeps its batch alive


def test_threads_share_a_cache() -> None:
    cache = FeatureCache(max_bytes=20 * _cost("000", row("000")))

    def work(start: int) -> None:
        for i in range(start, start + 300):
            key = f"{i % 50:03}"
            cache.put({key: row(key)})
            for stored_key, value in cache.get([key, f"{(i * 7) % 50:03}"]).items():
                assert np.array_equal(value, row(stored_key))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [0, 13, 26, 39]))
    assert cache.nbytes == sum(_cost(key, value) for key, value in cache._rows.items()) <= cache.max_bytes


def test_the_disk_survives_and_takes_what_memory_does_not(tmp_path: Path) -> None:
    cache = filled(FeatureCache(max_bytes=0, folder=tmp_path / "new" / "folder"), "a", "b", "ß|'")
    assert cache.nbytes == 0
    for reader in (cache, FeatureCache(folder=tmp_path / "new" / "folder")):
        features = reader.get(["a", "b", "c", "ß|'"])
        assert features.keys() == {"a", "b", "ß|'"}
        assert all(np.array_equal(features[key], row(key)) for key in features)


def test_the_disk_keeps_every_bit(tmp_path: Path) -> None:
    values = np.array([1e-45, -0.0, np.inf, np.nan, 3.4028235e38, 1 + 2**-23], np.float32)
    FeatureCache(folder=tmp_path).put({"a": values})
    assert FeatureCache(folder=tmp_path).get(["a"])["a"].tobytes() == values.tobytes()


def test_the_disk_answers_more_keys_than_a_statement_takes(tmp_path: Path) -> None:
    keys = [f"{i:04}" for i in range(2345)]
    FeatureCache(folder=tmp_path).put({key: row(key) for key in keys})
    features = FeatureCache(folder=tmp_path).get([*keys, "none"])
    assert features.keys() == set(keys)


def test_two_processes_share_a_disk(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(put_some, [(tmp_path, 0), (tmp_path, 30)]) == [0, 30]
    keys = [f"{i:03}" for i in range(90)]
    features = FeatureCache(folder=tmp_path).get(keys)
    assert features.keys() == set(keys)
    assert all(np.array_equal(features[key], row(key)) for key in keys)


def test_a_folder_can_be_opened_at_the_same_time(tmp_path: Path) -> None:
    for attempt in range(15):
        start = threading.Barrier(8)

        def open_it(folder: Path = tmp_path / str(attempt), start: threading.Barrier = start) -> FeatureCache:
            start.wait()
            return filled(FeatureCache(folder=folder), "a")

        with ThreadPoolExecutor(8) as pool:
            caches = [opening.result() for opening in [pool.submit(open_it) for _ in range(8)]]
        assert all("a" in cache.get(["a"]) for cache in caches)


def test_a_copy_starts_empty_and_shares_the_disk(tmp_path: Path) -> None:
    memory = filled(FeatureCache(max_bytes=5000), "a")
    again = pickle.loads(pickle.dumps(memory))
    assert (again.max_bytes, again.nbytes, again.get(["a"])) == (5000, 0, {})
    disk = filled(FeatureCache(max_bytes=5000, folder=tmp_path), "a")
    again = pickle.loads(pickle.dumps(disk))
    assert again.nbytes == 0 and np.array_equal(again.get(["a"])["a"], row("a"))


def test_a_folder_that_can_not_be_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match=r"cache=.*file' is a file"):
        FeatureCache(folder=tmp_path / "file")
    (tmp_path / "features.sqlite").write_bytes(b"not a database, but long enough to look like one" * 50)
    with pytest.raises(ValueError, match=r"cache=.*features.sqlite.*delete"):
        FeatureCache(folder=tmp_path)


def test_the_shared_one_is_bounded() -> None:
    assert SHARED.max_bytes == 512 << 20 and SHARED.folder is None


TEXTS = ["A photo depicts a dog", "two red circles"]


def test_a_changed_setting_never_meets_an_old_feature(images: list[Path]) -> None:
    original = release()
    moved = {**original.tensors, "ln_final.bias": original.tensors["ln_final.bias"] + 0.1}
    moved["visual.ln_post.bias"] = moved["visual.ln_post.bias"] + 0.1
    paler = {**original.config["preprocessing"], "mean": [0.4, 0.4, 0.4]}
    encoders = {
        "usual": encoder(),
        "dtype": encoder(dtype="bfloat16"),
        "activation": ClipEncoder({**original.config, "activation": "gelu"}, original.tensors, device="cpu"),
        "weights": ClipEncoder(original.config, moved, device="cpu"),
        "preprocessing": ClipEncoder(
            {**original.config, "preprocessing": paler}, original.tensors, device="cpu"
        ),
    }
    inputs = [InputImage.of(path) for path in images[:2]]
    cache = FeatureCache()
    for name, clip in encoders.items():
        fresh = FeatureCache()
        with counted(clip) as count:
            texts = clip.encode_texts(TEXTS, cache=cache).features
            (images,) = clip.encode_images(inputs, cache=cache)
        assert (count.images, count.texts) == (2, 2), name
        assert np.array_equal(texts, clip.encode_texts(TEXTS, cache=fresh).features), name
        assert np.array_equal(images.features, next(clip.encode_images(inputs, cache=fresh)).features), name
        with counted(clip) as count:
            again = clip.encode_texts(TEXTS, cache=cache).features
            (shown,) = clip.encode_images(inputs, cache=cache)
        assert (count.images, count.texts) == (0, 0), name
        assert np.array_equal(again, texts) and np.array_equal(shown.features, images.features), name


def test_equal_encoders_share_features() -> None:
    original = release()
    twin = ClipEncoder(dict(original.config), dict(original.tensors), device="cpu")
    assert twin.fingerprint == encoder().fingerprint
    cache = FeatureCache()
    encoder().encode_texts(TEXTS, cache=cache)
    with counted(twin) as count:
        twin.encode_texts(TEXTS, cache=cache)
    assert count.texts == 0


def test_a_text_is_no_image(tmp_path: Path, images: list[Path]) -> None:
    cache = FeatureCache()
    clip = encoder()
    clip.encode_texts(TEXTS, cache=cache)
    list(clip.encode_images([InputImage.of(images[0])], cache=cache))
    assert len(cache._rows) == 3
    kinds = {key.split(":")[2] for key in cache._rows}
    assert kinds == {"text", "image"}


def test_a_disk_that_fails_is_left_with_a_warning(tmp_path: Path) -> None:
    cache = FeatureCache(folder=tmp_path)
    cache.put({"a": np.float32([1])})
    other = sqlite3.connect(tmp_path / "features.sqlite")
    other.execute("DROP TABLE checked_features")
    other.commit()
    with pytest.warns(UserWarning, match="kept in memory only"):
        cache.put({"b": np.float32([2])})
    cache.put({"c": np.float32([3])})
    assert sorted(cache.get(["a", "b", "c"])) == ["a", "b", "c"]


def test_a_shape_survives_the_disk(tmp_path: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    FeatureCache(folder=tmp_path).put({"a": features})
    assert np.array_equal(FeatureCache(folder=tmp_path).get(["a"])["a"], features)


def test_one_cache_per_folder_in_a_process(tmp_path: Path) -> None:
    cache = shared_cache(tmp_path)
    assert shared_cache(str(tmp_path)) is cache and shared_cache(cache) is cache
    assert shared_cache(None) is SHARED


def test_a_path_where_no_folder_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cache=.*no folder can be made there"):
        FeatureCache(folder=tmp_path / "file" / "below")


def stored(folder: Path, *keys: str) -> sqlite3.Connection:
    """A database of these features, open to be damaged."""
    filled(FeatureCache(folder=folder), *keys)
    gc.collect()  # closes it, so that all of it stands in one file
    return sqlite3.connect(folder / "features.sqlite", isolation_level=None)


DAMAGES = {
    "zeroed": "UPDATE checked_features SET value = zeroblob(16) WHERE key = 'b'",
    "cut": "UPDATE checked_features SET value = substr(value, 1, 7) WHERE key = 'b'",
    "shorter": "UPDATE checked_features SET value = substr(value, 1, 12), shape = '[3]' WHERE key = 'b'",
    "a bit": "UPDATE checked_features SET value = x'01' || substr(value, 2) WHERE key = 'b'",
    "no number": "UPDATE checked_features SET value = 'text of 16 chars' WHERE key = 'b'",
    "null": "UPDATE checked_features SET value = NULL, shape = NULL, digest = NULL WHERE key = 'b'",
    "shape": "UPDATE checked_features SET shape = '[2, 2]' WHERE key = 'b'",
    "shape as long": "UPDATE checked_features SET shape = '[9]' WHERE key = 'b'",
    "no shape": "UPDATE checked_features SET shape = '[4' WHERE key = 'b'",
    "no text": "UPDATE checked_features SET shape = CAST(x'ff' AS TEXT) WHERE key = 'b'",
    "of another key": "UPDATE checked_features SET (value, digest) = "
    "(SELECT value, digest FROM checked_features WHERE key = 'a') WHERE key = 'b'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_feature_is_left_out_with_a_warning_and_can_be_put_again(
    tmp_path: Path, damage: str
) -> None:
    with stored(tmp_path, "a", "b", "c") as database:
        assert database.execute(DAMAGES[damage]).rowcount == 1
    database.close()
    cache = FeatureCache(folder=tmp_path)
    with pytest.warns(
        UserWarning, match=f"damaged features in {tmp_path}/features.sqlite, computed again: 1"
    ):
        features = cache.get(["a", "b", "c"])
    assert features.keys() == {"a", "c"}
    filled(cache, "b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = FeatureCache(folder=tmp_path).get(["a", "b", "c"])
    assert all(np.array_equal(features[key], row(key)) for key in "abc")


def test_damaged_pages_cost_no_run_and_the_warning_names_the_file(tmp_path: Path) -> None:
    keys = [f"{i:04}" for i in range(400)]
    stored(tmp_path, *keys).close()
    file = tmp_path / "features.sqlite"
    whole = file.read_bytes()
    computed = {key: row(key) for key in keys}
    size = 4096
    assert len(whole) > 4 * size
    for damage in (bytes(size), b"\xff" * size):
        for page in range(1, len(whole) // size):  # the first one says whether it is a database at all
            folder = tmp_path / f"{damage[0]}-{page}"
            folder.mkdir()
            damaged = whole[: page * size] + damage + whole[(page + 1) * size :]
            (folder / "features.sqlite").write_bytes(damaged)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                cache = FeatureCache(folder=folder)
                features = cache.get(keys)
                assert all(np.array_equal(value, computed[key]) for key, value in features.items())
                cache.put(computed)
                assert cache.get(keys).keys() == set(keys)
            assert len(features) == len(keys) or f"{folder.name}/features.sqlite" in str(caught[0].message)


def test_a_damaged_first_page_is_warned_of_when_it_is_opened(tmp_path: Path) -> None:
    stored(tmp_path, "a").close()
    file = tmp_path / "features.sqlite"
    content = bytearray(file.read_bytes())
    content[100:4096] = bytes(3996)  # the description of the tables, behind the header
    file.write_bytes(content)
    with pytest.warns(UserWarning, match=r"features.sqlite cannot be used.*malformed.*delete the file"):
        cache = filled(FeatureCache(folder=tmp_path), "b")
    assert cache.get(["a", "b"]).keys() == {"b"}


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (5, TypeError, r"cache=5 is the number 5: pass the path of a folder"),
        ("", ValueError, r"cache='' is empty: pass the path of a folder"),
        ("a\0b", ValueError, r"cache='a\\x00b' has a NUL character.*leave it out"),
    ],
)
def test_a_path_that_can_be_no_folder_is_refused_with_what_to_do(
    given: Any, kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for door in (shared_cache, lambda folder: FeatureCache(folder=folder)):
        with pytest.raises(kind, match=message):
            door(given)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_one_warning(small_disk: Path) -> None:
    cache = filled(FeatureCache(folder=small_disk / "features"), "a")
    fill(small_disk)
    with pytest.warns(UserWarning, match=r"features.sqlite cannot be used any more \(.*full") as caught:
        for i in range(40):
            cache.put({str(i): row(str(i), 1000)})
    assert len(caught) == 1
    assert cache.get([str(i) for i in range(40)]).keys() == {str(i) for i in range(40)}
