from __future__ import annotations

import io
import os
import pickle
from collections import UserList
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

from capeval_core.inputs.samples import Samples, check_pools, check_samples
from capeval_core.inputs.visual import ImageError, InputImage
from tests.inputs.photographs import encoded, photograph, turned

GREY = np.full((4, 6), 128, "uint8")
EMPTY_MEND = 'pass empty="score"'


def checked(captions: Any, images: Any, references: Any = None, **options: Any) -> Samples:
    options.setdefault("needs_references", references is not None)
    return check_samples(captions, images, references, **options)


def complaint(captions: Any, images: Any, references: Any = None, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        checked(captions, images, references, **options)
    return str(caught.value)


# ---- captions


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        np.array,
        pd.Series,
        pa.array,
        lambda texts: np.array(texts, dtype=object),
        lambda texts: pd.Series(texts, index=range(10, 10 + len(texts))),
        lambda texts: datasets.Dataset.from_dict({"text": texts})["text"],
    ],
)
def test_captions_of_every_make(make: Any) -> None:
    samples = checked(make([" a dog ", "café"]), [GREY, GREY])
    assert samples.captions == [" a dog ", "café"]
    assert all(type(caption) is str for caption in samples.captions)


@pytest.mark.parametrize(
    ("caption", "message", "kind"),
    [
        ("", f"is empty: write a caption or {EMPTY_MEND}", ValueError),
        (" \n\t", f"is empty (only whitespace): write a caption or {EMPTY_MEND}", ValueError),
        (None, "is None: write a caption", ValueError),
        (5, "is the number 5: expected a string", TypeError),
        (float("nan"), "is the number nan: expected a string", TypeError),
        (b"a dog", "is a bytes of length 5: expected a string, decode it first", TypeError),
        (["a dog"], "is a list of length 1: expected a string", TypeError),
        ("a \ud800", "is not valid Unicode (a lone surrogate): 'a \\ud800'", ValueError),
    ],
)
def test_one_bad_caption(caption: Any, message: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        checked(["a", "b", "c", caption], [GREY] * 4)
    assert str(caught.value) == f"captions[3] {message}"


def test_empty_captions_can_be_scored_but_none_cannot() -> None:
    assert checked(["", " "], [GREY] * 2, empty="score").captions == ["", " "]
    assert complaint([None], [GREY], empty="score") == "captions[0] is None: write a caption"


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        ([], "captions is empty: there is nothing to score"),
        (None, "captions is missing: pass a list of strings"),
        ("a dog", "captions is a single string: pass a list, captions=[...]"),
        (7, "captions is the number 7: expected a list of strings"),
        (
            {"1": "a dog"},
            "captions is a dict of length 1: expected a list of strings, "
            "one per row in the order of the images",
        ),
        ({"a dog"}, "captions is a set of length 1: expected a list of strings"),
        (iter(["a dog"]), "captions is a list_iterator: expected a list of strings, pass list(...) of it"),
    ],
)
def test_captions_that_are_no_list(captions: Any, message: str) -> None:
    images = [] if captions == [] else [GREY]
    assert complaint(captions, images) == message


def test_lengths_must_agree_and_a_image_is_not_repeated() -> None:
    assert complaint(list("abcd"), [GREY] * 3).startswith("len(captions)=4 but len(images)=3")
    assert "len(captions)=2 but len(images)=1" in complaint(list("ab"), [GREY])


@pytest.mark.parametrize("on_error", ["raise", "nan"])
@pytest.mark.parametrize(("captions", "images"), [(1, 2), (3, 4), (2, 5), (4, 3), (0, 1)])
def test_images_and_captions_left_over_are_both_refused(captions: int, images: int, on_error: str) -> None:
    expected = f"len(captions)={captions} but len(images)={images}: "
    assert expected in complaint(["a"] * captions, [GREY] * images, on_error=on_error)
    column = dataset(image=rows_of(*[encoded(photograph())] * images))["image"]
    assert expected in complaint(["a"] * captions, column, on_error=on_error)
    with pytest.raises(
        ValueError, match=r"len\(captions\)=\d but len\(images\)=\d: give each image one pool"
    ):
        check_pools([["a", "b"]] * captions, [GREY] * images, on_error=on_error)  # type: ignore[arg-type]


def test_unknown_options_are_refused() -> None:
    assert complaint(["a"], [GREY], on_error="skip") == 'on_error=\'skip\': expected "raise" or "nan"'
    assert complaint(["a"], [GREY], empty="ok") == 'empty=\'ok\': expected "error" or "score"'


# ---- references


