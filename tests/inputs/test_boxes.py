"""Box features: positions, the first boxes, every form on the disk, and damage that costs its own entry."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from capeval_core.errors import FileError, InputError
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
    write_lmdb,
)
from tests.support.seams import box_store, visual

PIXELS = np.array([[10, 5, 30, 15], [0, 0, 40, 20], [4, 2, 4, 8]], dtype="float32")
RELATIVE = np.array(
    [[0.25, 0.25, 0.75, 0.75, 0.5, 0.5], [0, 0, 1, 1, 1, 1], [0.1, 0.1, 0.1, 0.4, 0, 0.3]], dtype="float32"
)
ONE: dict[str, Any] = {
    "boxes": PIXELS,
    "features": np.arange(12.0, dtype="float32").reshape(3, 4),
    "size": (40, 20),
    "scores": [0.9, 0.5, 0.2],
    "relative_boxes": RELATIVE,
    "selection": "bua10_100",
}
COCO = "COCO_val2014_000000000042"
FOUND = {"cat": detected(0), COCO: detected(1, n=30), "dog.1": detected(2, n=1)}
DB = "feat_th0.2_max100_min10"


def of(**change: Any) -> Any:
    return visual("boxes", {**ONE, **change}).load()


# ---- of one image


def test_boxes_have_one_key_however_they_are_handed_in(tmp_path: Path) -> None:
    arrays = {name: ONE[name] for name in ("boxes", "features")}
    np.savez(tmp_path / "a.npz", **arrays)
    doubles = {name: value.astype("float64") for name, value in arrays.items()}
    tensors = {name: torch.tensor(value) for name, value in arrays.items()}
    more = {**arrays, "size": None, "labels": 1}
    values = [arrays, doubles, tensors, more, tmp_path / "a.npz", str(tmp_path / "a.npz")]
    found = [visual("boxes", value) for value in values]
    assert len({one.key for one in found}) == 1
    assert pickle.loads(pickle.dumps(found[-1])).key == found[0].key
    assert [found[0].load().size, found[0].load().scores, len(found[0].load())] == [None, None, 3]


def test_the_key_covers_every_field() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"relative_boxes": None},
        {"relative_boxes": RELATIVE.astype("float16")},
        {"scores": None},
        {"scores": None, "relative_boxes": None},
        {"size": None},
        {"size": (41, 20)},
        {"boxes": PIXELS + 0.5, "size": (41, 21)},
        {"features": np.zeros((3, 4))},
        {"selection": "lxmert36"},
        {"selection": None},
    ]
    assert len({of(**change).key for change in changes}) == len(changes)
    assert of().key == of().key


def test_relative_boxes_are_those_stored_or_follow_from_pixels_and_size() -> None:
    made = of(relative_boxes=None)
    assert made.relative_boxes is None and made.relative().dtype == np.float32
    np.testing.assert_array_equal(made.relative(), RELATIVE)
    stored = RELATIVE.astype("float16")  # 0.1 and 0.4 are rounded
    np.testing.assert_array_equal(of(relative_boxes=stored).relative(), stored.astype("float32"))
    with pytest.raises(ValueError):
        of(relative_boxes=None, size=None).relative()


def test_files_of_the_release_have_other_names_and_no_pixels() -> None:
    names = {"norm_bb": RELATIVE, "features": ONE["features"], "conf": ONE["scores"], "soft_labels": 1}
    found = visual("boxes", names).load()
    assert found.size is None and found.scores.tolist() == np.float32([0.9, 0.5, 0.2]).tolist()
    np.testing.assert_array_equal(found.boxes, RELATIVE[:, :4])
    sized = visual("boxes", {**names, "size": (40, 20)}).load()
    np.testing.assert_allclose(sized.boxes, PIXELS, atol=1e-5)


def test_the_first_boxes_with_all_that_belongs_to_them() -> None:
    found = of().first(2)
    np.testing.assert_array_equal(found.boxes, PIXELS[:2])
    np.testing.assert_array_equal(found.features, ONE["features"][:2])
    np.testing.assert_array_equal(found.relative(), RELATIVE[:2])
    assert found.scores.tolist() == [np.float32(0.9), 0.5]
    assert (found.selection, found.size) == ("bua10_100", (40, 20))
    assert len(of(scores=None, relative_boxes=None).first(2)) == 2
    assert len(of().first(3)) == len(of().first(100)) == 3


def test_leaving_out_better_boxes_is_warned_of() -> None:
    with pytest.warns(UserWarning):
        assert of(scores=[0.2, 0.9, 0.5]).first(2).scores.tolist() == [np.float32(0.2), np.float32(0.9)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of(scores=[0.5, 0.9, 0.5]).first(2)  # the last one is no better than any that is kept
        of(scores=[0.2, 0.9, 0.5]).first(3)


# ---- of many images, on the disk


def npz_folder(path: Path, form: Callable[[Any], Any] = dict) -> Path:
    path.mkdir()
    for image_id, arrays in FOUND.items():
        np.savez(path / f"{image_id}.npz", **form(arrays))
    return path


def database(path: Path, form: Callable[[Any], bytes] = msgpack_of) -> Path:
    return write_lmdb(path, {f"{name}.npz": form(released(found)) for name, found in FOUND.items()})


def tsv(path: Path, line: Callable[[str, Any], str] = bottom_up_line) -> Path:
    path.write_text("".join(line(image_id, found) for image_id, found in FOUND.items()))
    return path


def loaded(store: Any, image_id: str) -> Any:
    return visual("boxes", store.find(image_id)).load()


def equal(array: Any, expected: Any) -> None:
    assert array is not None and array.dtype == np.float32
    np.testing.assert_array_equal(array, np.asarray(expected).astype("float32"))


@pytest.mark.parametrize("write", [npz_folder, tsv, lambda path: tsv(path, lxmert_line)])
def test_forms_with_pixels_give_what_was_written(write: Callable[[Path], Path], tmp_path: Path) -> None:
    store = box_store(write(tmp_path / "features.tsv"))
    assert sorted(store.entries) == sorted(FOUND)
    assert store.name == "precomputed:features.tsv"
    for image_id, arrays in FOUND.items():
        found = loaded(store, image_id)
        equal(found.boxes, arrays["boxes"])
        equal(found.features, arrays["features"])
        assert found.size == SIZE and found.relative_boxes is None
        if write is tsv:
            assert found.scores is None
        else:
            equal(found.scores, arrays["scores"])
            assert found.key == visual("boxes", arrays).key  # so that kept features serve every form


@pytest.mark.parametrize("form", [msgpack_of, npz_of, lz4_of, "folder"])
def test_files_of_the_release_keep_their_rounding(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "features"
    store = box_store(npz_folder(path, released) if form == "folder" else database(path, form))
    assert sorted(store.entries) == sorted(FOUND)
    for image_id, arrays in FOUND.items():
        found, expected = loaded(store, image_id), released(arrays)
        equal(found.features, expected["features"])
        equal(found.relative(), expected["norm_bb"])
        equal(found.scores, expected["conf"])
        assert found.size is None and found.key == visual("boxes", expected).key


def test_the_counts_beside_a_database_choose_its_boxes(tmp_path: Path) -> None:
    """They were made of exact scores: those of the database are rounded, and are not counted again."""
    for name in (f"{DB}_compressed", DB, "feat_numbb7"):
        database(tmp_path / name)
    (tmp_path / f"nbb_{DB.removeprefix('feat_')}.json").write_text('{"cat.npz": 11, "dog.1.npz": 10}')
    for path in (tmp_path, tmp_path / DB, tmp_path / DB / "data.mdb"):
        store = box_store(path)
        cat, uncounted = loaded(store, "cat"), loaded(store, "42")
        for array, name in ((cat.features, "features"), (cat.relative(), "norm_bb"), (cat.scores, "conf")):
            equal(array, released(FOUND["cat"])[name][:11])
        assert (store.selection, cat.selection) == ("bua10_100", "bua10_100")
        assert len(loaded(store, "dog.1")) == 1  # there are no more
        assert len(uncounted) == 30 and uncounted.selection is None
    fixed = loaded(box_store(tmp_path / "feat_numbb7"), "cat")
    assert len(fixed) == 7 and fixed.selection == "first 7"
    (tmp_path / f"nbb_{DB.removeprefix('feat_')}.json").write_text('{"other.npz": 11}')
    with pytest.raises(FileError, match="of other images: 'other"):
        _ = box_store(tmp_path).entries


def test_a_database_that_was_written_again_is_opened_again(tmp_path: Path) -> None:
    entry = npz_of(released(FOUND["cat"]))
    first, other = (write_lmdb(tmp_path / name, {name: entry, "cat": entry}) for name in ("a", "b"))
    assert "a" in box_store(first).entries
    (first / "data.mdb").write_bytes((other / "data.mdb").read_bytes())
    assert "b" in box_store(first).entries


def test_an_image_of_two_entries_is_refused(tmp_path: Path) -> None:
    entry = npz_of(released(FOUND["cat"]))
    with pytest.raises(FileError, match="'a' comes twice"):
        _ = box_store(write_lmdb(tmp_path / "db", {"a": entry, "a.npz": entry})).entries


def test_a_tsv_may_have_a_header_and_no_last_newline(tmp_path: Path) -> None:
    columns = "img_id img_h img_w objects_id objects_conf attrs_id attrs_conf num_boxes boxes features"
    line = lxmert_line("cat", FOUND["cat"]).rstrip("\n")
    header = "\t".join(columns.split())
    (tmp_path / "a.tsv").write_text(f"{header}\r\n{line}\n\n{line.replace('cat', 'dog')}")
    store = box_store(tmp_path / "a.tsv")
    assert sorted(store.entries) == ["cat", "dog"] and loaded(store, "dog").size == SIZE
    (tmp_path / "a.tsv").write_text(line.replace("cat", "cow").ljust(store.path.stat().st_size, "\n"))
    assert [*box_store(tmp_path / "a.tsv").entries] == ["cow"]  # of as many bytes as before
    swapped = "\t".join(["image_id", "image_h", "image_w", "num_boxes", "boxes", "features"])
    (tmp_path / "b.tsv").write_text(swapped + "\n" + bottom_up_line("cat", FOUND["cat"]))
    with pytest.raises(FileError):  # else width and height would change places
        box_store(tmp_path / "b.tsv")


# ---- damage, which costs its own entry, and hostility: nothing is unpickled


class Runs:
    """Ends the test if it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def refusal(store: Any, image_id: str) -> str:
    """The message that an image's features cannot be read, though its id is there."""
    with pytest.raises(InputError) as caught:
        loaded(store, image_id)
    return str(caught.value)


