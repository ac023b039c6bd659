"""Notes on stderr, `--quiet`, and images that are turned, at the command line."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Capeval, read_json, write_json

IDS = ["a", "b", "c"]


@pytest.fixture
def lying(tmp_path: Path) -> Path:
    """Three pictures, red above green; two are stored upside down, as their EXIF says."""
    (tmp_path / "images").mkdir()
    pixels = np.zeros((40, 40, 3), dtype=np.uint8)
    pixels[:20, :, 0], pixels[20:, :, 1] = 250, 250
    for number, name in enumerate(IDS):
        exif, orientation = Image.Exif(), 3 if number else 1
        exif[0x0112] = orientation
        stored = pixels[::-1, ::-1].copy() if orientation == 3 else pixels.copy()
        stored[20, 20, 2] = number  # no two are equal
        Image.fromarray(stored).save(tmp_path / "images" / f"{name}.png", exif=exif)
    write_json(tmp_path / "captions.json", dict.fromkeys(IDS, "a red sky<|im_end|>"))
    write_json(tmp_path / "other.json", dict(zip(IDS, ["a red sky", "a sky", "red"], strict=True)))
    write_json(tmp_path / "references.json", {name: [f"{name} sky"] for name in IDS})
    return tmp_path


def test_each_note_comes_once_for_all_metrics(capeval: Capeval, lying: Path) -> None:
    arguments: list[object] = ["--candidates", lying / "captions.json", "--images", lying / "images"]
    arguments += ["--references", lying / "references.json", "--weights", "tiny", "--device", "cpu"]
    found = capeval("score", "pacs,clips,rougel", *arguments)
    notes = re.findall(r"^capeval: note: (?!.*id = )(.*)$", found.err, re.MULTILINE)
    assert found.status == 0 and len(notes) == 3 and "warning" not in found.err
    assert "same" in notes[0] and "<|im_end|>" in notes[1]
    assert "2 of 3 images" in notes[2] and "--exif-turn" in notes[2]
    quiet = capeval("score", "pacs,clips,rougel", *arguments, "--quiet")
    assert quiet.err == "" and quiet.out == found.out


def test_notes_of_several_systems_name_theirs(capeval: Capeval, lying: Path) -> None:
    files = [lying / "captions.json", lying / "other.json"]
    found = capeval("score", "rougel", "--candidates", *files, "--references", lying / "references.json")
    notes = re.findall(r"^capeval: note: (\w+): (?!.*id = )", found.err, re.MULTILINE)
    assert notes == ["captions", "captions"]


def test_quiet_leaves_warnings_and_is_for_one_command(capeval: Capeval, lying: Path) -> None:
    arguments: list[object] = ["--candidates", lying / "captions.json", "--images", lying / "images"]
    arguments += ["--references", lying / "references.json", "--weights", "tiny"]
    quiet = capeval(
        "score", "rougel", *arguments[:2], *arguments[4:6], "--images", lying / "images", "--quiet"
    )
    assert "note:" not in quiet.err and "warning: folder" in quiet.err
    assert "note:" in capeval("score", "pacs", *arguments).err


@pytest.mark.parametrize("metric", ["pacs", "hices"])
def test_the_switch_turns_images_everywhere(metric: str, capeval: Capeval, lying: Path) -> None:
    """Scores, rows, the note and the pictures of the page are those of upright images."""
    more = ["--regions", "colours", "--phrases", "chunks"] if metric == "hices" else []
    scores = {}
    for name, switch in {"stored": [], "turned": ["--exif-turn"]}.items():
        arguments: list[object] = ["--candidates", lying / "other.json", "--images", lying / "images"]
        arguments += ["--weights", "tiny", "--json", lying / "s.json", "--report", lying / name]
        found = capeval("score", metric, *arguments, *more, *switch)
        assert found.status == 0 and ("EXIF" in found.err) == (not switch)
        scores[name] = read_json(lying / "s.json")
        assert ("|exif:turn|" in scores[name]["signature"]) == bool(switch)
        pictures = re.findall(r"data:image/jpeg;base64,([\w+/=]+)", (lying / name / "index.html").read_text())
        tops = [Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB") for data in pictures]
        small = [image for image in tops if image.width == image.height]
        red = [image.getpixel((5, 5))[0] > 128 for image in small]
        assert red and all(red) == bool(switch)
    assert scores["stored"]["scores"][0] == pytest.approx(scores["turned"]["scores"][0], abs=1e-6)
    assert scores["stored"]["scores"][1:] != pytest.approx(scores["turned"]["scores"][1:], abs=1e-6)
