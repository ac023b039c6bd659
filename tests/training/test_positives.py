"""Generated positives: what is written comes back; damage, other settings and other files are refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from capeval_core.errors import FileError
from capeval_core.training.positives import (
    CAPTION,
    IMAGE,
    SCHEMA,
    SETTINGS,
    Positive,
    PositiveWriter,
    Source,
    read_positives,
)

MADE_BY = {"captioner": "blip@1f3c", "generator": "diffusion@9a", "seed": 3}


def png(grey: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (4, 4), grey).save(content, "PNG")
    return content.getvalue()


def write(folder: Path, *positives: Positive, settings: dict[str, Any] = MADE_BY) -> None:
    with PositiveWriter(folder, settings) as writer:
        for positive in positives:
            writer.add(positive)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "positives"
    write(folder, Positive(CAPTION, "1", caption="a dog"), Positive(IMAGE, "1", "a hound", image=png(10)))
    write(folder, Positive(IMAGE, "2", "a cat", image=png(20)), Positive(CAPTION, "2", caption="a kitten"))
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
    assert positives.settings == MADE_BY


def test_a_second_run_continues_the_numbers_and_knows_what_is_there(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "positives-00000.parquet",
        "positives-00001.parquet",
        SETTINGS,
    ]
    writer = PositiveWriter(folder, MADE_BY)
    assert writer.counts == {
        Source(CAPTION, "1"): 1,
        Source(CAPTION, "2"): 1,
        Source(IMAGE, "1", "a hound"): 1,
        Source(IMAGE, "2", "a cat"): 1,
    }


def test_what_was_added_before_an_error_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), PositiveWriter(tmp_path / "out", MADE_BY) as writer:
        writer.add(Positive(CAPTION, "1", caption="a dog"))
        raise ZeroDivisionError
    assert read_positives(tmp_path / "out").captions == {"1": ["a dog"]}


def test_a_damaged_shard_is_refused_by_a_reader_and_made_again_by_a_writer(folder: Path) -> None:
    damage(folder / "positives-00001.parquet", png(20))
    positives = read_positives(folder)  # the texts are whole
    with pytest.raises(
        FileError, match=r"positives-00001.parquet: is damaged .* run `capeval augment` again"
    ):
        list(positives.images())
    with pytest.warns(UserWarning, match="positives-00001.*generated again"):
        writer = PositiveWriter(folder, MADE_BY)
    assert Source(IMAGE, "2", "a cat") not in writer.counts and Source(IMAGE, "1", "a hound") in writer.counts
    writer.add(Positive(IMAGE, "2", "a cat", image=png(20)))
    writer.flush()
    assert read_positives(folder).sources == [("1", "a hound"), ("2", "a cat")]


def test_other_settings_are_refused_and_named(folder: Path) -> None:
    with pytest.raises(FileError, match=r"other settings \(seed: 3 there, 4 now\)"):
        PositiveWriter(folder, {**MADE_BY, "seed": 4})


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(FileError, match=r"holds more than positives \(thesis.tex\)"):
        PositiveWriter(tmp_path, MADE_BY)
    with pytest.raises(FileError, match="holds no positives"):
        read_positives(tmp_path)
    with pytest.raises(FileError, match="does not exist: pass a folder that `capeval augment` made"):
        read_positives(tmp_path / "missing")


def test_rows_of_no_use_are_named(folder: Path) -> None:
    row = {"kind": "caption", "id": "3", "source_caption": None, "caption": None, "image": None}
    pq.write_table(pa.Table.from_pylist([row], SCHEMA), folder / "positives-00002.parquet")
    with pytest.raises(FileError, match=r"00002.parquet: row 0 is 'caption' without its caption"):
        read_positives(folder)
    pq.write_table(
        pa.Table.from_pylist([{**row, "kind": "video"}], SCHEMA), folder / "positives-00002.parquet"
    )
    with pytest.raises(FileError, match="row 0 is of kind 'video'"):
        read_positives(folder)


def test_the_fingerprint_is_that_of_settings_and_sources(folder: Path) -> None:
    before = read_positives(folder).fingerprint
    assert read_positives(folder).fingerprint == before
    (folder / SETTINGS).write_text(json.dumps({**MADE_BY, "seed": 4}))
    assert read_positives(folder).fingerprint != before
