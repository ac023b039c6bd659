"""`capeval regions`: what is written is what the encoder finds, runs are resumed, folders are not mixed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capeval_core import load, writing
from capeval_core.cache import FeatureCache
from capeval_core.cli import main
from capeval_core.encoders.scene_regions import SceneRegionEncoder
from capeval_core.inputs.box_folder import MANIFEST
from capeval_core.inputs.box_stores import BoxFeatureStore
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.inputs.visual import InputImage
from capeval_core.scores.box_source import FirstBoxes
from capeval_core.weights.catalogue import FASTER_RCNN_VG, X152_VG, WeightsEntry
from tests.cli.conftest import Ran
from tests.support.seeded import uniter

Capeval = Callable[..., Ran]
IDS = ["0", "1", "2", "3", "4", "5"]


@pytest.fixture
def folder(tmp_path: Path, images: list[Path]) -> Path:
    """Six images, a text, and a folder of more images."""
    path = tmp_path / "images"
    (path / "more").mkdir(parents=True)
    for image in images:
        shutil.copy(image, path)
    shutil.copy(images[0], path / "more")
    (path / "notes.txt").write_text("x")
    return path


@pytest.fixture(scope="module", autouse=True)
def encoder() -> SceneRegionEncoder:
    return SceneRegionEncoder.from_pretrained("tiny", device="cpu")  # shared as long as someone holds it


@pytest.fixture
def regions(capeval: Capeval, folder: Path) -> Capeval:
    def run(*arguments: object) -> Ran:
        out = folder.parent / "out"
        given = ["--images", folder, "--out", out, "--weights", "tiny", "--device", "cpu"]
        return capeval("regions", *given, *arguments)

    return run


def files_in(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_what_is_written_is_what_the_encoder_finds(
    regions: Capeval, folder: Path, encoder: SceneRegionEncoder
) -> None:
    ran = regions()
    out = folder.parent / "out"
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[0].startswith("images   6 written (")
    assert ran.out.splitlines()[1].startswith("encoder  tiny@")
    assert ran.out.splitlines()[-1] == (
        f"  capeval score umic --candidates captions.json --images {folder} --regions {out} --weights tiny"
    )
    assert sorted(files_in(out)) == [*(f"{image_id}.npz" for image_id in IDS), MANIFEST]
    store = BoxFeatureStore.open(out)
    images = [InputImage.of(next(folder.glob(f"{image_id}.*"))) for image_id in IDS]
    encoded = encoder.encode_boxes(images, cache=FeatureCache(0))
    for image_id, visual in zip(IDS, encoded, strict=True):
        expected, found = visual.load(), InputBoxes("images[0]", store.find(f"{image_id}.jpg"))
        for boxes in (found.load(), FirstBoxes(found, "bua10_100").load()):
            for name in ("boxes", "features", "scores"):
                np.testing.assert_array_equal(getattr(boxes, name), getattr(expected, name))
                assert getattr(boxes, name).dtype == np.float32
            np.testing.assert_array_equal(boxes.relative(), expected.relative())
            assert (boxes.size, boxes.selection) == (expected.size, "bua10_100")


def test_the_folder_scores_as_its_images(regions: Capeval, folder: Path, tmp_path: Path) -> None:
    """Also images with many boxes of little confidence, which a rule of selection would cut."""
    uniter().save_pretrained(tmp_path / "weights")
    assert regions().status == 0
    settings: dict[str, Any] = {"weights": str(tmp_path / "weights"), "device": "cpu"}
    captions, paths = [f"a dog and {i}" for i in IDS], [next(folder.glob(f"{i}.*")) for i in IDS]
    expected = load("umic", **settings, cache=FeatureCache(0)).score(captions, paths)
    found = load("umic", **settings, cache=FeatureCache(0), regions=str(tmp_path / "out"))
    assert found.score(captions, paths).scores == expected.scores
    assert found.score(captions, IDS).scores == expected.scores
    settings["weights"] = str(tmp_path / "absent")  # refused before weights are opened
    with pytest.raises(ValueError) as caught:
        load("umic", **settings, regions=str(tmp_path / "out"), selection="lxmert36")
    assert "has boxes that were chosen as 'bua10_100': pass selection=\"bua10_100\"" in str(caught.value)


def test_features_alone_cannot_be_drawn(regions: Capeval, capeval: Capeval, tmp_path: Path) -> None:
    uniter().save_pretrained(tmp_path / "weights")
    (tmp_path / "captions.json").write_text(json.dumps(dict.fromkeys(IDS, "a dog")))
    assert regions().status == 0
    given = ["--candidates", tmp_path / "captions.json", "--weights", tmp_path / "weights", "--device", "cpu"]
    given += ["--regions", tmp_path / "out", "--explain", tmp_path / "drawn"]
    ran = capeval("score", "umic", *given)
    assert ran.status == 2 and "--explain: there are only box features, and no image is opened" in ran.err
    assert not (tmp_path / "drawn").exists()


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [("features", np.nan, "features"), ("scores", 2.0, "scores[1]"), ("boxes", -50.0, "boxes[1]")],
)
def test_a_fault_inside_an_array_is_told_with_its_image_and_its_place(
    name: str, value: float, where: str, capeval: Capeval, tmp_path: Path
) -> None:
    arrays = {
        "boxes": np.tile(np.float32([2, 2, 30, 30]), (3, 1)),
        "features": np.ones((3, 2048), np.float32),
        "scores": np.full(3, 0.5, np.float32),
    }
    arrays[name][1] = value
    (tmp_path / "boxes").mkdir()
    np.savez(tmp_path / "boxes" / "dog.npz", **arrays)
    (tmp_path / "captions.json").write_text('{"dog": "a dog"}')
    given = ["--candidates", tmp_path / "captions.json", "--regions", tmp_path / "boxes"]
    ran = capeval("score", "umic", *given, "--weights", "tiny")
    assert ran.status == 2
    assert f"image of 'dog': {where}" in ran.err


def test_images_that_have_their_file_are_skipped(
    regions: Capeval, folder: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert regions().status == 0
    out = folder.parent / "out"
    before, times = files_in(out), {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "1.npz").write_bytes(before["1.npz"][:500])  # damaged
    (out / "2.npz").unlink()
    shutil.copy(images[5], folder / "3.png")  # another image
    shutil.copy(images[1], folder / "new.png")
    ran = regions()
    assert ran.status == 0 and "4 written" in ran.out and "3 found, 0 failed" in ran.out
    after = files_in(out)
    assert {name for name in after if after[name] != before.get(name)} == {"3.npz", "new.npz"}
    found = {name: BoxFeatureStore.open(out)[name].decode() for name in ("3", "5", "1", "new")}
    assert found["3"].key == found["5"].key and found["1"].key == found["new"].key
    assert {name for name, time in times.items() if (out / name).stat().st_mtime_ns == time} == {
        "0.npz", "4.npz", "5.npz", MANIFEST
    }  # fmt: skip
    monkeypatch.setattr(SceneRegionEncoder, "_forward", lambda *_: pytest.fail("an image is encoded again"))
    assert "0 written, 7 found, 0 failed" in regions().out


def test_an_interrupted_run_leaves_whole_files_and_goes_on(
    regions: Capeval, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert regions("--out", folder.parent / "whole").status == 0
    write_whole, written = writing.write_whole, []

    def interrupted(path: Path, *arguments: Any, **keywords: Any) -> None:
        written.append(path.name)
        if len(written) == 4:
            raise KeyboardInterrupt
        write_whole(path, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr("capeval_core.commands.outputs.write_whole", interrupted)
        ran = regions()
    out = folder.parent / "out"
    assert ran.status == 130 and ran.out == ""
    assert ran.err == f"capeval: interrupted; what is in {out} stays: run the same command again to resume\n"
    assert written == [MANIFEST, "0.npz", "1.npz", "2.npz"]
    assert sorted(files_in(out)) == ["0.npz", "1.npz", MANIFEST]
    ran = regions()
    assert ran.status == 0 and "4 written" in ran.out and "2 found" in ran.out
    assert files_in(out) == files_in(folder.parent / "whole")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process of its own")
def test_a_killed_run_goes_on(regions: Capeval, folder: Path) -> None:
    out, calls = folder.parent / "out", []
    process = os.fork()
    if process == 0:  # the run, which dies in the midst of its third file
        fsync = os.fsync

        def killed(file: int) -> None:
            calls.append(file)
            if len(calls) == 7:  # of the manifest, two files, and their names
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(file)

        os.fsync = killed
        signal.alarm(60)  # whatever a fork may hang in
        main(["regions", "--images", str(folder), "--out", str(out), "--weights", "tiny", "--device", "cpu"])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    left = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    assert left == ["0.npz", "1.npz", MANIFEST]
    assert list(out.glob(".*.partial"))
    ran = regions()
    assert ran.status == 0 and "4 written" in ran.out and "2 found" in ran.out
    assert list(BoxFeatureStore.open(out)) == IDS


def test_a_folder_has_regions_of_one_encoder(regions: Capeval, folder: Path) -> None:
    assert regions().status == 0
    out = folder.parent / "out"
    before = files_in(out)
    ran = regions("--selection", "lxmert36", "--dtype", "float16")
    expected = (
        f"capeval: --out {out} has regions of selection bua10_100, dtype float32: choose another folder"
    )
    assert ran.status == 2 and ran.err.startswith(expected)
    manifest = json.loads(before[MANIFEST])
    (out / MANIFEST).write_text(json.dumps({**manifest, "encoder": "./folder@1234", "fingerprint": "1234"}))
    ran = regions()
    assert ran.status == 2 and "has regions of encoder ./folder@1234: choose another folder" in ran.err
    (out / MANIFEST).write_text(json.dumps({**manifest, "encoder": "./folder@1234"}))  # the same, elsewhere
    assert regions().status == 0
    (out / MANIFEST).unlink()
    ran = regions()
    assert ran.status == 2 and f"--out {out} is not empty, and `capeval regions` did not fill it" in ran.err
    assert {name: data for name, data in before.items() if name != MANIFEST} == files_in(out)


def test_a_broken_image_costs_its_file(regions: Capeval, folder: Path) -> None:
    whole = (folder / "1.png").read_bytes()
    (folder / "1.png").write_bytes(whole[:60])
    (folder / "3.png").write_text("no image")
    ran = regions()
    assert ran.status == 0
    assert "4 written" in ran.out and "2 failed" in ran.out
    assert ran.err.splitlines()[0] == "capeval: 2 of 6 images failed:"
    assert "  image of '1': cannot decode" in ran.err and "image of '3': " in ran.err
    assert "1.npz" not in files_in(folder.parent / "out")
    (folder / "1.png").write_bytes(whole)
    assert "1 written" in regions().out
    for path in folder.glob("*.*g"):
        path.write_text("no image")
    ran = regions("--out", folder.parent / "other")
    assert ran.status == 1 and "6 of 6 images failed" in ran.err and "score with" not in ran.out


def test_names_that_collide_are_refused(regions: Capeval, folder: Path) -> None:
    shutil.copy(folder / "1.png", folder / "1.jpeg")
    ran = regions()
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"capeval: {folder}: '1.jpeg' and '1.png' would both be '1.npz': rename one of them, or run for each "
        "in a folder of its own\n"
    )
    assert not (folder.parent / "out").exists()


def test_wrong_arguments(regions: Capeval, capeval: Capeval, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "above" / "below").mkdir(parents=True)
    assert regions().status == 0
    for arguments, message in (
        (["--images", tmp_path / "gone"], "gone: there is no such folder"),
        (["--images", folder / "1.png"], "1.png: is a file, expected a folder of images"),
        (["--images", tmp_path / "none"], "none: holds no images: expected files with the extension .avif, "),
        (["--images", tmp_path / "above"], "above: holds no images, but folders (below): name one of them"),
        (["--out", folder], f"--out {folder} is not empty, and `capeval regions` did not fill it"),
        (["--out", folder / "notes.txt"], "notes.txt is a file: choose a folder"),
        (["--out", folder / "notes.txt" / "x"], "notes.txt/x cannot be made (Not a directory)"),
        (["--weights", tmp_path / "out"], "out is box features already, which need no encoder: pass weights"),
        (["--weights", tmp_path / "none"], "none"),
        (
            ["--selection", "bua"],
            "--selection bua: expected 'bua10_100' or 'lxmert36': did you mean 'bua10_100'?",
        ),
        (["--dtype", "fp16"], "--dtype fp16: expected"),
        (["--batch", "3"], "unknown option --batch"),
    ):
        ran = regions(*arguments)
        assert ran.status == 2 and message in ran.err, ran.err
    ran = capeval("regions")
    assert ran.status == 2 and "the following arguments are required: --images, --out" in ran.err


def test_a_full_disk_is_one_line(regions: Capeval, small_disk: Path) -> None:
    (small_disk / "full").write_bytes(bytes(30_000))
    ran = regions("--out", small_disk / "out")
    assert ran.status == 2 and ran.err.startswith(f"capeval: --out {small_disk / 'out'}")
    assert "cannot be written (No space left on device)" in ran.err
    assert not list((small_disk / "out").glob(".*"))
    assert all(
        isinstance(boxes.decode(), BoxFeatures) for boxes in BoxFeatureStore.open(small_disk / "out").values()
    )


@pytest.mark.parametrize(("flags", "entry"), [((), FASTER_RCNN_VG), (("--detector", "x152"), X152_VG)])
def test_without_weights_the_detectors_own_are_looked_for(
    flags: tuple[str, ...],
    entry: WeightsEntry,
    capeval: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    ran = capeval("regions", "--images", folder, "--out", tmp_path / "out", *flags)
    assert ran.status == 2 and entry.repository in ran.err and entry.original in ran.err
    assert not (tmp_path / "out").exists()