def test_ragged_references_and_bare_strings() -> None:
    references = [["x"], "y", ("u", "v", "w"), np.array(["p", "q"])]
    samples = checked(list("abcd"), [GREY] * 4, references)
    assert samples.references == [["x"], ["y"], ["u", "v", "w"], ["p", "q"]]
    column = datasets.Dataset.from_dict({"r": [["x"], ["y", "z"]]})["r"]
    assert checked(list("ab"), [GREY] * 2, column).references == [["x"], ["y", "z"]]


def test_references_that_are_not_needed_are_not_looked_at() -> None:
    assert checked(["a"], [GREY], 5, needs_references=False).references is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "references[2] is None: every caption needs at least one reference"),
        ([], "references[2] is empty: every caption needs at least one reference"),
        ("", f"references[2] is empty: write the reference or {EMPTY_MEND}"),
        (5, "references[2] is the number 5: expected a list of strings or one string"),
        (["x", None], "references[2][1] is None: write the reference or leave it out"),
        (["x", 5], "references[2][1] is the number 5: expected a string"),
        (["x", ""], f"references[2][1] is empty: write the reference or leave it out or {EMPTY_MEND}"),
        (
            [" "],
            "references[2][0] is empty (only whitespace): "
            f"write the reference or leave it out or {EMPTY_MEND}",
        ),
    ],
)
def test_one_bad_reference(row: Any, message: str) -> None:
    assert complaint(list("abc"), [GREY] * 3, [["x"], "y", row]) == message


def test_missing_references() -> None:
    assert complaint(["a"], [GREY], needs_references=True) == (
        "references is missing: this metric compares each caption with its references, "
        'pass references=[["...", "..."], ...]'
    )


def test_references_of_another_length() -> None:
    start = "len(captions)=3 but len(references)=2: give one list of references per caption"
    assert complaint(list("abc"), [GREY] * 3, [["x"], ["y", "z"]]) == start
    assert complaint(list("abc"), [GREY] * 3, [["x"] * 3, ["y"] * 3]) == (
        f"{start}; these look transposed, pass list(zip(*references))"
    )


def test_empty_references_can_be_scored_but_not_none_at_all() -> None:
    assert checked(["a"], [GREY], [["", "x"]], empty="score").references == [["", "x"]]
    assert "references[0] is empty" in complaint(["a"], [GREY], [[]], empty="score")


# ---- images


def test_a_batch_counts_as_its_images() -> None:
    batch = np.stack([np.asarray(photograph(seed=i)) for i in range(2)])
    expected = [InputImage.of(image).key for image in batch]
    tensor = torch.tensor(batch)
    for images in (batch, tensor, tensor.permute(0, 3, 1, 2), batch / 255):
        assert [image.key for image in checked(["a", "b"], images).images] == expected
    assert len(checked(["a", "b"], batch[..., 0]).images) == 2


@pytest.mark.parametrize(
    "single",
    [
        "x.jpg",
        Path("x.jpg"),
        b"abc",
        {"bytes": b"", "path": None},
        Image.new("RGB", (5, 5)),
        GREY,
        np.zeros((5, 6, 3), "uint8"),
        torch.zeros(3, 5, 6),
    ],
)
def test_a_single_image_gets_the_mend(single: Any) -> None:
    with pytest.raises(TypeError) as caught:
        checked(["a"], single)
    assert str(caught.value) == "images is a single image: pass a list, images=[image]"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (None, "images is missing: pass a list of images"),
        (7, "images is the number 7: expected a list of images"),
        (iter([GREY]), "images is a list_iterator: expected a list of images, pass list(...) of it"),
        ([None], "images[0] is None: every caption needs an image"),
        ([["x.jpg"]], "images[0] is a list of length 1: expected a path (str or PathLike), bytes"),
        (["http://x/y.jpg"], "images[0]: 'http://x/y.jpg' is a URL, and images are never fetched"),
        (pd.DataFrame({"a": [1]}), "images is a DataFrame of length 1: expected a list of images"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "nan"])
def test_images_that_can_never_work(images: Any, message: str, on_error: str) -> None:
    assert complaint(["a"], images, on_error=on_error).startswith(message)


def test_an_arrow_array_of_images(tmp_path: Path, jpeg: bytes) -> None:
    (tmp_path / "x.jpg").write_bytes(jpeg)
    for array in (pa.array([jpeg, jpeg]), pa.array([str(tmp_path / "x.jpg")] * 2)):
        assert [image.key for image in checked(["a", "b"], array).images] == [InputImage.of(jpeg).key] * 2


