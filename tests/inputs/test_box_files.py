"""Stored box features: every form gives what was written, and damage costs its own entry."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from capeval_core.errors import FileError
from capeval_core.inputs import box_arrays, box_lmdb, box_tsv
from capeval_core.inputs.box_folder import MANIFEST, Manifest, NpzFolder, is_whole, npz_bytes
from capeval_core.inputs.box_lmdb import BoxLmdb
from capeval_core.inputs.box_stores import BoxFeatureStore, id_of
from capeval_core.inputs.box_tsv import BoxTsv
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.samples import check_samples
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.scores.box_source import boxes_by_id
from tests.inputs.box_writing import (
    SIZE,
    bottom_up_line,
    detected,
    lxmert_line,
    lz4_of,
    msgpack_of,
    npz_of,
    packed,
    released,
    text_of,
    write_lmdb,
)

FOUND = {"cat": detected(0), "COCO_val2014_000000000042": detected(1, n=30), "dog.1": detected(2, n=1)}
IDS = sorted(FOUND)
DB = "feat_th0.2_max100_min10"


class Runs:
    """Ends the test if it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def npz_folder(path: Path) -> Path:
    path.mkdir()
    for image_id, arrays in FOUND.items():
        np.savez(path / f"{image_id}.npz", **arrays)
    return path


def npz_folder_of_the_release(path: Path) -> Path:
    path.mkdir()
    for image_id, arrays in FOUND.items():
        np.savez(path / f"{image_id}.npz", **released(arrays))
    return path


def image_database(path: Path) -> Path:
    return write_lmdb(path, {f"{name}.npz": msgpack_of(released(found)) for name, found in FOUND.items()})


def bottom_up(path: Path) -> Path:
    return written(path, "".join(bottom_up_line(image_id, found) for image_id, found in FOUND.items()))


def lxmert(path: Path) -> Path:
    return written(path, "".join(lxmert_line(image_id, found) for image_id, found in FOUND.items()))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def loaded(store: BoxFeatureStore, image_id: str) -> BoxFeatures:
    return InputBoxes("images[0]", store.find(image_id)).load()


def refusal(store: BoxFeatureStore, image_id: str) -> str:
    """Why an image's features cannot be read, though its id is there."""
    boxes = InputBoxes("images[0]", store.find(image_id))
    with pytest.raises(ImageError) as caught:
        boxes.load()
    return str(caught.value)


def equal(array: Any, expected: Any) -> None:
    assert array is not None and array.dtype == np.float32
    np.testing.assert_array_equal(array, np.asarray(expected).astype("float32"))


# ---- what is written comes back


@pytest.mark.parametrize("write", [npz_folder, bottom_up, lxmert])
def test_forms_with_pixels_give_what_was_written(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "features.tsv")
    store = BoxFeatureStore.open(path)
    assert (list(store), len(store), "cat" in store) == (IDS, 3, True)
    assert store.name == "precomputed:features.tsv"
    for image_id, arrays in FOUND.items():
        found = loaded(store, image_id)
        equal(found.boxes, arrays["boxes"])
        equal(found.features, arrays["features"])
        assert found.size == SIZE and found.relative_boxes is None
        if write is bottom_up:
            assert found.scores is None
        else:
            equal(found.scores, arrays["scores"])


