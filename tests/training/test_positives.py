"""Generated positives: what is written comes back; damage, other settings and other files are refused."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from capeval_core.errors import FileError
from capeval_core.training.positives import (
    _LARGE,
    CAPTION,
    IMAGE,
    MOST_ROWS,
    SCHEMA,
    SETTINGS,
    Positive,
    read_positives,
    shard_bytes,
)
from tests.training.positive_writing import write_positives

MADE_BY = {"captioner": "blip@1f3c", "generator": "diffusion@9a", "seed": 3}


def png(grey: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (4, 4), grey).save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "positives"
    first = Positive(CAPTION, "1", caption="a dog"), Positive(IMAGE, "1", "a hound", image=png(10))
    second = Positive(IMAGE, "2", "a cat", image=png(20)), Positive(CAPTION, "2", caption="a kitten")
    write_positives(folder, second, MADE_BY, number=100_000)  # behind 00009, whatever letters come first
    write_positives(folder, first, MADE_BY, number=9)
    return folder


def damage(path: Path, content: bytes) -> None:
    """Change a byte inside of a known content."""
    data = bytearray(path.read_bytes())
    data[data.index(content) + len(content) // 2] ^= 255
    path.write_bytes(data)


def test_positives_come_back_in_order_with_their_sources(folder: Path) -> None:
    positives = read_positives(folder)
    assert positives.captions == {"1": ["a dog"], "2": ["a kitten"]}
    assert positives.sources == [("1", "a hound"), ("2", "a cat")]
    assert [image.load().getpixel((0, 0)) for image in positives.images()] == [10, 20]
    assert positives.settings == {"captions": MADE_BY, "images": MADE_BY}


def test_a_damaged_shard_is_refused_when_its_images_are_read(folder: Path) -> None:
    damage(folder / "positives-images-100000.parquet", png(20))
    positives = read_positives(folder)  # the texts are whole
    with pytest.raises(FileError, match=r"100000.parquet: is damaged .* run `capeval augment` again"):
        list(positives.images())


def test_a_folder_without_positives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no positives"):
        read_positives(tmp_path)
    with pytest.raises(FileError, match="does not exist: pass a folder that `capeval augment` made"):
        read_positives(tmp_path / "missing")


@pytest.mark.parametrize("name", [SETTINGS, "positives-captions-00000.parquet"])
def test_what_is_no_regular_file_is_not_opened(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)  # opening it would wait for ever
    with pytest.raises(FileError, match=f"{name}: .*no regular file"):
        read_positives(folder)


def test_settings_may_be_nested_as_deep_as_they_like(folder: Path) -> None:
    (folder / SETTINGS).write_text("[" * 100_000)
    with pytest.raises(FileError, match=r"settings\.json: cannot be read"):
        read_positives(folder)


def test_rows_of_no_use_are_named(folder: Path) -> None:
    row = {"kind": "caption", "id": "3", "source_caption": None, "caption": None, "image": None}
    for caption in (None, " "):
        table = pa.Table.from_pylist([{**row, "caption": caption}], SCHEMA)
        pq.write_table(table, folder / "positives-captions-00002.parquet")
        with pytest.raises(FileError, match=r"00002.parquet: row 0 is 'caption' without its caption"):
            read_positives(folder)
    pq.write_table(
        pa.Table.from_pylist([{**row, "kind": "video"}], SCHEMA), folder / "positives-captions-00002.parquet"
    )
    with pytest.raises(FileError, match="row 0 is of kind 'video'"):
        read_positives(folder)


def test_columns_of_other_types_and_too_many_rows_are_refused_unread(folder: Path) -> None:
    path = folder / "positives-captions-00002.parquet"
    row = {"kind": "caption", "id": "3", "source_caption": None, "caption": "a dog", "image": None}
    table = pa.Table.from_pylist([row], SCHEMA)
    wrong = table.set_column(1, pa.field("id", pa.list_(pa.string())), [[["3"]]])
    pq.write_table(wrong, path)
    with pytest.raises(FileError, match=r"00002.parquet: is .*its column id is of type list.*, not string"):
        read_positives(folder)
    many = pa.table({name: pa.repeat(table[name][0], MOST_ROWS + 1) for name in SCHEMA.names})
    pq.write_table(many, path)
    assert path.stat().st_size < 100_000
    with pytest.raises(FileError, match=r"00002.parquet: is .*it has 262,145 rows, and a shard at most"):
        read_positives(folder)
    pq.write_table(table.cast(pa.schema([f.with_type(_LARGE[f.type]) for f in SCHEMA])), path)
    assert read_positives(folder).captions["3"] == ["a dog"]


@pytest.mark.parametrize("carried", [True, False])
def test_images_that_are_made_again_have_another_fingerprint(folder: Path, carried: bool) -> None:
    def fingerprint(grey: int) -> str:
        image = Positive(IMAGE, "1", "a hound", image=png(grey))
        if carried:
            write_positives(folder, [image], MADE_BY, number=9)
        else:
            (folder / "positives-images-00009.parquet").write_bytes(shard_bytes([image]))
        return read_positives(folder).fingerprint

    assert fingerprint(10) == fingerprint(10) != fingerprint(11)


def test_the_fingerprint_is_that_of_settings_and_sources(folder: Path) -> None:
    before = read_positives(folder).fingerprint
    assert read_positives(folder).fingerprint == before
    (folder / SETTINGS).write_text(json.dumps({**MADE_BY, "seed": 4}))
    assert read_positives(folder).fingerprint != before
