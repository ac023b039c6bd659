"""`capeval augment`: wrong input is refused before any model is opened."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from capeval_core.training import text_to_image
from capeval_core.training.captioner import Captioner
from capeval_core.training.positives import read_positives
from capeval_core.training.text_to_image import TextToImage
from tests.cli.conftest import Ran
from tests.training.generative import SIZE, generated

Capeval = Callable[..., Ran]
SHORT = ["--device", "cpu", "--steps", 1, "--image-size", SIZE]


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no model be opened."""

    def refuse(*_: object) -> None:
        raise AssertionError("a model was opened")

    for model in (Captioner, TextToImage):
        monkeypatch.setattr(model, "__init__", refuse)


@pytest.fixture
def place(tmp_path: Path, drawn: Path, captioner: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with good and bad files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(drawn / "images", "images")
    shutil.copy(drawn / "captions.json", "captions.json")
    Path("none").mkdir()
    Path("above/images").mkdir(parents=True)
    Path("twice").mkdir()
    for name in ("0.png", "0.jpg"):
        shutil.copy("images/0.png", f"twice/{name}")
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("")
    Path("other.json").write_text('{"99": "a dog"}')
    Path("empty.json").write_text('{"0": " "}')
    return tmp_path


CAPTIONS = {"images": "images", "model": "captioner", "out": "out"}
IMAGES = {"captions": "captions.json", "model": "pipeline", "out": "out"}


def run(capeval: Capeval, what: str, given: dict[str, Any], *more: object) -> Ran:
    flags = [part for name, value in given.items() if value is not None for part in (f"--{name}", value)]
    return capeval("augment", what, *flags, *more)


@pytest.mark.usefixtures("unopened", "place")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": None}, "pass either --images FOLDER or --dataset DATASET"),
        ({"dataset": "x/y"}, "pass either --images FOLDER or --dataset DATASET"),
        ({"images": None, "dataset": "x", "captions": "captions.json"}, "a dataset has ids of its own"),
        ({"images": "absent"}, "absent: there is no such folder"),
        ({"images": "none"}, "none: holds no images: expected files with the extension .avif"),
        ({"images": "above"}, "above: holds no images, but folders (images): name one of them"),
        ({"images": "twice"}, "twice: '0.jpg' and '0.png' would both be '0'"),
        ({"captions": "other.json"}, "images: 1 of 1 ids ('99') has no image"),
        ({"out": "file"}, "file: is a file: choose a folder for the positives"),
        ({"out": "full"}, "full: holds something else (thesis.tex)"),
        ({"out": "file/below"}, "file/below: cannot be written (Not a directory)"),
        ({"model": "captions.json"}, "--model captions.json is a file"),
        ({"model": "absent"}, "captioner 'absent' is neither a folder nor a Hub id"),
        ({"model": "none"}, "captioner 'none' has no config.json, expected a captioner"),
        ({"model": ""}, "--model '' is missing"),
        ({"shard": "4"}, "--shard 4: expected I/N with I from 1 to N, e.g. 1/4"),
        ({"shard": "0/4"}, "--shard 0/4: expected I/N"),
        ({"beams": 0}, "--beams 0: expected a number of at least 1"),
        ({"top-p": 2}, "--top-p 2.0: expected more than 0 and at most 1"),
        ({"min-length": 30}, "--min-length 30 is more than the 20 of max_length"),
        ({"decoding": "beams"}, "--decoding beams: expected 'beam' or 'nucleus': did you mean 'beam'?"),
        ({"device": "cuda:77"}, "--device cuda:77"),
        ({"steps": 3}, "unknown option --steps"),
    ],
)
def test_wrong_input_of_captions_is_refused(changed: dict[str, Any], message: str, capeval: Capeval) -> None:
    ran = run(capeval, "captions", {**CAPTIONS, **changed})
    assert ran.status == 2 and message in " ".join(ran.err.split()), ran.err
    assert not Path("out").exists()


@pytest.mark.usefixtures("unopened", "place")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"captions": None}, "pass either --captions FILE or --dataset DATASET"),
        ({"captions": "absent.json"}, "absent.json: there is no such file"),
        ({"captions": "empty.json"}, "empty.json: holds no captions that are not empty"),
        ({"model": "none"}, "text-to-image model 'none' has no model_index.json, expected a text-to-image"),
        ({"image-size": 30}, "--image-size 30 is no multiple of 8: pass one, e.g. 512"),
        ({"images": "images"}, "unknown option --images"),
        ({"revision": "v1", "model": "none"}, "--revision v1: --model none is a folder"),
        ({"revision": "v1", "model": "a/b@c"}, "--revision v1: --model a/b@c has one already"),
    ],
)
def test_wrong_input_of_images_is_refused(changed: dict[str, Any], message: str, capeval: Capeval) -> None:
    ran = run(capeval, "images", {**IMAGES, **changed})
    assert ran.status == 2 and message in " ".join(ran.err.split()), ran.err
    assert not Path("out").exists()


