"""Generated positives: what the models give by themselves, in folders that no interruption changes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.training.augmentation import (
    AugmentationRun,
    CaptionAugmentation,
    ImageAugmentation,
    seed_of,
)
from capeval_core.training.augmentation_sources import captions_of_file, images_of_files
from capeval_core.training.captioner import Captioner, find_captioner
from capeval_core.training.positive_shards import PositiveShards, Shard
from capeval_core.training.positives import CAPTION, IMAGE, Positive, Source, read_positives
from capeval_core.training.text_to_image import BLACK, TextToImage, _png, find_text_to_image
from tests.support.seams import LIMITS
from tests.support.small_disk import fill
from tests.training.generative import SIZE, arguments, contents, generated, write_pipeline


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards, each with more than one batch, which are written after every batch."""
    monkeypatch.setattr(CaptionAugmentation, "shard", 3)
    monkeypatch.setattr(ImageAugmentation, "shard", 4)
    monkeypatch.setattr(LIMITS, "training_seconds", 0.0)


def test_captions_are_those_of_the_library(captioner: Path, drawn: Path, tmp_path: Path) -> None:
    from transformers import BlipForConditionalGeneration, BlipProcessor

    found = read_positives(generated("captions", drawn, captioner, tmp_path / "out")).captions
    model: Any = BlipForConditionalGeneration.from_pretrained(captioner).eval()
    processor: Any = BlipProcessor.from_pretrained(captioner)
    for number in range(7):
        image = Image.open(drawn / "images" / f"{number}.png")
        inputs = processor(images=image, text="a picture of", return_tensors="pt")
        tokens = model.generate(**inputs, num_beams=3, min_length=5, max_length=20, do_sample=False)
        text = processor.decode(tokens[0], skip_special_tokens=True)
        assert found[str(number)] == [text.removeprefix("[DEC] ").removeprefix("a picture of ")]
    assert len({captions[0] for captions in found.values()}) > 3


def test_images_are_those_of_the_library(pipeline: Path, drawn: Path, tmp_path: Path) -> None:
    import diffusers

    folder = generated("images", drawn, pipeline, tmp_path / "out", "--seed", 7)
    library: Any = diffusers.StableDiffusionPipeline
    alone = library.from_pretrained(pipeline)
    found = read_positives(folder)
    assert len(found.sources) == 14
    assert found.sources[:3] == [("0", "a red cat"), ("0", "a dog"), ("1", "a blue cat")]
    images = [image.load() for image in found.images()]
    for (image_id, caption), image in list(zip(found.sources, images, strict=True))[:5]:
        stream = torch.Generator().manual_seed(seed_of(7, Source(IMAGE, image_id, caption)))
        expected = alone(
            caption, num_inference_steps=2, guidance_scale=7.5, height=SIZE, width=SIZE, generator=stream
        ).images[0]
        assert image.tobytes() == expected.tobytes()
    assert len({image.tobytes() for image in images}) == 14


def test_a_caption_from_the_nucleus_depends_on_its_own_image_alone(captioner: Path, drawn: Path) -> None:
    settings = CaptionAugmentation(model=captioner, decoding="nucleus", device="cpu")
    opened = Captioner(find_captioner(str(captioner), None), settings)
    images = [images_of_files(drawn / "images", None).load(i) for i in range(4)]
    together = opened.generate(images, [1, 2, 3, 4])
    assert together == [opened.generate([image], [i + 1])[0] for i, image in enumerate(images)]
    assert len({opened.generate(images[:1], [seed])[0] for seed in range(8)}) > 3


def test_seeds_differ_by_everything_that_makes_a_source() -> None:
    sources = [Source(CAPTION, "1"), Source(CAPTION, "2"), Source(IMAGE, "1", "a"), Source(IMAGE, "1", "b")]
    sources += [Source(IMAGE, "1 a", ""), Source(IMAGE, "1", " a")]
    seeds = {seed_of(seed, source) for source in sources for seed in (0, 1)}
    assert len(seeds) == 12 and all(0 <= seed < 1 << 63 for seed in seeds)


def killed_at(arguments: Sequence[str], writes: int) -> None:
    """Run the command in a process that is killed while it puts its n-th shard in place."""
    replace, names = Path.replace, list[str]()

    def replaced(path: Path, target: Any) -> Path:
        names.append(Path(target).name)
        if sum(name.startswith("positives-") for name in names) == writes:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    def run() -> None:
        from capeval_core.cli import main

        Path.replace = replaced  # type: ignore[assignment,method-assign]
        main(arguments)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("what", ["captions", "images"])