def test_every_distinct_image_is_checked_and_its_places_are_named(tmp_path: Path, jpeg: bytes) -> None:
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.jpg"
    good.write_bytes(jpeg)
    bad.write_bytes(jpeg[:900])
    images = [good, bad, str(bad), GREY, bad, bad, bad, jpeg[:900]]
    assert complaint(["a"] * 8, images) == (
        "2 problems with the input:\n"
        f"  images[1], images[2], images[4] and 2 more: cannot decode '{bad}' (truncated)\n"
        "  images[7]: cannot decode the bytes object of length 900 (truncated)"
    )


def test_more_images_than_fit_in_one_window_are_all_checked() -> None:
    images = [Image.new("L", (3, 3 + i % 5), i % 251) for i in range(1100)]
    images[1060] = Image.new("L", (1, 1))
    assert complaint(["a"] * 1100, images).startswith("images[1060]: the PIL image (L, 1x1) is 1x1 pixels")


@pytest.mark.parametrize("processors", [None, 1, 2, 64])
@pytest.mark.parametrize("pools", [False, True])
def test_late_images_are_checked_by_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jpeg: bytes, processors: int | None, pools: bool
) -> None:
    """Broken ones in the second and the third thousand, each made another way, in the order of the input."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    images: list[Any] = [np.full((3, 3 + i // 200), i % 200, "uint8") for i in range(2200)]
    images[1024], images[1500], images[2199] = jpeg[:900], tmp_path / "no.jpg", np.full((3, 3), np.nan)
    check: Any = check_pools if pools else checked
    with pytest.raises(ImageError) as caught:
        check([["a"]] * 2200 if pools else ["a"] * 2200, images)
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "3 problems with the input:"
    assert [line.partition(":")[0] for line in lines[1:]] == ["images[1024]", "images[1500]", "images[2199]"]
    for line, reason in zip(lines[1:], ("truncated", "there is no file", "NaN"), strict=True):
        assert reason in line


def test_with_nan_a_broken_image_waits_for_its_row(tmp_path: Path, jpeg: bytes) -> None:
    nan = np.full((4, 6), np.nan)
    samples = checked(["a"] * 4, [jpeg, tmp_path / "no.jpg", jpeg[:900], nan], on_error="nan")
    samples.images[0].load()
    for row, message in ((1, "there is no file"), (2, "truncated"), (3, "NaN")):
        with pytest.raises(ImageError, match=rf"^images\[{row}\]: .*{message}"):
            samples.images[row].load()


def test_all_problems_come_at_once() -> None:
    message = complaint(["a", "", 5], [GREY, "no.jpg"], [["x"], [], None])
    starts = [
        "6 problems",
        "captions[1] is empty",
        "captions[2] is the number 5",
        "len(captions)=3 but len(images)=2",
        "references[1] is empty",
        "references[2] is None",
        "images[1]: there is no file 'no.jpg'",
    ]
    lines = message.split("\n  ")
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


# ---- columns of a dataset


def dataset(**columns: list[Any]) -> datasets.Dataset:
    features = {
        "image": datasets.Image(),
        "nested": {"image": datasets.Image()},
        "caption": datasets.Value("string"),
        "path": datasets.Value("string"),
    }
    return datasets.Dataset.from_dict(
        columns, features=datasets.Features({name: features[name] for name in columns})
    )


def rows_of(*images: bytes | None) -> list[Any]:
    return [None if data is None else {"bytes": data, "path": None} for data in images]


def test_an_image_column_is_read_as_stored_not_turned_upright() -> None:
    data = turned()
    table = dataset(image=rows_of(data), nested=[{"image": {"bytes": data, "path": "x.jpg"}}])
    assert table[0]["image"].size == (64, 96), "datasets applies the EXIF orientation"
    for column in (
        table["image"],
        table["nested"]["image"],
        table.with_format("torch")["image"],
        table.with_format("numpy")["image"],
        table.cast_column("image", datasets.Image(decode=False))["image"],
    ):
        image = checked(["a"], column).images[0]
        assert image.key == InputImage.of(data).key
        assert image.load().size == (96, 64)


def test_a_selected_and_shuffled_column_keeps_its_order() -> None:
    files = [encoded(photograph(seed=i)) for i in range(5)]
    table = dataset(image=rows_of(*files)).select([4, 0, 3, 0])
    keys = [image.key for image in checked(list("abcd"), table["image"]).images]
    assert keys == [InputImage.of(files[i]).key for i in (4, 0, 3, 0)]


def test_a_column_on_disk(tmp_path: Path, jpeg: bytes) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(jpeg)
    dataset(image=[str(path)], path=[str(path)], caption=["a"]).save_to_disk(tmp_path / "saved")
    table = datasets.load_from_disk(tmp_path / "saved")
    for name in ("image", "path"):
        samples = pickle.loads(pickle.dumps(checked(table["caption"], table[name])))
        assert samples.images[0].key == InputImage.of(jpeg).key


def test_broken_and_missing_rows_of_a_column(jpeg: bytes) -> None:
    column = dataset(image=rows_of(jpeg, None, jpeg[:900]))["image"]
    assert complaint(list("abc"), column) == (
        "2 problems with the input:\n"
        "  images[1] is None: every caption needs an image\n"
        "  images[2]: cannot decode the bytes object of length 900 (truncated)"
    )
    samples = checked(list("abc"), column, on_error="nan")
    with pytest.raises(ImageError, match=r"^images\[1\] is None"):
        samples.images[1].load()


def test_a_transform_of_the_users_own_is_respected(jpeg: bytes) -> None:
    table = dataset(image=rows_of(jpeg)).with_transform(
        lambda batch: {"image": [GREY for _ in batch["image"]]}
    )
    assert checked(["a"], table["image"]).images[0].key == InputImage.of(GREY).key


def test_other_parts_of_a_dataset_are_refused(jpeg: bytes) -> None:
    table = dataset(image=rows_of(jpeg), caption=["a"])
    assert complaint(["a"], table) == (
        "images is a Dataset of length 1: expected a list of images, "
        'pass one of its columns, as in dataset["image"]'
    )
    assert complaint(["a"], table.to_iterable_dataset()["image"]).endswith(
        "a streamed dataset has no length, pass list(...) of it"
    )
    assert complaint(table, [jpeg]).startswith("captions is a Dataset of length 1")


def test_a_sequence_that_loads_on_demand_is_never_held_whole(jpeg: bytes) -> None:
    asked: list[int] = []

    class Folder(Sequence[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, row: Any) -> Any:
            asked.append(row)
            if row == 2:
                raise OSError("disk on fire")
            return Image.open(io.BytesIO(jpeg))

    samples = checked(list("abc"), Folder(), on_error="nan")
    assert asked == [0]
    assert samples.images[1].load().size == (96, 64)
    with pytest.raises(ImageError) as caught:
        samples.images[2].load()
    assert str(caught.value) == "images[2] cannot be fetched (OSError: disk on fire)"


@pytest.mark.parametrize(
    ("first", "on_error", "message"),
    [
        (7, "nan", "images[0] is the number 7: expected a path"),
        (7, "raise", "images[0] is the number 7: expected a path"),
        (None, "raise", "images[0] is None: every caption needs an image"),
    ],
)
def test_the_first_row_tells_whether_a_sequence_holds_images(first: Any, on_error: str, message: str) -> None:
    assert complaint(["a", "b"], UserList([first, GREY]), on_error=on_error).startswith(message)


def test_a_first_row_without_a_image_is_its_own_matter() -> None:
    samples = checked(["a", "b"], UserList([None, GREY]), on_error="nan")
    assert samples.images[1].load().size == (6, 4)
    with pytest.raises(ImageError, match=r"^images\[0\] is None"):
        samples.images[0].load()


# ---- samples


def test_windows_keep_their_place() -> None:
    samples = checked(list("abcde"), [GREY] * 5, [[text * 2] for text in "abcde"])
    assert len(samples) == 5
    window = samples[1:4]
    chosen = window.select([2, 0])
    assert list(chosen.indices) == [3, 1]
    assert chosen.captions == ["d", "b"]
    assert chosen.references == [["dd"], ["bb"]]
    assert [image.where for image in chosen.images] == ["images[3]", "images[1]"]
    last = samples[-1:]
    assert (list(last.indices), last.captions, last.references) == ([4], ["e"], [["ee"]])


def test_videos_are_named_as_such() -> None:
    with pytest.raises(ValueError, match=r"(?s)videos\[0\].*len\(captions\)=2 but len\(videos\)=1"):
        check_samples(["a", "b"], [[]], needs_references=False, media=("video",))
    with pytest.raises(ValueError, match="videos is missing"):
        check_samples(["a"], None, needs_references=False, media=("video",))


def test_texts_alone_are_grouped_by_their_references() -> None:
    references = [["a dog", "a cat"], ["a dog a cat"], ["a dog", "a cat"]]
    samples = check_samples(["a", "b", "c"], None, references, needs_references=True, media=())
    keys = [image.key for image in samples.images]
    assert keys[0] == keys[2] != keys[1]
    with pytest.raises(ValueError, match=r"references\[0\] is not opened by a metric on texts alone"):
        samples.images[0].load()