def test_damaged_entries_of_a_database(tmp_path: Path) -> None:
    good = released(FOUND["cat"])
    features = packed(good["features"])
    fields: dict[str, Any] = {
        "objects": {**features, b"kind": b"O", b"data": pickle.dumps(Runs())},
        "type": {**features, b"type": "|O"},
        "structure": {**features, b"type": [["a", "<f4"]]},
        "shape": {**features, b"shape": [2**40, 5]},
        "axes": {**features, b"shape": [2**62, 2**62, 0], b"data": b""},
        "negative": {**features, b"shape": [-12, -5]},
        "nan": packed(np.full((12, 5), np.nan)),
        "number": 5,
    }
    entries = {
        "good": npz_of(good),
        "cut": npz_of(good)[:200],
        "text": b"not msgpack",
        "empty": b"",
        "pickle": pickle.dumps(Runs()),
        "pickled": npz_of({**good, "features": np.array([Runs()] * 12)}),
        "list": msgpack.packb([1, 2]),
        "deep": b"\x91" * 5_000,
        "huge": b"\xdd\xff\xff\xff\xff",
        "lz4": lz4_of(good)[:100],
        "nothing": msgpack.packb({}),
        **{name: msgpack.packb({"norm_bb": packed(good["norm_bb"]), "features": field})
           for name, field in fields.items()},
    }  # fmt: skip
    store = box_store(write_lmdb(tmp_path / "db", entries))
    assert len(loaded(store, "good")) == 12
    messages = {name: refusal(store, name) for name in entries if name != "good"}
    assert all("features" in messages[name] for name in ("pickled", *fields))
    assert "capeval regions" in messages["pickle"]