@pytest.mark.usefixtures("unopened", "place")
def test_models_of_another_kind_are_named(capeval: Capeval, captioner: Path, pipeline: Path) -> None:
    def refusal(what: str, model: Path) -> str:
        return run(capeval, what, {**(CAPTIONS if what == "captions" else IMAGES), "model": model}).err

    assert "is a BlipForConditionalGeneration, expected a text-to-image pipeline" in refusal(
        "images", captioner
    )
    assert "is a pipeline of diffusers (StableDiffusionPipeline), expected a captioner" in refusal(
        "captions", pipeline
    )
    assert "is a UNet2DConditionModel, expected" in refusal("images", pipeline / "unet")
    asked = Path("asked")
    shutil.copytree(captioner, asked)
    config = json.loads((asked / "config.json").read_text())
    (asked / "config.json").write_text(json.dumps({**config, "architectures": ["BlipForQuestionAnswering"]}))
    assert "'asked' is a BlipForQuestionAnswering, expected a captioner" in refusal("captions", asked)
    changed = Path("changed")
    shutil.copytree(pipeline, changed)
    index = json.loads((changed / "model_index.json").read_text())
    for name in ("StableDiffusionInpaintPipeline", ["own", "Own"]):
        (changed / "model_index.json").write_text(json.dumps({**index, "_class_name": name}))
        assert f"is a {name}, expected a text-to-image pipeline" in refusal("images", changed)
    (changed / "model_index.json").write_text(json.dumps({**index, "unet": ["own", "Own"]}))
    assert "its unet is ['own', 'Own'], which is no class of diffusers" in refusal("images", changed)
    (changed / "model_index.json").write_text(json.dumps(index))
    (changed / "unet" / "diffusers.py").write_text("raise SystemExit")
    assert "holds code (unet/diffusers.py), and code of a model is not run" in refusal("images", changed)


@pytest.mark.usefixtures("unopened", "place")
@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("captions", "model.safetensors"),
        ("images", "unet/diffusion_pytorch_model.safetensors"),
        ("images", "safety_checker/model.safetensors"),
    ],
)
def test_weights_are_safetensors(
    what: str, file: str, capeval: Capeval, captioner: Path, pipeline: Path
) -> None:
    model, given = (captioner, CAPTIONS) if what == "captions" else (pipeline, IMAGES)
    shutil.copytree(model, "model")
    Path("model", file).rename(Path("model", file).with_suffix(".bin"))
    ran = run(capeval, what, {**given, "model": "model"})
    assert f"'model' has no {file} in model, and pickled weights are not opened: pass a model" in ran.err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("captions", "model.safetensors"),
        ("images", "unet/diffusion_pytorch_model.safetensors"),
        ("images", "text_encoder/model.safetensors"),
    ],
)
def test_missing_tensors_are_not_drawn_at_random(
    what: str, file: str, capeval: Capeval, captioner: Path, pipeline: Path
) -> None:
    model, given = (captioner, CAPTIONS) if what == "captions" else (pipeline, IMAGES)
    shutil.copytree(model, "model")
    tensors = load_file(Path("model", file))
    lost = next(name for name in sorted(tensors) if "norm" in name.lower())
    del tensors[lost]
    save_file(tensors, Path("model", file), {"format": "pt"})
    ran = run(capeval, what, {**given, "model": "model"}, *(SHORT if what == "images" else []))
    assert ran.status == 2 and "1 tensors are missing, such as " in ran.err, ran.err
    Path("model", file).write_bytes(b"no tensors")
    ran = run(capeval, what, {**given, "model": "model"}, *(SHORT if what == "images" else []))
    assert ran.status == 2 and "'model' could not be opened (" in ran.err, ran.err
    assert not Path("out").exists()


@pytest.mark.usefixtures("unopened", "place")
def test_diffusers_is_asked_for_where_it_is_missing(
    capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_to_image, "find_spec", lambda name: None)
    ran = run(capeval, "images", {**IMAGES, "captions": "absent.json"})
    assert ran.status == 2
    assert ran.err == 'capeval: generated images need diffusers: pip install "capeval[augment]"\n'


@pytest.mark.usefixtures("place")
def test_a_length_that_the_model_has_no_room_for(capeval: Capeval, captioner: Path) -> None:
    for length in (4, 99):
        given = {**CAPTIONS, "model": captioner, "max-length": length, "min-length": 1}
        ran = run(capeval, "captions", given)
        expected = "expected more than the prompt's 4 and at most the model's 24 tokens"
        assert ran.status == 2 and f"--max-length {length}: {expected}" in ran.err, ran.err
    generated("captions", Path(), captioner, Path("out"))


