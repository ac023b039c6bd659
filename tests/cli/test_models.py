"""`capeval convert` and `augment`: what they record, and models that are not whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Capeval, Ran
from tests.training.generative import SIZE
from tests.transcripts.world import write_world

SHORT = ["--device", "cpu", "--steps", 1, "--image-size", SIZE]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The golden case's checkpoint, as its original release saves one."""
    write_world(tmp_path, "convert")
    return tmp_path / "clip_tiny.pth"


def test_what_tensors_do_not_show_is_recorded(capeval: Capeval, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "w"
    given = ["--source", "Tiny", "--licence", "CC0", "--activation", "gelu", "--url", "https://example.org/x"]
    assert capeval("convert", "pacs", checkpoint, "--out", out, *given).status == 0
    config = json.loads((out / "config.json").read_text())
    assert config["activation"] == "gelu"
    assert [config["source"][key] for key in ("name", "licence", "url")] == ["Tiny", "CC0", given[-1]]
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    listed = Path(shutil.copy(checkpoint, tmp_path / "clip_ViT-B-32.pth"))  # as a release is called
    ran = capeval("convert", "refpacs", listed, "--out", tmp_path / "v", *given)
    files = "--candidates captions.json --images images"
    example = f"capeval score refpacs {files} --weights {tmp_path / 'v'} --references references.json"
    assert ran.status == 0 and ran.out.endswith(f"score with it:\n  {example}\n")
    source = json.loads((tmp_path / "v" / "config.json").read_text())["source"]
    assert [source[key] for key in ("name", "licence", "url")] == ["Tiny", "CC0", given[-1]]


def test_notes_advise_flags(capeval: Capeval, checkpoint: Path, tmp_path: Path) -> None:
    """What can be set otherwise is named as the command names it."""
    blocks = ("ln_1", "attn", "ln_2", "mlp")  # in open_clip's order
    tensors = torch.load(checkpoint, weights_only=True)
    tensors = tensors.get("state_dict", tensors)

    def rank(name: str) -> int:
        return next((i for i, block in enumerate(blocks) if f".{block}." in name), 0)

    torch.save({name: tensors[name] for name in sorted(tensors, key=rank)}, tmp_path / "other.pth")
    ran = capeval("convert", "clips", tmp_path / "other.pth", "--out", tmp_path / "w s")
    assert ran.status == 0, ran.err
    files = "--candidates captions.json --images images"
    example = f"capeval score clips {files} --weights '{tmp_path / 'w s'}'"
    assert ran.out.endswith(f"score with it:\n  {example}\n")
    words = " ".join(ran.out.split())
    assert "--activation quick_gelu" in words and "activation=" not in words


@pytest.fixture
def place(tmp_path: Path, drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images and captions."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(drawn / "images", "images")
    shutil.copy(drawn / "captions.json", "captions.json")
    return tmp_path


CAPTIONS = {"images": "images", "model": "model", "out": "out", "device": "cpu"}
IMAGES = {"captions": "captions.json", "model": "model", "out": "out"}


def augment(capeval: Capeval, what: str, given: dict[str, Any], *more: object) -> Ran:
    flags = [part for name, value in given.items() for part in (f"--{name}", value)]
    return capeval("augment", what, *flags, *(SHORT if what == "images" else []), *more)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("captions", "model.safetensors"),
        ("images", "unet/diffusion_pytorch_model.safetensors"),
        ("images", "safety_checker/model.safetensors"),
    ],
)
def test_models_are_whole_and_safetensors(
    what: str, file: str, capeval: Capeval, captioner: Path, pipeline: Path
) -> None:
    """Nothing is drawn at random, and nothing unpickled."""
    shutil.copytree(captioner if what == "captions" else pipeline, "model")
    given, path = CAPTIONS if what == "captions" else IMAGES, Path("model", file)
    tensors = load_file(path)
    lost = next(name for name in sorted(tensors) if "norm" in name.lower())
    save_file({name: value for name, value in tensors.items() if name != lost}, path, {"format": "pt"})
    ran = augment(capeval, what, given)
    assert ran.status == 2 and "1 tensors are missing, such as " in ran.err, ran.err
    path.write_bytes(b"no tensors")
    assert augment(capeval, what, given).status == 2
    path.rename(path.with_suffix(".bin"))
    ran = augment(capeval, what, given)
    assert ran.status == 2 and "safetensors" in ran.err and not Path("out").exists()


@pytest.mark.usefixtures("place")
def test_a_dataset_gives_images_and_captions(capeval: Capeval, captioner: Path, pipeline: Path) -> None:
    rows = {
        "picture": [Image.open(f"images/{number}.png") for number in (0, 1, 0)],
        "text": [["a dog", "a cat"], ["a dog"], ["a dog and a cat and a dog and a cat"]],
        "cocoid": [7, 8, 7],
    }
    features = {"picture": datasets.Image(), "text": datasets.List(datasets.Value("string"))}
    features |= {"cocoid": datasets.Value("int64")}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk("set")
    given = {"dataset": "set", "out": "out", "id-column": "cocoid"}
    of_captions = {**given, "model": captioner, "device": "cpu"}
    unknown = augment(capeval, "captions", of_captions)
    assert unknown.status == 2 and "--image-column image " in unknown.err
    assert augment(capeval, "captions", {**of_captions, "image-column": "picture"}).status == 0
    of_images = {**given, "model": pipeline, "caption-column": "text"}
    ran = augment(capeval, "images", of_images)
    assert ran.status == 0 and "4 generated" in ran.out and "1 captions are longer" in ran.err
    found = pa.concat_tables(
        [pq.read_table(path) for path in sorted(Path("out").rglob("*.parquet"))], promote_options="default"
    )
    assert {*found["id"].to_pylist()} == {"7", "8"}
    refused = augment(capeval, "images", {**of_images, "caption-column": "cocoid"})
    assert refused.status == 2 and "row 1: cocoid" in refused.err