@pytest.mark.parametrize("form", [msgpack_of, npz_of, lz4_of, "folder"])
def test_files_of_the_release_keep_their_rounding(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "features"
    if form == "folder":
        npz_folder_of_the_release(path)
    else:
        write_lmdb(path, {f"{name}.npz": form(released(found)) for name, found in FOUND.items()})
    store = BoxFeatureStore.open(path)
    assert list(store) == IDS
    for image_id, arrays in FOUND.items():
        found, expected = loaded(store, image_id), released(arrays)
        equal(found.features, expected["features"])
        equal(found.relative(), expected["norm_bb"])
        equal(found.scores, expected["conf"])
        assert found.size is None


def test_a_patched_msgpack_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`msgpack_numpy.patch()` puts readers in its place that make arrays of maps, and unpickle objects."""

    def decoded(found: dict[Any, Any]) -> Any:
        if found.get(b"nd") is not True:
            return found
        if found[b"kind"] == b"O":
            return pickle.loads(found[b"data"])
        return np.frombuffer(found[b"data"], found[b"type"].decode()).reshape(found[b"shape"])

    class Unpacker(msgpack.Unpacker):  # type: ignore[misc, name-defined]
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, object_hook=decoded, **settings)

    unpackb = partial(msgpack.unpackb, object_hook=decoded)
    for name, patched in {"Unpacker": Unpacker, "unpackb": unpackb, "loads": unpackb}.items():
        monkeypatch.setattr(msgpack, name, patched)
    assert isinstance(msgpack.unpackb(msgpack_of({"x": np.arange(3)}), raw=True)[b"x"], np.ndarray)
    objects = {**packed(np.zeros(1)), b"kind": b"O", b"data": pickle.dumps(Runs())}
    entries = {"runs.npz": msgpack.packb({"features": objects}, use_bin_type=True)}
    entries |= {f"{name}.npz": msgpack_of(released(found)) for name, found in FOUND.items()}
    store = BoxFeatureStore.open(write_lmdb(tmp_path / "db", entries))
    equal(loaded(store, "cat").features, released(FOUND["cat"])["features"])
    assert "expected numbers; nothing is unpickled" in refusal(store, "runs")


def test_equal_features_have_one_key_in_every_form(tmp_path: Path) -> None:
    """So that kept features and rows serve all of them."""
    forms = [npz_folder(tmp_path / "npz"), lxmert(tmp_path / "a.tsv")]
    keys = {BoxFeatureStore.open(path)["cat"].key for path in forms}
    assert keys == {InputBoxes.of(FOUND["cat"]).key}
    forms = [npz_folder_of_the_release(tmp_path / "released"), image_database(tmp_path / "db")]
    assert len({BoxFeatureStore.open(path)["cat"].key for path in forms}) == 1


def test_the_counts_beside_a_database_choose_its_boxes(tmp_path: Path) -> None:
    """They were made of exact scores: those of the database are rounded, and are not counted again."""
    for name in (f"{DB}_compressed", DB):
        image_database(tmp_path / name)
    counts = {"cat.npz": 11, "dog.1.npz": 10}
    (tmp_path / f"nbb_{DB.removeprefix('feat_')}.json").write_text(json.dumps(counts))
    for path in (tmp_path, tmp_path / DB, tmp_path / DB / "data.mdb"):
        store = BoxFeatureStore.open(path)
        cat = loaded(store, "cat")
        equal(cat.features, released(FOUND["cat"])["features"][:11])
        equal(cat.relative(), released(FOUND["cat"])["norm_bb"][:11])
        equal(cat.scores, released(FOUND["cat"])["conf"][:11])
        assert (store.selection, cat.selection) == ("bua10_100", "bua10_100")
        assert len(loaded(store, "dog.1")) == 1  # there are no more
        uncounted = loaded(store, "42")
        assert len(uncounted) == 30 and uncounted.selection is None


def test_counts_of_other_images_are_refused(tmp_path: Path) -> None:
    """They would be ignored, and rounded scores choose the boxes."""
    image_database(tmp_path / DB)
    (tmp_path / f"nbb_{DB.removeprefix('feat_')}.json").write_text('{"cat": 11, "dog.1": 10}')
    with pytest.raises(FileError) as caught:
        list(BoxFeatureStore.open(tmp_path / DB))
    assert "the numbers of boxes beside it are of other images, such as 'cat': expected the names" in str(
        caught.value
    )


def test_a_database_may_have_a_fixed_number_of_boxes_in_its_name(tmp_path: Path) -> None:
    found = loaded(BoxFeatureStore.open(image_database(tmp_path / "feat_numbb7")), "cat")
    assert len(found) == 7 and found.selection == "first 7"


def test_of_several_databases_the_published_one_is_read(tmp_path: Path) -> None:
    image_database(tmp_path / DB)
    image_database(tmp_path / "feat_numbb7")
    assert len(loaded(BoxFeatureStore.open(tmp_path), "cat")) == 12
    (tmp_path / DB).rename(tmp_path / "other")
    with pytest.raises(FileError, match=r"holds several databases \('feat_numbb7', 'other'\): pass the path"):
        BoxFeatureStore.open(tmp_path)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ('{"cat.npz": 0}', "'cat.npz' has the number 0: expected 1 to 1,000 boxes"),
        ('{"cat.npz": true}', "'cat.npz' has the bool True"),
        ("[36]", "is no object: expected {name: number of boxes}"),
        ('{"cat.npz": 3', "not JSON"),
    ],
)
def test_wrong_counts_are_refused_at_once(counts: str, message: str, tmp_path: Path) -> None:
    image_database(tmp_path / DB)
    (tmp_path / "nbb_th0.2_max100_min10.json").write_text(counts)
    with pytest.raises(FileError) as caught:
        BoxFeatureStore.open(tmp_path)
    assert "nbb_th0.2_max100_min10.json" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("write", [npz_folder, image_database, bottom_up])
def test_stores_survive_pickling_and_are_opened_once_more(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = write(tmp_path / "features.tsv")
    store = BoxFeatureStore.open(path)
    assert len(store["cat"].decode()) == 12
    for again in (pickle.loads(pickle.dumps(store)), BoxFeatureStore.open(path)):
        assert (again.fingerprint, list(again)) == (store.fingerprint, IDS)
        assert again["cat"].key == store["cat"].key


@pytest.mark.parametrize("write", [npz_folder, image_database, lxmert])
def test_the_fingerprint_changes_with_what_is_stored(write: Callable[[Path], Path], tmp_path: Path) -> None:
    prints = [BoxFeatureStore.open(write(tmp_path / f"{i}.tsv")).fingerprint for i in range(2)]
    assert prints[0] == prints[1]
    FOUND["one more"] = detected(7)
    try:
        assert BoxFeatureStore.open(write(tmp_path / "2.tsv")).fingerprint != prints[0]
    finally:
        del FOUND["one more"]


# ---- ids


def test_ids_are_matched_as_among_images(tmp_path: Path) -> None:
    store = BoxFeatureStore.open(npz_folder(tmp_path / "npz"))
    names = ["42", 42, "COCO_val2014_000000000042.jpg", "x/y/000000000042", Path("images/cat.png"), "dog.1"]
    images = [*names, InputImage.of("images/dog.1.jpg")]
    coco = "COCO_val2014_000000000042"
    expected = [coco, coco, coco, coco, "cat", "dog.1", "dog.1"]
    assert [store.find(id_of(image)).name for image in images] == [f"{i!r} of {store.path}" for i in expected]
    samples = check_samples(["a"] * 7, boxes_by_id(store, images), needs_references=False, media=("boxes",))
    assert [len(boxes.load()) for boxes in samples.images] == [30] * 4 + [12, 1, 1]


def test_uniter_writes_coco_in_lower_case(tmp_path: Path) -> None:
    entries = {"coco_val2014_000000000042.npz": npz_of(released(FOUND["cat"]))}
    store = BoxFeatureStore.open(write_lmdb(tmp_path / "db", entries))
    assert len(loaded(store, "42")) == len(loaded(store, "COCO_val2014_000000000042.jpg")) == 12


def test_all_missing_ids_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "npz").mkdir()
    for name in ("a.jpg", "a.png", "cat"):
        np.savez(tmp_path / "npz" / f"{name}.npz", **FOUND["cat"])
    images = boxes_by_id(BoxFeatureStore.open(tmp_path / "npz"), ["cat", "x/bird", 7, "a", None, "", 1.5])
    with pytest.raises(ValueError) as caught:
        check_samples(["a"] * 7, images, needs_references=False, media=("boxes",))
    path = tmp_path / "npz"
    assert str(caught.value).splitlines()[1:] == [
        f"  images[1]: there are no box features of 'x/bird' in {path}, which has those of 3 images, the "
        "nearest: 'a.png', 'cat': compute them, or correct the id",
        f"  images[2]: there are no box features of '7' in {path}, which has those of 3 images, the nearest: "
        "'a.jpg': compute them, or correct the id",
        "  images[3]: the id 'a' is ambiguous, it can mean 'a.jpg' and 'a.png': write it in full",
        "  images[4] is None: with precomputed box features, images are ids or paths",
        "  images[5] is an empty id: write the image's id",
        "  images[6] is the number 1.5: with precomputed box features, images are ids or paths",
    ]


def test_listing_ids_reads_no_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("features are read")

    stores = [
        BoxFeatureStore.open(write(tmp_path / f"{i}.tsv"))
        for i, write in enumerate([npz_folder, image_database, bottom_up])
    ]
    for kind in (NpzFolder, BoxLmdb, BoxTsv):
        monkeypatch.setattr(kind, "arrays", fail)
    assert [list(store) for store in stores] == [IDS] * 3
    assert all(store.find("42") is not None and store.fingerprint for store in stores)


@pytest.mark.parametrize("write", [image_database, bottom_up])
def test_ids_that_come_twice_are_refused(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    if write is image_database:
        write_lmdb(path, dict.fromkeys(["cat", "cat.npz", "dog"], npz_of(released(FOUND["cat"]))))
    else:
        written(path, bottom_up_line("cat", FOUND["cat"]) * 2 + bottom_up_line("dog", FOUND["cat"]))
    with pytest.raises(FileError, match="the id 'cat' comes twice: keep one of each"):
        list(BoxFeatureStore.open(path))


# ---- paths


def test_paths_of_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    npz_folder(tmp_path / "npz")
    (tmp_path / "b.mdb").write_text("x")
    (tmp_path / "none.tsv").touch()
    written(tmp_path / "captions.tsv", "cat\ta cat\n")
    for name, message in (
        ("gone", "there is no such file or folder: expected a folder of .npz files"),
        ("empty", "is empty: expected a folder of .npz files"),
        ("images", "holds files like 'a.jpg': expected a folder of .npz files"),
        ("npz/cat.npz", "is a file of another form: pass the folder that it lies in"),
        ("b.mdb", "is a file of another form: expected a folder of .npz files"),
        ("none.tsv", "is empty: expected image_id, image_w, image_h, num_boxes, boxes, features or img_id"),
        ("captions.tsv", "has 2 columns: expected image_id, image_w"),
        ("a\0b", "has a NUL character"),
    ):
        with pytest.raises(FileError) as caught:
            BoxFeatureStore.open(tmp_path / name)
        assert message in str(caught.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = image_database(tmp_path / "db")
    for package in ("lmdb", "lz4", "msgpack"):
        with monkeypatch.context() as patch:
            patch.setitem(__import__("sys").modules, package, None)
            patch.delitem(__import__("sys").modules, "lz4.frame", raising=False)
            with pytest.raises(FileError) as caught:
                BoxFeatureStore.open(path)
        message = f'an LMDB of box features needs the package {package}: pip install "capeval[lmdb]"'
        assert str(caught.value) == message


# ---- damage and hostility


def test_damage_costs_its_own_entry(tmp_path: Path) -> None:
    good = npz_of(released(FOUND["cat"]))
    objects = {**released(FOUND["cat"]), "features": np.array([Runs()] * 12)}
    pickled = {**packed(FOUND["cat"]["features"]), b"kind": b"O", b"data": pickle.dumps(Runs())}
    fields = [(b"type", "|O"), (b"kind", b"V"), (b"type", [["a", "<f4"]]), (b"type", "<f3"), (b"nd", False)]
    features = packed(released(FOUND["cat"])["features"])
    maps: dict[str, Any] = {
        f"field{i}": {**features, key: value} for i, (key, value) in enumerate(fields)
    } | {
        "objects": pickled,
        "shape": {**features, b"shape": [2**40, 5]},
        "axes": {**features, b"shape": [2**62, 2**62, 0], b"data": b""},
        "bool": {**features, b"shape": [True, 60]},
        "negative": {**features, b"shape": [-12, -5]},
        "number": 5,
    }
    entries = {
        "good": good,
        "cut": good[:200],
        "text": b"not msgpack",
        "empty": b"",
        "pickle": npz_of(objects),
        "list": msgpack.packb([1, 2]),
        "deep": b"\x91" * 5_000,
        "huge": b"\xdd\xff\xff\xff\xff",
        "lz4": lz4_of(released(FOUND["cat"]))[:100],
        "nothing": msgpack.packb({}),
    }
    entries |= {
        name: msgpack.packb({"norm_bb": packed(released(FOUND["cat"])["norm_bb"]), "features": value})
        for name, value in maps.items()
    }
    path = write_lmdb(tmp_path / "db", entries)
    store = BoxFeatureStore.open(path)
    assert len(loaded(store, "good")) == 12
    messages = {name: refusal(store, name) for name in entries if name != "good"}
    for name, message in messages.items():
        assert message.startswith(f"'{name}' of {path}: images[0]"), message
    for name, expected in {
        "cut": ": its entry is not an .npz file, or damaged (",
        "text": ": its entry is damaged (unpack",
        "empty": ": its entry is damaged (",
        "pickle": '["features"]: the header says shape (12,) of object',
        "list": ": its entry is a list of length 2: expected a map of arrays",
        "deep": ": its entry is damaged (",
        "huge": ": its entry is damaged (4294967295 exceeds max_array_len(1000))",
        "lz4": ": its entry is cut off, or has more than",
        "nothing": ": there is no 'boxes' among the keys none",
        "objects": "[\"features\"] is an array of '<f4': expected numbers; nothing is unpickled",
        "field0": "[\"features\"] is an array of '|O': expected numbers",
        "field1": "expected numbers; nothing is unpickled",
        "field2": '["features"] is an array of objects: expected numbers',
        "field3": "is an array of '<f3'",
        "field4": '["features"] is a dict of length 5: expected an array',
        "shape": "the header says shape (1099511627776, 5) of float16, which 120 bytes are not",
        "axes": '["features"]: the array has shape (4611686018427387904, 4611686018427387904, 0): write',
        "bool": '["features"]: the array is damaged',
        "negative": '["features"]: the array is damaged',
        "number": '["features"] is the number 5: expected an array',
    }.items():
        assert expected in messages[name], messages[name]


def test_small_entries_that_unpack_to_much_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_lmdb, "_MOST_UNPACKED", 1 << 16)
    monkeypatch.setattr(box_lmdb, "MOST_BYTES", 1 << 14)
    monkeypatch.setattr(box_arrays, "MOST_BYTES", 1 << 14)
    zeros = {"norm_bb": np.zeros((1, 6)), "features": np.zeros((1, 1 << 15))}
    half = {**zeros, "features": np.zeros((1, 1 << 12))}
    entries = {"lz4": lz4_of(zeros), "npz": npz_of(half), "msgpack": msgpack_of(half), "long": bytes(1 << 17)}
    store = BoxFeatureStore.open(write_lmdb(tmp_path / "db", entries))
    assert len(entries["lz4"]) < 1 << 14
    assert "is cut off, or has more than 65,536 bytes" in refusal(store, "lz4")
    assert "bytes: expected at most 16,384" in refusal(store, "npz")
    assert "which 32,768 bytes are not" in refusal(store, "msgpack")
    assert "its entry has 131,072 bytes" in refusal(store, "long")


def test_a_number_of_boxes_cuts_only_what_has_a_row_per_box(tmp_path: Path) -> None:
    arrays = released(FOUND["cat"])
    entries = {
        "sized.npz": msgpack_of({**arrays, "size": np.array(SIZE)}),
        "scalar.npz": msgpack_of({**arrays, "conf": np.float32(0.5)}),
    }
    store = BoxFeatureStore.open(write_lmdb(tmp_path / "feat_numbb1", entries))
    assert (loaded(store, "sized").size, len(loaded(store, "sized"))) == (SIZE, 1)
    assert "the array has shape (): expected 1 axis" in refusal(store, "scalar")


def test_errors_of_lmdb_name_the_file(tmp_path: Path) -> None:
    data = image_database(tmp_path / "db") / "data.mdb"
    whole, page = data.read_bytes(), 4096
    (leaf,) = (at for at in range(2 * page, len(whole), page) if whole[at + 10] == 2 and whole[at + 12] > 22)
    data.write_bytes(whole[: leaf + 10] + b"\x40" + whole[leaf + 11 :])
    with pytest.raises(FileError, match=r"data.mdb: cannot be read \(.*\): it is damaged: write or download"):
        list(BoxFeatureStore.open(tmp_path / "db"))


def test_other_compressions_are_not_unpacked(tmp_path: Path) -> None:
    """zipfile unpacks them whole: a kilobyte of bzip2 can take all memory, whatever size it states."""
    path = npz_folder(tmp_path / "npz")
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path / "cat.npz", "w", compression) as file:
            file.writestr("boxes.npy", bytes(100))
        message = refusal(BoxFeatureStore.open(path), "cat")
        assert '["boxes"]: the array is packed by another compression: write it with numpy.sav' in message


def test_a_link_to_itself_costs_no_other_file(tmp_path: Path) -> None:
    path = npz_folder(tmp_path / "npz")
    (path / "loop.npz").symlink_to("loop.npz")
    assert list(BoxFeatureStore.open(path)) == IDS


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    for name in ("a.tsv", "features"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(FileError, match="is a pipe, a socket or a device"):
            BoxFeatureStore.open(tmp_path / name)


def test_a_header_of_another_order_is_refused(tmp_path: Path) -> None:
    columns = ["image_id", "image_h", "image_w", *box_tsv.BOTTOM_UP[3:]]
    text = "\t".join(columns) + "\n" + bottom_up_line("cat", FOUND["cat"])
    with pytest.raises(
        FileError, match=r"has the columns image_id, image_h, image_w, .*: expected image_id, "
    ):
        list(BoxFeatureStore.open(written(tmp_path / "a.tsv", text)))


def test_an_id_of_any_length_is_named_in_short(tmp_path: Path) -> None:
    store = BoxFeatureStore.open(npz_folder(tmp_path / "npz"))
    with pytest.raises(Refused) as caught:
        store.find("x" * 1_000_000)
    assert len(str(caught.value.args[0])) < 1_000


def test_a_database_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """LMDB itself would open it, and a read behind its end would kill the process."""
    data = image_database(tmp_path / "db") / "data.mdb"
    whole = data.read_bytes()
    for length, message in (
        (len(whole) - 1, "it is cut off"),
        (5_000, "it is cut off"),
        (100, "is not an LMDB"),
    ):
        data.write_bytes(whole[:length])
        with pytest.raises(FileError, match=message):
            list(BoxFeatureStore.open(tmp_path / "db"))
    data.write_bytes(whole)
    assert len(BoxFeatureStore.open(tmp_path / "db")) == 3


def test_damaged_files_of_a_folder(tmp_path: Path) -> None:
    path = npz_folder(tmp_path / "npz")
    (path / "cat.npz").write_bytes((path / "cat.npz").read_bytes()[:300])
    np.savez(path / "pickle.npz", boxes=np.zeros((1, 4)), features=np.array([[Runs()]], object))
    with zipfile.ZipFile(path / "header.npz", "w") as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 4)}
        )
        file.writestr("boxes.npy", header.getvalue())
    pickled = pickle.dumps(Runs()).ljust(64, b"\0")  # as long as eight objects are
    with zipfile.ZipFile(path / "exact.npz", "w") as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (2, 4)})
        file.writestr("boxes.npy", header.getvalue() + pickled)
    np.savez(path / "nan.npz", **{**FOUND["cat"], "features": np.full((12, 5), np.nan)})
    store = BoxFeatureStore.open(path)
    for image_id, message in (
        ("cat", "images[0]: its file is not an .npz file, or damaged ("),
        ("pickle", 'images[0]["features"]: the header says shape (1, 1) of object'),
        ("exact", "images[0]: its file is not an .npz file, or damaged (Object arrays cannot be loaded"),
        (
            "header",
            'images[0]["boxes"]: the header says shape (1099511627776, 4) of float32, which the array',
        ),
        (
            "nan",
            'images[0]["features"]: the array has NaN or infinity, first at [0, 0]: leave such boxes out',
        ),
    ):
        assert refusal(store, image_id).startswith(f"'{image_id}' of {path}: {message}")
    (path / "dog.1.npz").unlink()
    assert "there is no file" in refusal(store, "dog.1")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (1, "0", "[\"image_w\"] is '0': expected a number from 1 to 1,048,576"),
        (2, "x", "[\"image_h\"] is 'x': expected a number"),
        (3, "1001", "[\"num_boxes\"] is '1001': expected a number from 1 to 1,000"),
        (3, "9" * 5_000, "[\"num_boxes\"] is '99999999999999999999': expected"),
        (3, "13", '["boxes"]: the array has 192 bytes: expected float32 of shape (13, 4), in base64'),
        (4, text_of(FOUND["cat"]["boxes"])[:-2], '["boxes"]: the base64 is damaged (Incorrect padding)'),
        (4, "", '["boxes"]: the array has 0 bytes'),
        (5, "A!", '["features"]: the base64 is damaged ('),
        (5, "!!!!" + text_of(np.ones((12, 2))), '["features"]: the base64 is damaged ('),
        (5, text_of(np.ones(13)), '["features"]: the array has 52 bytes: expected float32 of shape (12, d)'),
        (5, text_of(np.full((12, 2), np.inf)), '["features"]: the array has NaN or infinity'),
        (5, text_of(np.ones((12, 2))) + "\tmore", ": its line has 7 columns: expected image_id, image_w"),
    ],
)
def test_damaged_lines(column: int, value: str, message: str, tmp_path: Path) -> None:
    fields = bottom_up_line("cat", FOUND["cat"]).rstrip("\n").split("\t")
    fields[column] = value
    lines = [
        bottom_up_line("dog", FOUND["cat"]),
        "\t".join(fields) + "\n",
        bottom_up_line("eel", FOUND["cat"]),
    ]
    store = BoxFeatureStore.open(written(tmp_path / "a.tsv", "".join(lines)))
    assert refusal(store, "cat").startswith(f"'cat' of {tmp_path / 'a.tsv'}: images[0]{message}")
    assert len(loaded(store, "dog")) == len(loaded(store, "eel")) == 12


def test_a_tsv_may_have_a_header_and_no_last_newline(tmp_path: Path) -> None:
    header = "\t".join(box_tsv.LXMERT) + "\r\n"
    line = lxmert_line("cat", FOUND["cat"]).rstrip("\n")
    store = BoxFeatureStore.open(
        written(tmp_path / "a.tsv", f"{header}{line}\n\n{line.replace('cat', 'dog')}")
    )
    assert list(store) == ["cat", "dog"] and loaded(store, "dog").size == SIZE


def test_a_tsv_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in (
        ("empty", b"\t\t\t\t\t\n"),
        ("bytes", b"\xff\t\t\t\t\t\n"),
        ("long", b"a" * 2_000 + b"\t" * 5),
    ):
        path = tmp_path / f"{name}.tsv"
        path.write_bytes(bottom_up_line("cat", FOUND["cat"]).encode() + data)
        with pytest.raises(FileError, match="line 2 does not begin with an image's id: expected image_id"):
            list(BoxFeatureStore.open(path))
    monkeypatch.setattr(box_tsv, "LONGEST_LINE", 2_000)
    path.write_text(bottom_up_line("cat", FOUND["cat"]) + "a\t" * 5 + "b" * 3_000)
    with pytest.raises(FileError, match="line 2 is longer than 2,000 bytes: write a line per image"):
        list(BoxFeatureStore.open(path))


def test_a_tsv_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = bottom_up(tmp_path / "a.tsv")
    store = BoxFeatureStore.open(path)
    assert len(store) == 3
    written(path, bottom_up_line("dog", FOUND["cat"]))
    assert "its line is no longer there: open the file again, which has changed" in refusal(store, "42")


def test_a_tsv_is_searched_once_while_it_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric opens it again for each score, and such files have gigabytes."""
    path, searched = bottom_up(tmp_path / "a.tsv"), []
    monkeypatch.setattr(box_tsv, "refuse_repeated", lambda path, ids: searched.append(len(ids)))
    for _ in range(3):
        assert list(BoxFeatureStore.open(path)) == IDS
    assert searched == [3]
    with path.open("a") as file:
        file.write(bottom_up_line("eel", FOUND["cat"]))
    assert len(BoxFeatureStore.open(path)) == 4 and searched == [3, 4]
    path.write_text(path.read_text().replace("eel\t", "owl\t"))  # of the same size
    os.utime(path, ns=(0, 1))
    assert "owl" in BoxFeatureStore.open(path)


def test_the_manifest_of_a_folder(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path) is None
    manifest = Manifest("bua@1", "bua10_100", "float32", "abc")
    (tmp_path / MANIFEST).write_text(manifest.text())
    assert Manifest.read(tmp_path) == manifest
    for text, message in (
        (
            "[]",
            "is not a file that `capeval regions` wrote (expected encoder, selection, dtype, fingerprint)",
        ),
        (manifest.text().replace(": 1", ": 2", 1), "is of format 2, which another version of capeval wrote"),
        ("{", "not JSON"),
    ):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(FileError) as caught:
            Manifest.read(tmp_path)
        assert message in str(caught.value)


def test_a_file_knows_its_image_and_whether_it_is_whole(tmp_path: Path) -> None:
    arrays = FOUND["cat"]
    found = BoxFeatures(arrays["boxes"], arrays["features"], SIZE, arrays["scores"])
    path = tmp_path / "cat.npz"
    path.write_bytes(npz_bytes(found, "file:1"))
    assert loaded(BoxFeatureStore.open(tmp_path), "cat").key == found.key
    assert is_whole(path, "file:1") and not is_whole(path, "file:2")
    image = bytearray(path.read_bytes())
    image[image.index(b"f\0\0\0i\0\0\0l\0\0\0e")] ^= 1  # of the array that names the image
    for damaged in (
        bytes(image),
        path.read_bytes()[:-100],
        npz_bytes(BoxFeatures(arrays["boxes"], arrays["features"] * np.nan), "file:1"),
    ):
        path.write_bytes(damaged)
        assert not is_whole(path, "file:1")
    np.savez(path, **arrays)  # of someone else, who does not say what it is of
    assert not is_whole(path, "file:1") and not is_whole(tmp_path / "dog.npz", "file:1")
