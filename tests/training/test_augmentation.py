"""`capeval augment`: what the models give by themselves, in folders that no interruption changes."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from capeval_core.cli import main
from tests.hub import Repository, ask_here, commit, serving
from tests.support.seams import LIMITS
from tests.training.generative import SIZE, arguments, generated, write_pipeline


def positives(folder: Path) -> list[dict[str, Any]]:
    tables = [pq.read_table(path) for path in sorted(folder.rglob("*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


def captions(folder: Path) -> dict[str, str]:
    return {row["id"]: row["caption"] for row in positives(folder) if row["caption"]}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards, each with more than one batch, which are written after every batch."""
    monkeypatch.setattr(LIMITS, "augmented", {"caption": 3, "image": 4})
    monkeypatch.setattr(LIMITS, "training_seconds", 0.0)


def test_captions_equal_those_of_transformers(captioner: Path, drawn: Path, tmp_path: Path) -> None:
    from transformers import BlipForConditionalGeneration, BlipProcessor

    found = captions(generated("captions", drawn, captioner, tmp_path / "out"))
    model: Any = BlipForConditionalGeneration.from_pretrained(captioner).eval()
    processor: Any = BlipProcessor.from_pretrained(captioner)
    for number in range(7):
        image = Image.open(drawn / "images" / f"{number}.png")
        inputs = processor(images=image, text="a picture of", return_tensors="pt")
        tokens = model.generate(**inputs, num_beams=3, min_length=5, max_length=20, do_sample=False)
        text = processor.decode(tokens[0], skip_special_tokens=True)
        assert found[str(number)] == text.removeprefix("[DEC] ").removeprefix("a picture of ")
    assert len(set(found.values())) > 3


def test_images_equal_those_of_diffusers(pipeline: Path, drawn: Path, tmp_path: Path) -> None:
    import diffusers

    found = positives(generated("images", drawn, pipeline, tmp_path / "out", "--seed", 7))
    assert [(row["id"], row["source_caption"]) for row in found[:3]] == [
        ("0", "a red cat"),
        ("0", "a dog"),
        ("1", "a blue cat"),
    ]
    library: Any = diffusers.StableDiffusionPipeline
    alone = library.from_pretrained(pipeline)
    steps: dict[str, Any] = {"num_inference_steps": 2, "guidance_scale": 7.5, "height": SIZE, "width": SIZE}
    for row in found[:5]:
        stream = torch.Generator().manual_seed(seed_of(7, "image", row["id"], row["source_caption"]))
        expected = alone(row["source_caption"], generator=stream, **steps).images[0]
        assert Image.open(io.BytesIO(row["image"])).tobytes() == expected.tobytes()
    assert len(found) == 14 and len({row["image"] for row in found}) == 14


def seed_of(*parts: object) -> int:
    """Every source has a seed of its own, of 63 bits, whatever is generated before it."""
    content = "".join(f"{len(str(part))} {part}" for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def test_a_sampled_caption_depends_on_its_image_and_the_seed_alone(
    captioner: Path, drawn: Path, tmp_path: Path
) -> None:
    def sampled(name: str, seed: int, batch_size: int) -> dict[str, str]:
        flags = ("--decoding", "nucleus", "--seed", seed)
        out = tmp_path / name
        return captions(generated("captions", drawn, captioner, out, *flags, batch_size=batch_size))

    one_by_one = sampled("one-by-one", seed=1, batch_size=1)
    assert sampled("in-one-batch", seed=1, batch_size=7) == one_by_one
    by_another_seed = sampled("by-another-seed", seed=2, batch_size=2)
    assert sum(by_another_seed[name] != caption for name, caption in one_by_one.items()) > 3


def test_a_broken_image_loses_only_its_caption_until_it_is_repaired(
    captioner: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(drawn, tmp_path / "own")
    broken = tmp_path / "own" / "images" / "3.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60])
    for made, there in ((6, 0), (0, 6)):
        folder = generated("captions", tmp_path / "own", captioner, tmp_path / "out")
        ran = capsys.readouterr()
        assert f"{made} generated, {there} found, 0 dropped, 1 failed" in ran.out
        assert "1 of 7 images failed:\n  image of '3': " in ran.err
    broken.write_bytes(whole)
    generated("captions", tmp_path / "own", captioner, folder)
    assert captions(folder) == captions(generated("captions", drawn, captioner, tmp_path / "whole"))


def test_black_images_are_dropped_and_not_generated_again(
    pipeline: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flagged = write_pipeline(tmp_path / "flagged", flagged=True)
    for _ in range(2):
        assert main(arguments("images", drawn, flagged, tmp_path / "out")) == 1
        counted = "0 generated, 0 found, 14 dropped (14 black images), 0 failed"
        assert counted in capsys.readouterr().out
    assert {row["image"] for row in positives(tmp_path / "out")} == {None}


def test_a_pinned_revision_is_fetched_without_pickles_and_code(
    pipeline: Path, captioner: Path, drawn: Path, tmp_path: Path
) -> None:
    crowded, pickled, home = tmp_path / "crowded", tmp_path / "pickled", tmp_path / "home"
    home.mkdir()
    shutil.copytree(pipeline, crowded)
    shutil.copytree(captioner, pickled)
    for name in ("unet/diffusion_pytorch_model.bin", "unet/model.fp16.safetensors", "own.py", "README.md"):
        (crowded / name).write_bytes(b"not to be fetched")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    repositories = {
        "org/drawer": Repository.of({"main": crowded, "v1": crowded}),
        "org/pickled": Repository.of({"main": pickled}),
        "org/captioner": Repository.of({"main": captioner}),
    }
    runs = [
        [*arguments(what, drawn, Path(model), tmp_path / out), *more]
        for what, model, out, more in (
            ("images", "org/drawer", "pinned", ["--revision", "v1"]),
            ("images", "org/drawer@v1", "pinned", []),  # the same, found
            ("images", "org/drawer", "none", ["--revision", "v9"]),
            ("captions", "org/captioner", "captions", []),
            ("images", "org/captioner", "other", []),
            ("captions", "org/pickled", "pickled", []),
        )
    ]
    code = f"""
import json
from capeval_core.cli import main
print(json.dumps([main(run) for run in {runs!r}]))
"""
    with serving(repositories) as hub:
        assert ask_here(code, hub.address, home) == [0, 0, 2, 0, 2, 2]
    # The same files have the same digest wherever they lie, so that a run may go on with a copy.
    generated("images", drawn, pipeline, tmp_path / "local")
    stored, local = (json.loads(positives(tmp_path / name)[0]["made_with"]) for name in ("pinned", "local"))
    assert stored["model"] == f"org/drawer@{commit('v1')}"
    assert {**stored, "model": "pipeline"} == local
    fetched = " ".join(request for request in hub.requests if "/resolve/" in request)
    assert "unet/diffusion_pytorch_model.safetensors" in fetched
    for name in (".bin", ".py", "README", "fp16"):
        assert name not in fetched
