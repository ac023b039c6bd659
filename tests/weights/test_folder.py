"""Folders of weights: what a saved one gives back, and what is not as it was saved."""

from __future__ import annotations

import hashlib
import json
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
    vision = {**tower, "image_size": 32, "patch_size": 16, "num_attention_heads": 4}
    tower["hidden_act"] = vision["hidden_act"] = "gelu"
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
    config = json.loads((converted / "config.json").read_text())
    assert config["activation"] == "gelu"
    assert (
        config["architecture"]["text"]["heads"] == 2 and config["architecture"]["vision"]["head_width"] == 8
    )
    assert 0 <= capeval_core.load("clips", weights=str(converted)).score(["a dog"], images[:1]).mean <= 2.5
    (folder / "config.json").write_text('{"model_type": "clip", "text_config": {}}')
    with pytest.raises(ValueError, match="--activation quick_gelu --out") as caught:  # which is their default
        capeval_core.load("clips", weights=str(folder))
    assert f"{folder / 'model.safetensors'}" in str(caught.value)


def test_a_folder_that_is_not_one_of_weights_is_named_with_what_it_holds(tmp_path: Path) -> None:
    place = tmp_path / "photos"
    place.mkdir()
    for names, listed in (([], "nothing"), (["b", "a"], "a, b"), (list("gfedcba"), "a, b, c, d, e")):
        for name in names:
            (place / name).write_text("")
        with pytest.raises(ValueError) as caught:
            loaded(place)
        assert f"{place} has no config.json (it holds {listed})" in str(caught.value)
        assert "weights 'photos'" in str(caught.value)
    (place / "config.json").write_text('{"format": 1, "encoder": "clip"}')
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        loaded(place)
    (place / "config.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match='"format": 1'):
        loaded(place)
    (place / "config.json").write_text('{"format": 1, "checksum": 3}')
    (place / "model.safetensors").write_text("")
    with pytest.raises(ValueError, match="checksum"):
        loaded(place)


def test_damaged_weights_that_are_fetched_are_deleted_and_fetched_again(folder: Path) -> None:
    """Others are downloaded or converted again; both sums are in the message."""
    listed = folder.rename(folder.with_name("pacs-clip-vit-b-32"))
    stated = json.loads((listed / "config.json").read_text())["checksum"]["model.safetensors"]
    (listed / "model.safetensors").write_bytes(b"damaged")
    digest = hashlib.sha256(b"damaged").hexdigest()
    for place, fix in (
        (listed, f"delete {listed}, and run `capeval fetch pacs-clip-vit-b-32`"),
        (listed.with_name("mine"), "download or convert it again"),
    ):
        with pytest.raises(ValueError) as caught:
            loaded(listed.rename(place))
        place.rename(listed)
        for part in (f"has sha256 {digest[:12]}...", f"has {stated[:12]}...", fix, f"weights {place.name!r}"):
            assert part in str(caught.value), part


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ViT-B/32", "capeval/pacs-clip-vit-b-32"),
        ("pacs_clip_vit_base_patch32", "pacs-clip-vit-b-32"),
        ("tinny", "tiny"),
        ("vit", None),
        ("no such model at all", None),
    ],
)
def test_the_nearest_weights_of_a_metric_are_proposed(name: str, hint: str | None) -> None:
    with pytest.raises(ValueError) as caught:
        capeval_core.load("pacs", weights=name)
    assert repr(name) in str(caught.value)
    message = str(caught.value)
    assert ("did you mean" in message) is (hint is not None), message
    assert hint is None or hint.rpartition("/")[2] in message.partition("did you mean")[2]


@pytest.mark.parametrize(
    ("part", "changes", "expected"),
    [
        ("preprocess_cfg", {"resize_mode": "squash", "fill_color": 9}, {"resize": "squash"}),
        ("preprocess_cfg", {"interpolation": "bilinear", "fill_color": 9}, {"interpolation": "bilinear"}),
        ("preprocess_cfg", {"size": 64}, {"image_size": 64, "interpolation": "bicubic"}),
        ("preprocess_cfg", {"resize_mode": "longest"}, {"resize": "longest"}),
        ("preprocess_cfg", {"resize_mode": "longest", "fill_color": 9}, "9, expected 0"),
        ("preprocess_cfg", {"size": [64, 32]}, "[64, 32]"),
        ("preprocess_cfg", {"resize_mode": "crop"}, "'crop'"),
        ("model_cfg", {"text_cfg": None}, "open_clip_config.json"),
    ],
)
def test_preprocessing_of_open_clip_is_taken_as_it_is_or_refused(
    part: str, changes: dict[str, Any], expected: Any, open_clip_folder: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(open_clip_folder, tmp_path / "copy"))
    file = place / "open_clip_config.json"
    config = json.loads(file.read_text())
    config[part] |= changes
    file.write_text(json.dumps(config))
    if isinstance(expected, str):
        with pytest.raises(ValueError, match="weights 'copy'") as caught:
            loaded(place)
        assert expected in str(caught.value)
    else:
        preprocessing = loaded(place).config["preprocessing"]
        assert preprocessing.items() >= expected.items()
        assert ("resize" in preprocessing) is ("resize" in expected)
