"""`capeval score` on files that pandas wrote, that cannot be written down, or that are no images."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.conftest import CAPTIONS, REFERENCES, Ran
from tests.inputs.photographs import encoded, photograph


def test_references_that_pandas_wrote_are_lists(scored: Callable[..., dict[str, Any]], files: Path) -> None:
    expected = scored("refpacs", "--references", files / "references.json")
    table = pd.DataFrame({"image_id": [*REFERENCES], "references": [*REFERENCES.values()]})
    table.to_csv(files / "references.csv")
    assert scored("refpacs", "--references", files / "references.csv")["scores"] == expected["scores"]


def test_names_that_cannot_be_written_are_refused_before_any_work(
    score: Callable[..., Ran], files: Path
) -> None:
    (files / "captions.json").write_text('{"dog.1": "a dog", "caf\\udce9": "a cat"}')
    (files / "out.json").write_text("kept")
    ran = score("pacs", "--json", files / "out.json", "--weights", files / "nowhere")
    assert ran.status == 2 and "which is not UTF-8" in ran.err and "nowhere" not in ran.err
    assert (files / "out.json").read_text() == "kept"


def test_an_image_that_is_no_photograph_is_refused_by_its_format(
    score: Callable[..., Ran], files: Path
) -> None:
    (files / "images" / "dog.1.jpg").write_bytes(encoded(photograph(), "EPS"))
    ran = score("pacs")
    assert ran.status == 2 and "image of 'dog.1'" in ran.err and "in the format EPS" in ran.err


def test_captions_from_standard_input_and_references_of_a_split(
    scored: Callable[..., dict[str, Any]], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scored("refpacs", "--references", files / "references.json")
    images = [
        {"filename": f"{image_id}.jpg", "split": "test", "sentences": [{"raw": text} for text in texts]}
        for image_id, texts in REFERENCES.items()
    ]
    images.append({"filename": "other.jpg", "split": "val", "sentences": [{"raw": "a car"}]})
    (files / "karpathy.json").write_text(json.dumps({"images": images}))
    data = "".join(f"{image_id}\t{text}\n" for image_id, texts in CAPTIONS.items() for text in texts)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"img\twords\n" + data.encode())))
    columns = ["--id-column", "img", "--caption-column", "words"]
    given = ["--candidates", "-", "--references", files / "karpathy.json", "--split", "test", *columns]
    assert scored("refpacs", *given)["scores"] == expected["scores"]


def test_equal_images_are_said_to_be_one(score: Callable[..., Ran], files: Path) -> None:
    shutil.copy(files / "images" / "dog.1.jpg", files / "images" / "again.jpg")
    shutil.copy(files / "images" / "dog.1.jpg", files / "images" / "third.jpg")
    captions = {"dog.1": ["a", "b"], "again": "c", "dog.2": "d"}
    (files / "captions.json").write_text(json.dumps(captions))
    ran = score("pacs")
    assert (
        "warning: 1 of 3 images is equal to another, e.g. 'again' to 'dog.1': equal ones count as" in ran.err
    )
    (files / "captions.json").write_text(json.dumps(captions | {"third": "e"}))
    assert "warning: 2 of 4 images are equal to others" in score("pacs").err
    (files / "captions.json").write_text(json.dumps({"dog.1": ["a", "b"], "dog.2": "d"}))
    assert "equal" not in score("pacs").err


@pytest.mark.parametrize(
    "command",
    [
        ["score", "cider", "--references", "c.json", "--candidates"],
        ["rerank", "--images", "images", "--out", "best.csv", "--candidates"],
        ["augment", "captions", "--images", "images", "--out", "new", "--captions"],
        ["train", "pacs", "--images", "images", "--start", "tiny", "--out", "new", "--captions"],
    ],
)
def test_every_command_has_columns_and_splits(
    command: list[str], capeval: Callable[..., Ran], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    rows = [{"photo": "42", "words": text, "split": split} for text in "ab" for split in ("test", "val")]
    Path("c.json").write_text(json.dumps(rows))
    assert "but no image_id or" in (ran := capeval(*command, "c.json")).err and ran.status == 2
    assert "name them with --id-column photo and --" in ran.err
    columns = ["--id-column", "photo", "--caption-column", "words"]
    assert "holds the splits 'test' (2), 'val' (2): choose with --split test" in (
        capeval(*command, "c.json", *columns).err
    )
    message = "holds no captions of split 'tset', only of 'test' (2), 'val' (2): did you mean 'test'?"
    assert message in capeval(*command, "c.json", *columns, "--split", "tset").err
