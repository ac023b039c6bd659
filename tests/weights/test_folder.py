"""Folders of weights: what a saved one gives back, and what is not as it was saved."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.seams import LIMITS, image, network
from tests.support.seeded import encoder, write_config

Config = dict[str, Any]


def loaded(weights: str | Path) -> Any:
    """As a metric does it: checksum, strict tensors, canary."""
    return network("clip", weights)


@pytest.fixture
def folder(seeded_weights: Path, tmp_path: Path) -> Path:
    """A copy of the seeded weights, to be damaged."""
    return Path(shutil.copytree(seeded_weights, tmp_path / "weights"))


def edit(folder: Path, change: Callable[[Config], Any], file: str = "config.json") -> None:
    config = json.loads((folder / file).read_text())
    change(config)
    write_config(folder, config, file)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors; no checksum is left of them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    edit(folder, lambda config: config["checksum"].pop("model.safetensors", None))


def test_float16_and_bfloat16_tensors_are_read(folder: Path) -> None:
    def narrow(tensors: dict[str, Any]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].half()
        tensors["ln_final.bias"] = tensors["ln_final.bias"].bfloat16()

    rewrite(folder, narrow)
    edit(folder, lambda config: config.pop("canary"))
    narrowed = loaded(folder)
    wide = encoder().encode_texts(["a dog"]).features
    assert narrowed.encode_texts(["a dog"]).features == pytest.approx(wide, abs=0.02)
    narrowed.save_pretrained(folder.parent / "again")
    kinds = {str(t.dtype) for t in load_file(folder.parent / "again" / "model.safetensors").values()}
    assert kinds == {"torch.float16", "torch.bfloat16"}
    with pytest.raises(ValueError):
        encoder(dtype="bfloat16").save_pretrained(folder.parent / "rounded")


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


def test_tensors_do_not_lie_where_the_file_puts_them(seeded_weights: Path) -> None:
    """A product of the same numbers has other last bits where a factor begins elsewhere."""
    model = loaded(seeded_weights).model
    assert {tensor.data_ptr() % 64 for tensor in model.state_dict().values()} == {0}


def test_open_clips_own_format_gives_the_same_features(open_clip_folder: Path, images: list[Path]) -> None:
    theirs, ours = loaded(open_clip_folder), encoder("pacs-openclip-tiny")
    a, b = (
        clip.encode_texts(["a dog", "two red circles on a white ground"]).features for clip in (theirs, ours)
    )
    assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
    shown = [image(path) for path in images]
    a, b = (next(clip.encode_images(shown)).features for clip in (theirs, ours))
    assert a == pytest.approx(b, rel=1e-5, abs=1e-6)
