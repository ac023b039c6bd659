"""Folders of weights: what a saved one gives back, and what is not as it was saved."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import CLIPConfig, CLIPModel

import capeval_core
from capeval_core.cli import main
from tests.support.seams import LIMITS, network


def loaded(weights: str | Path) -> Any:
    """As a metric does it: checksum, strict tensors, canary."""
    return network("clip", weights)


@pytest.fixture
def folder(seeded_weights: Path, tmp_path: Path) -> Path:
    """A copy of the seeded weights, to be damaged."""
    return Path(shutil.copytree(seeded_weights, tmp_path / "weights"))


def change_in_place(file: Path) -> None:
    """Another byte, and the old size and time."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-1000, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-1000, os.SEEK_END)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("settled", [0.0, 3600.0])
def test_a_change_is_noticed_although_size_and_time_are_put_back(
    settled: float, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEVAL_CACHE", str(tmp_path / "memory"))
    monkeypatch.setattr(LIMITS, "settled_seconds", settled)  # as if so much had passed
    tensors = folder / "model.safetensors"
    os.utime(tensors, (time.time() - 3600,) * 2)
    loaded(folder)
    copy = Path(shutil.copy2(tensors, folder / "copy"))
    time.sleep(0.05)  # ticks of the clock
    change_in_place(tensors)
    with pytest.raises(ValueError, match="sha256"):
        loaded(folder)
    change_in_place(copy)
    copy.replace(tensors)  # another file in its place
    with pytest.raises(ValueError, match="sha256"):
        loaded(folder)


def test_a_card_of_ones_own_stays_where_weights_are_saved_again(folder: Path) -> None:
    (folder / "README.md").write_text("# Mine")
    loaded(folder).save_pretrained(folder)
    assert (folder / "README.md").read_text() == "# Mine" and loaded(folder)


def test_tensors_do_not_lie_where_the_file_puts_them(seeded_weights: Path) -> None:
    """A product of the same numbers has other last bits where a factor begins elsewhere."""
    model = loaded(seeded_weights).model
    assert {tensor.data_ptr() % 64 for tensor in model.state_dict().values()} == {0}


def test_a_clip_of_transformers_names_the_command_that_converts_it(
    tmp_path: Path, images: list[Path]
) -> None:
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**tower, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=tower, vision_config=vision, projection_dim=8))
    folder = tmp_path / "clip-vit-base-patch32"
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="in transformers' format") as caught:
        capeval_core.load("clips", weights=str(folder))
    advice = re.search("`capeval (.*)`", str(caught.value))
    assert advice is not None
    converted = tmp_path / "converted"
    command = shlex.split(advice[1].replace("FOLDER", shlex.quote(str(converted))))
    assert main(command) == 0
    assert 0 <= capeval_core.load("clips", weights=str(converted)).score(["a dog"], images[:1]).mean <= 2.5
