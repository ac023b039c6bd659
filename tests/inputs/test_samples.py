"""Captions, images and references as they are handed in, of any make, checked before weights are opened."""

from __future__ import annotations

import ast
import io
import pickle
from collections import UserList
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image

from capeval_core.authoring import windows
from capeval_core.errors import InputError, ProblemsError
from tests.inputs.photographs import encoded, photograph, turned
from tests.support.seams import check, visual

image = partial(visual, "image")

GREY = np.full((4, 6), 128, "uint8")
FOUND = {"boxes": [[0, 0, 9, 9], [2, 3, 8, 12]], "features": np.ones((2, 5), "float32")}


def problems(captions: Any, images: Any, references: Any = None, **options: Any) -> list[tuple[str, Any]]:
    """Argument and index of everything that is wrong."""
    with pytest.raises(ProblemsError) as caught:
        check(captions, images, references, **options)
    return [_place(problem.where) for problem in caught.value.problems]


def _place(where: str) -> tuple[str, Any]:
    """`captions[3][1]` as ("captions", (3, 1))."""
    argument, *steps = where.replace("]", "").split("[")
    path = tuple(map(ast.literal_eval, steps))
    return argument, path if len(path) > 1 else path[0] if path else None


# ---- captions and references


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
    captions = check(make([" a dog ", "café"]), [GREY, GREY]).captions
    assert captions == [" a dog ", "café"]
    assert all(type(caption) is str for caption in captions)


def test_empty_texts_can_be_scored_but_none_cannot() -> None:
    assert check(["", " "], [GREY] * 2, empty="score").captions == ["", " "]
    assert check(["a"], [GREY], [["", "x"]], empty="score").references == [["", "x"]]
    assert problems([None], [GREY], empty="score") == [("captions", 0)]
    assert problems(["a"], [GREY], [[]], empty="score") == [("references", 0)]


def test_ragged_references_and_bare_strings() -> None:
    references = [["x"], "y", ("u", "v", "w"), np.array(["p", "q"])]
    samples = check(list("abcd"), [GREY] * 4, references)
    assert samples.references == [["x"], ["y"], ["u", "v", "w"], ["p", "q"]]
    column = datasets.Dataset.from_dict({"r": [["x"], ["y", "z"]]})["r"]
    assert check(list("ab"), [GREY] * 2, column).references == [["x"], ["y", "z"]]
    assert check(["a"], [GREY], 5, needs_references=False).references is None


def test_captions_that_were_lists_are_scored_with_one_warning() -> None:
    texts = ["['a dog', 'a cat']", '["Stop"] on a sign', "['a dog', nan]"]
    for captions, images, pools in ((texts, [GREY] * 3, False), ([texts], [GREY], True)):
        with pytest.warns(UserWarning, match="2 of 3 captions are lists written as text") as caught:
            assert check(captions, images, pools=pools).captions == texts
        assert len(caught) == 1
    given = pd.Series([["a"], "['a dog', 'a cat']", "[sic] a dog", "['a dog' 'a cat']"])
    assert problems(["x"] * 4, [GREY] * 4, given) == [("references", 1), ("references", 3)]


def test_texts_alone_are_grouped_by_their_references() -> None:
    references = [["a dog", "a cat"], ["a dog a cat"], ["a dog", "a cat"]]
    samples = check(["a", "b", "c"], None, references, media=())
    keys = [visual.key for visual in samples.images]
    assert keys[0] == keys[2] != keys[1]