@pytest.mark.parametrize("writes", [1, 4])
def test_a_run_that_was_killed_goes_on_exactly(
    what: str, writes: int, drawn: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue("captioner" if what == "captions" else "pipeline")
    whole = generated(what, drawn, model, tmp_path / "whole")
    killed_at(arguments(what, drawn, model, tmp_path / "killed"), writes)
    before = contents(tmp_path / "killed")
    assert len(before) < len(contents(whole))
    generated(what, drawn, model, tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(whole)


def test_processes_share_the_work(
    captioner: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = generated("captions", drawn, captioner, tmp_path / "whole")
    for part, made in (("2/2", 3), ("1/2", 4)):
        generated("captions", drawn, captioner, tmp_path / "shared", "--shard", part)
        assert f"captions (part {part})  {made} generated" in capsys.readouterr().out
    assert contents(tmp_path / "shared") == contents(whole)
    generated("captions", drawn, captioner, tmp_path / "new", "--shard", "9/9")  # of three shards
    assert "captions (part 9/9)  0 generated, 0 found, 0 dropped, 0 failed" in capsys.readouterr().out


def test_one_folder_takes_both_kinds_of_two_processes_at_once(
    captioner: Path, pipeline: Path, drawn: Path, tmp_path: Path
) -> None:
    from capeval_core.cli import main

    runs = [arguments("captions", drawn, captioner, tmp_path), arguments("images", drawn, pipeline, tmp_path)]
    processes = [multiprocessing.get_context("fork").Process(target=main, args=(run,)) for run in runs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = read_positives(tmp_path)
    assert len(found.captions) == 7 and len(found.sources) == 14
    assert sorted(found.settings) == ["captions", "images"]
    assert found.settings["images"]["made_with"]["model"] == "pipeline"


def test_what_is_there_needs_no_model(
    captioner: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated("captions", drawn, captioner, tmp_path / "out")

    def refuse(*_: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr(Captioner, "__init__", refuse)
    generated("captions", drawn, captioner, tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 200, -1])
def test_a_damaged_shard_is_made_again(
    keep: int, captioner: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = generated("captions", drawn, captioner, tmp_path / "out")
    whole = contents(folder)
    damaged = folder / "positives-captions-00001.parquet"
    damaged.write_bytes(whole[damaged.name][:keep])
    generated("captions", drawn, captioner, folder)
    ran = capsys.readouterr()
    assert f"{damaged} is damaged" in ran.err and "3 generated, 4 found" in ran.out
    assert contents(folder) == whole


def test_no_changed_bit_passes_for_what_was_written(tmp_path: Path) -> None:
    sources = [Source(IMAGE, "1", "a dog"), Source(IMAGE, "2", "a cat"), Source(IMAGE, "3", "a red cat")]
    shards = PositiveShards(tmp_path, IMAGE, {"seed": 42})
    made = {i: Positive(IMAGE, sources[i].id, sources[i].source_caption, image=b"png" * 9) for i in (0, 2)}
    shards.write(0, Shard(made, {1: "black"}))
    whole = shards.path(0).read_bytes()
    assert shards.read(0, sources) == Shard(made, {1: "black"})
    noticed = 0
    rng = np.random.default_rng(0)
    for at in rng.choice(len(whole), 300, replace=False):
        changed = bytearray(whole)
        changed[at] ^= 1 << int(rng.integers(8))
        shards.path(0).write_bytes(changed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = shards.read(0, sources)
        assert found == (Shard() if caught else Shard(made, {1: "black"}))
        noticed += bool(caught)
    assert noticed > 100


def test_a_shard_of_other_sources_is_made_again(
    captioner: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = generated("captions", drawn, captioner, tmp_path / "out")
    whole = contents(folder)
    shutil.copy(folder / "positives-captions-00000.parquet", folder / "positives-captions-00001.parquet")
    generated("captions", drawn, captioner, folder)
    assert contents(folder) == whole
    assert "00001.parquet holds positives of other sources" in capsys.readouterr().err


def test_a_shard_of_other_settings_is_refused(captioner: Path, drawn: Path, tmp_path: Path) -> None:
    from capeval_core.cli import main

    first, second = (
        generated("captions", drawn, captioner, tmp_path / seed, "--seed", seed, "--decoding", "nucleus")
        for seed in ("1", "2")
    )
    shard = "positives-captions-00001.parquet"
    assert (first / shard).read_bytes() != (second / shard).read_bytes()
    shutil.copy(first / shard, second / shard)
    flags = ["--seed", "2", "--decoding", "nucleus"]
    assert main([*arguments("captions", drawn, captioner, second), *flags]) == 2


def test_lost_settings_are_written_again_and_kept_to(
    captioner: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capeval_core.cli import main

    folder = generated("captions", drawn, captioner, tmp_path / "out")
    whole = contents(folder)
    (folder / "settings.json").unlink()
    assert main([*arguments("captions", drawn, captioner, folder), "--seed", "1"]) == 2
    assert "holds captions by other settings (seed 42, now 1)" in capsys.readouterr().err
    generated("captions", drawn, captioner, folder)
    assert contents(folder) == whole


def test_an_interrupted_run_keeps_what_it_made(
    captioner: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CaptionAugmentation(model=captioner, device="cpu", batch_size=1)
    sources = images_of_files(drawn / "images", None)
    found = find_captioner(str(captioner), None)
    shards = PositiveShards(tmp_path / "out", CAPTION, settings.stamp(found, sources))

    class Interrupted(Captioner):
        calls = 0

        def generate(self, contents: Sequence[Image.Image], seeds: Sequence[int]) -> list[Any]:
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().generate(contents, seeds)

    run = AugmentationRun(settings, sources, lambda: Interrupted(found, settings), shards)
    monkeypatch.setattr(LIMITS, "training_seconds", 1e9)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert list(read_positives(tmp_path / "out").captions) == ["0", "1"]


def test_a_broken_image_costs_its_caption_until_it_is_repaired(
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
    assert contents(folder) == contents(generated("captions", drawn, captioner, tmp_path / "whole"))


def test_images_that_the_safety_checker_blacks_out_are_dropped_once(
    pipeline: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capeval_core.cli import main

    flagged = write_pipeline(tmp_path / "flagged", flagged=True)
    for _ in range(2):
        assert main(arguments("images", drawn, flagged, tmp_path / "out")) == 1
        counted = "0 generated, 0 found, 14 dropped (14 blacked out by the safety checker), 0 failed"
        assert counted in capsys.readouterr().out
    assert read_positives(tmp_path / "out").sources == []


def test_flags_belong_to_their_images(pipeline: Path, drawn: Path) -> None:
    settings = ImageAugmentation(model=pipeline, device="cpu", steps=2, image_size=SIZE)
    opened = TextToImage(find_text_to_image(str(pipeline), None), settings)
    texts = [captions_of_file(drawn / "captions.json").load(i) for i in range(4)]
    alone = opened.generate(texts, range(4))
    checker = opened._pipeline.safety_checker

    def flag_second(clip_input: Any, images: Any) -> tuple[Any, list[bool]]:
        images[1] = 0 * images[1]
        return images, [False, True, False, False]

    checker.forward = flag_second
    assert opened.generate(texts, range(4)) == [alone[0], "blacked out by the safety checker", *alone[2:]]
    assert _png(Image.new("RGB", (4, 4))) is BLACK


def test_a_full_disk_leaves_what_was_written(
    captioner: Path, drawn: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from capeval_core.cli import main

    folder = generated("captions", drawn, captioner, small_disk / "out", "--shard", "1/3")
    before = contents(folder)
    settings = CaptionAugmentation(model=captioner, device="cpu")
    sources, found = images_of_files(drawn / "images", None), find_captioner(str(captioner), None)
    shards = PositiveShards(folder, CAPTION, settings.stamp(found, sources))
    fill(small_disk)
    assert main(arguments("captions", drawn, captioner, folder)) == 2
    assert f"{folder}: cannot be written (No space left on device)" in capsys.readouterr().err
    there = f"{folder} cannot be written .No space left on device.: what is there stays"
    run = AugmentationRun(settings, sources, lambda: Captioner(found, settings), shards)
    with pytest.raises(OSError, match=there):  # where the disk fills up while it runs
        run.run()
    assert contents(folder) == before
    (small_disk / "filler").unlink()
    generated("captions", drawn, captioner, folder)
    assert len(read_positives(folder).captions) == 7


def test_settings_name_everything_that_positives_depend_on(
    captioner: Path, drawn: Path, tmp_path: Path
) -> None:
    folder = generated("captions", drawn, captioner, tmp_path / "out", "--dtype", "bfloat16")
    settings = json.loads((folder / "settings.json").read_text())["captions"]
    assert settings["dtype"] == "bfloat16" and settings["beams"] == 3 and "top_p" not in settings
    assert settings["prompt"] == "a picture of" and "device" not in settings and "batch_size" not in settings
    assert {"model", "transformers", "torch"} == set(settings["made_with"])
