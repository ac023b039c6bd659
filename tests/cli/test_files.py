"""`capeval score` on files that pandas wrote, that cannot be written down, or that are no images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from tests.cli.conftest import REFERENCES, Ran
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