def test_windows_keep_their_place() -> None:
    samples = check(list("abcde"), [GREY] * 5, [[text * 2] for text in "abcde"])
    chosen = samples[1:4].select([2, 0])
    assert list(chosen.indices) == [3, 1]
    assert (chosen.captions, chosen.references) == (["d", "b"], [["dd"], ["bb"]])
    assert [visual.where for visual in chosen.images] == ["images[3]", "images[1]"]
    last = samples[-1:]
    assert (list(last.indices), last.captions, last.references) == ([4], ["e"], [["ee"]])
    for texts in (1, 2, 4, 5, 10, 99):
        parts = list(windows(samples, texts))  # a caption and its reference are two texts
        assert [index for part in parts for index in part.indices] == [0, 1, 2, 3, 4]
        assert {len(part) for part in parts[:-1]} <= {max(1, texts // 2)}


# ---- everything that is wrong, at once


def problems_by_argument(
    captions: Any, images: Any, references: Any = None, **options: Any
) -> dict[str, str]:
    """What is wrong, with the way out, by its place."""
    with pytest.raises(ProblemsError) as caught:
        check(captions, images, references, **options)
    return {problem.where: f"{problem.text}: {problem.fix}" for problem in caught.value.problems}


def test_each_wrong_text_is_named_by_its_place_and_kind() -> None:
    captions = ["a dog", "", " \n", None, 5, b"a dog", "\ud800 x", ["a"]]
    messages = problems_by_argument(captions, [GREY] * 8)
    assert list(messages) == [f"captions[{i}]" for i in range(1, 8)]
    for place, words in (
        (1, "is empty: write a caption or pass empty='score'"),
        (2, "is empty (only whitespace): "),
        (3, "is missing: write a caption"),
        (4, "the number 5"),
        (5, "decode it first"),
        (6, "lone surrogate"),
        (7, "list"),
    ):
        assert words in messages[f"captions[{place}]"]
    assert "decode" not in messages["captions[4]"] and "whitespace" not in messages["captions[1]"]
    references = [["a", " "], [], None, 5, [["b"]], "['a', 'b']", ["x", None, "y", ""]]
    messages = problems_by_argument(["a dog"] * 7, [GREY] * 7, references)
    assert list(messages) == [
        "references[0][1]", "references[1]", "references[2]", "references[3]", "references[4][0]",
        "references[5]", "references[6][1]", "references[6][3]",
    ]  # fmt: skip
    assert "write one reference at least" in messages["references[1]"]
    assert "a list written as text" in messages["references[5]"]


def test_lengths_that_differ_are_stated_with_the_way_out() -> None:
    message = problems_by_argument(["a"] * 3, [GREY] * 2)[""]
    assert "len(captions)=3 but len(images)=2" in message and "one image per caption" in message
    message = problems_by_argument(["a"] * 3, [GREY] * 3, [["x"] * 3] * 2)[""]
    assert "len(captions)=3 but len(references)=2" in message and "list(zip(*references))" in message
    assert "zip" not in problems_by_argument(["a"] * 3, [GREY] * 3, [["x"] * 3, ["y"] * 2])[""]
    both = problems_by_argument(["a"] * 3 + [""], [GREY] * 2, [["x"]])
    assert list(both) == ["captions[3]", ""]
    assert "is empty" in problems_by_argument([], [])["captions"]


@pytest.mark.parametrize(
    ("shape", "is_single"),
    [
        ((4, 6), True), ((4, 6, 3), True), ((4, 6, 4), True), ((4, 6, 1), True), ((3, 4, 6), True),
        ((1, 4, 6), True), ((2, 4, 6), False), ((4, 4, 6), False), ((2, 4, 6, 3), False), ((), True),
    ],
)  # fmt: skip
def test_an_array_is_one_image_or_many_by_its_axes(shape: tuple[int, ...], is_single: bool) -> None:
    images = np.zeros(shape, "uint8")
    if not is_single:
        assert len(check(["a"] * shape[0], images).images) == shape[0]
        return
    messages = problems_by_argument(["a"], images)
    assert list(messages) == ["images"]
    if shape and shape[0] not in (1, 3):
        assert "is a single image: pass a list, images=[image]" in messages["images"]


def test_pools_become_rows_that_know_their_image_and_place() -> None:
    pools = [["a", "b", "c"], ["d", "e"], ["f"]]
    samples = check(pools, [GREY, 255 - GREY, GREY], pools=True)
    assert samples.captions == list("abcdef") and list(samples.indices) == [0, 1, 2, 3, 4, 5]
    assert (samples.candidates, samples.places) == ([0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 1, 2])
    assert [image.where for image in samples.images] == ["images[0]"] * 3 + ["images[1]"] * 2 + ["images[2]"]
    assert samples.starts == [0, 3, 5]
    part = samples[1:6]
    assert (part.captions, part.starts) == (list("bcdef"), [0, 2, 4])
    assert samples.select([4, 5, 0]).starts == [0, 1, 2]
    assert samples.select([1, 2]).starts == [0]
    messages = problems_by_argument([["a", ""], [], "b", None], [GREY] * 4, pools=True)
    assert list(messages) == ["captions[0][1]", "captions[1]", "captions[2]", "captions[3]"]
    assert "a single string" in messages["captions[2]"]


# ---- images


def test_a_batch_counts_as_its_images() -> None:
    batch = np.stack([np.asarray(photograph(seed=i)) for i in range(2)])
    expected = [image(one).key for one in batch]
    tensor = torch.tensor(batch)
    for images in (batch, tensor, tensor.permute(0, 3, 1, 2), batch / 255, UserList(map(image, batch))):
        assert [visual.key for visual in check(["a", "b"], images).images] == expected
    assert len(check(["a", "b"], batch[..., 0]).images) == 2
    masked = np.ma.masked_array(batch, mask=batch == batch[0, 0, 0, 0])
    for images in (masked, tensor.to("meta"), tensor.to_sparse()):
        assert problems(["a", "b"], images, on_error="nan") == [("images", 0), ("images", 1)]


def test_an_arrow_array_of_images(tmp_path: Path, jpeg: bytes) -> None:
    (tmp_path / "x.jpg").write_bytes(jpeg)
    for array in (pa.array([jpeg, jpeg]), pa.array([str(tmp_path / "x.jpg")] * 2)):
        assert [visual.key for visual in check(["a", "b"], array).images] == [image(jpeg).key] * 2


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
        assert check(["a"], column).images[0].key == image(data).key


def test_columns_keep_their_order_their_file_and_their_transform(tmp_path: Path) -> None:
    files = [encoded(photograph(seed=i)) for i in range(5)]
    table = dataset(image=rows_of(*files)).select([4, 0, 3, 0])
    keys = [visual.key for visual in check(list("abcd"), table["image"]).images]
    assert keys == [image(files[i]).key for i in (4, 0, 3, 0)]
    path = tmp_path / "x.jpg"
    path.write_bytes(files[1])
    dataset(image=[str(path)], path=[str(path)], caption=["a"]).save_to_disk(tmp_path / "saved")
    saved = datasets.load_from_disk(tmp_path / "saved")
    for name in ("image", "path"):
        samples = pickle.loads(pickle.dumps(check(saved["caption"], saved[name])))
        assert samples.images[0].key == image(files[1]).key
    grey = dataset(image=rows_of(*files)).with_transform(
        lambda batch: {"image": [GREY] * len(batch["image"])}
    )
    assert check(["a"] * 5, grey["image"]).images[0].key == image(GREY).key


def test_broken_and_missing_rows_of_a_column(jpeg: bytes) -> None:
    table = dataset(image=rows_of(jpeg, None, jpeg[:900]), caption=["a", "b", "c"])
    assert problems(list("abc"), table["image"]) == [("images", 1), ("images", 2)]
    samples = check(list("abc"), table["image"], on_error="nan")
    with pytest.raises(InputError, match=r"^images\[1\]"):
        samples.images[1].load()
    assert problems(["a"], table) == [("images", None)]
    assert problems(["a"], table.to_iterable_dataset()["image"]) == [("images", None)]
    assert problems(table, [jpeg]) == [("captions", None)]


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

    samples = check(list("abc"), Folder(), on_error="nan")
    assert asked == [0]
    assert samples.images[1].load().size == (96, 64)
    with pytest.raises(InputError, match=r"^images\[2\].*disk on fire"):
        samples.images[2].load()


# ---- other media


def arrays(path: Path) -> Path:
    np.savez(path, **{name: np.asarray(value) for name, value in FOUND.items()})
    return path


def test_a_visual_that_repeats_is_read_once(tmp_path: Path, jpeg: bytes) -> None:
    """Its file may go once it is known: rows that repeat it share its key."""
    path = arrays(tmp_path / "a.npz")
    visuals = check(["a"] * 5, [path] * 5, media=["boxes"]).images
    path.unlink()
    assert len({visual.key for visual in visuals}) == 1
