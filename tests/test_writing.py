"""Files and folders of weights are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.seams import network
from tests.support.seeded import encoder
from tests.support.small_disk import largest_file


def test_weights_that_cannot_be_saved_leave_the_old_ones(tmp_path: Path) -> None:
    old, new, other = tmp_path / "old", tmp_path / "new", encoder("pacs-resnet-tiny")
    encoder().save_pretrained(old)
    before = {file.name: file.read_bytes() for file in old.iterdir()}
    assert before.keys() == {"config.json", "model.safetensors", "README.md"}
    for folder in (old, new):
        with largest_file(4_000), pytest.raises(Exception, match=r"(?i)too large"):
            other.save_pretrained(folder)
    assert {file.name: file.read_bytes() for file in old.iterdir()} == before
    assert not new.exists()


def test_weights_saved_again_replace_the_old_ones_but_not_a_card(tmp_path: Path) -> None:
    encoder().save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("my weights")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "config.json").chmod(0o640)
    encoder("pacs-resnet-tiny").save_pretrained(tmp_path)
    reopened = network("clip", tmp_path)
    assert reopened.fingerprint == network("clip", tmp_path).fingerprint != encoder().fingerprint
    assert (tmp_path / "README.md").read_text() == "my weights"
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o640
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md", "notes.txt"}