@pytest.mark.usefixtures("place")
def test_other_settings_are_refused_by_name(capeval: Capeval, captioner: Path) -> None:
    generated("captions", Path(), captioner, Path("out"))
    given = {**CAPTIONS, "model": captioner}
    for changed, message in (
        ({"seed": 1}, "(seed 42, now 1)"),
        ({"prompt": "a"}, "(prompt 'a picture of', now 'a')"),
        ({"decoding": "nucleus"}, "decoding 'beam', now 'nucleus'"),
    ):
        ran = run(capeval, "captions", {**given, **changed})
        assert ran.status == 2 and "out: holds captions by other settings (" in ran.err
        assert message in ran.err and "pass the same settings, or choose another folder" in ran.err
    Path("images/6.png").unlink()
    assert "(sources '7 " in run(capeval, "captions", given).err


@pytest.mark.usefixtures("place")
def test_a_dataset_gives_images_and_captions(capeval: Capeval, captioner: Path, pipeline: Path) -> None:
    rows = {
        "picture": [Image.open(f"images/{number}.png") for number in (0, 1, 0)],
        "text": [["a dog", "a cat"], ["a dog"], ["a dog"]],
        "cocoid": [7, 8, 7],
    }
    features = {"picture": datasets.Image(), "text": datasets.List(datasets.Value("string"))}
    features |= {"cocoid": datasets.Value("int64")}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk("set")
    given = {"dataset": "set", "out": "out", "id-column": "cocoid"}
    of_captions = {**given, "model": captioner, "device": "cpu"}
    unknown = run(capeval, "captions", of_captions)
    assert (
        "--image-column image is no column of set" in unknown.err and "(picture, text, cocoid)" in unknown.err
    )
    assert run(capeval, "captions", {**of_captions, "image-column": "picture"}).status == 0
    of_images = {**given, "model": pipeline, "caption-column": "text"}
    assert run(capeval, "images", of_images, *SHORT).status == 0
    found = read_positives(Path("out"))
    assert list(found.captions) == ["7", "8"]
    assert found.sources == [("7", "a dog"), ("7", "a cat"), ("8", "a dog")]
    wrong = run(capeval, "images", {**of_images, "caption-column": "cocoid"}, *SHORT)
    assert "set: row 1: cocoid is 8: pass a column of texts" in wrong.err


@pytest.mark.usefixtures("place")
def test_ids_are_those_of_a_file_of_captions(capeval: Capeval, captioner: Path) -> None:
    Path("images/0.png").rename("images/COCO_val2014_000000000042.png")
    Path("captions.json").write_text(json.dumps({"42": "a dog", "1": "a cat"}))
    given = {**CAPTIONS, "captions": "captions.json", "model": captioner, "device": "cpu"}
    assert run(capeval, "captions", given).status == 0
    assert list(read_positives(Path("out")).captions) == ["42", "1"]


@pytest.mark.usefixtures("place")
def test_captions_that_are_cut_are_counted_and_nothing_else_is_printed(
    capeval: Capeval, pipeline: Path
) -> None:
    Path("captions.json").write_text(json.dumps({"0": ["a dog", "a cat and a dog and a cat", "a dog"]}))
    ran = run(capeval, "images", {**IMAGES, "model": pipeline}, *SHORT)
    assert ran.out == (
        "images  2 generated, 0 found, 0 dropped, 0 failed\nfolder  out\n"
        "train with them, when there are captions and images:\n  capeval train pacs --captions captions.json "
        "--images images --positives out --start WEIGHTS --out FOLDER\n"
    )
    assert ran.err == (
        "capeval: warning: 1 captions are longer than the text encoder reads, and the images show their "
        "beginnings only\n"
    )


def test_a_folder_that_cannot_be_written_is_refused(
    capeval: Capeval, captioner: Path, drawn: Path, small_disk: Path
) -> None:
    given = {"images": drawn / "images", "model": captioner, "device": "cpu"}
    assert run(capeval, "captions", {**given, "out": small_disk / "out"}).status == 0
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for folder in ("out", "new"):
        ran = run(capeval, "captions", {**given, "out": small_disk / folder})
        assert ran.status == 2 and f"{folder}: cannot be written (Read-only file system)" in ran.err


def test_a_terminal_shows_a_bar(
    capeval: Capeval, captioner: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    given = {"images": drawn / "images", "model": captioner, "device": "cpu", "out": tmp_path / "out"}
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    assert run(capeval, "captions", given).status == 0
    assert "captions:   0%" in terminal.getvalue() and "| 7/7 [" in terminal.getvalue()
    assert "Loading weights" not in terminal.getvalue()


def test_help_shows_the_models_of_the_paper(capeval: Capeval) -> None:
    pages = {what: capeval("augment", what, "--help").out.split() for what in ("captions", "images")}
    shown = {what: " ".join(words).replace("- ", "-") for what, words in pages.items()}
    assert "(default: Salesforce/blip-image-captioning-large)" in shown["captions"]
    assert "(default: CompVis/stable-diffusion-v1-4)" in shown["images"]
    for text in shown.values():
        for flag in ("--shard I/N", "--revision REVISION", "--batch-size N", "--id-column ID_COLUMN"):
            assert flag in text
    assert "what to generate comes first" in capeval("augment").err
    assert "'texts' cannot be generated (known: captions, images)" in capeval("augment", "texts").err