def test_a_database_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """LMDB itself would open it, and a read behind its end would kill the process."""
    data = database(tmp_path / "db") / "data.mdb"
    whole = data.read_bytes()
    for length in (len(whole) - 1, 5_000, 100, 0):
        data.write_bytes(whole[:length])
        with pytest.raises(FileError):
            _ = box_store(tmp_path / "db").entries
    data.write_bytes(whole)
    assert len(box_store(tmp_path / "db").entries) == 3


# ---- what does not fit, at its key and row


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a score above 1": ({"scores": [0.9, 1.0001, 0.2]}, '["scores"][1]', "1.0001"),
    "a score below 0": ({"scores": [0.9, 0.5, -0.001]}, '["scores"][2]', "-0.001"),
    "a score of a release": ({"scores": None, "conf": [0.9, 0.5, 2]}, '["conf"][2]', "2.0"),
    "too few scores": ({"scores": [0.9, 0.5]}, '["scores"]', "3 boxes but 2 rows"),
    "too few features": ({"features": np.ones((2, 4))}, '["features"]', "3 boxes but 2 rows"),
    "corners that change places": ({"boxes": PIXELS[:, [2, 1, 0, 3]]}, '["boxes"][0]', "[30.0, 5.0, 10.0"),
    "a width for a corner": ({"boxes": [[9, 9, 4, 5], *PIXELS[1:]]}, '["boxes"][0]', "x0 + width"),
    "left of the image": ({"boxes": [*PIXELS[:2], [-1.5, 2, 4, 8]]}, '["boxes"][2]', "40x20"),
    "right of the image": ({"boxes": [[10, 5, 42.5, 15], *PIXELS[1:]]}, '["boxes"][0]', "40x20"),
    "shares above 1": ({"relative_boxes": RELATIVE * 1.05}, '["relative_boxes"][1]', "from 0 to 1"),
    "other sides": (
        {"relative_boxes": RELATIVE - [0, 0, 0, 0, 0, 0.05]}, '["relative_boxes"][0]', "width = x1 - x0"
    ),
    "relative to another size": ({"size": (48, 20)}, '["relative_boxes"][0]', "(48, 20)"),
    "shares for pixels": (
        {"boxes": RELATIVE[:, :4], "relative_boxes": None}, '["boxes"]', "no box reaches beyond"
    ),
    "a misspelt key": ({"score": 1}, "", "'score'"),
    "no boxes": ({"boxes": np.zeros((0, 4)), "features": np.zeros((0, 4)), "scores": None,
                  "relative_boxes": None}, "", "there are no boxes"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_at_its_key_and_row(case: str) -> None:
    change, place, words = WRONG[case]
    with pytest.raises(InputError) as caught:
        visual("boxes", {**ONE, **change}, "images[3]").load()
    (problem,) = caught.value.problems
    assert problem.where.replace("'", '"') == f"images[3]{place}", problem
    assert words in f"{problem.text}: {problem.fix}", problem
    if case == "no boxes":
        assert re.search(r"expected 1 to [\d,]+ boxes with at most [\d,]+ numbers", problem.fix)


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [1.0000005, 0, 1]},
        {"boxes": [[-1, -1, 41, 21], *PIXELS[1:]], "relative_boxes": None},  # counted from 1, or rounded
        {"boxes": np.array([[0, 0, 1, 1]] * 3), "relative_boxes": None, "size": (2, 2)},
        {"boxes": np.array([[0, 0, 1, 1]] * 2 + [[0, 0, 2, 1]]), "relative_boxes": None},
        {"boxes": RELATIVE[:, :4], "relative_boxes": None, "size": None},
        {"confidence_of_all": 1},
    ],
)
def test_what_just_fits_is_taken(change: dict[str, Any]) -> None:
    assert len(of(**change)) == 3
