"""Sources by name, as a user opens them: detectors, segmenters, and errors where they could not be loaded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core import load
from capeval_core.cache import FeatureCache
from capeval_core.cli import main
from capeval_core.inputs.visual import InputImage
from capeval_core.regions import sam as sam_module
from capeval_core.regions.boxes import RectangleRegions, suppress_overlaps
from capeval_core.regions.object_aware import ObjectAwareBoxes
from capeval_core.regions.opening import region_opener
from capeval_core.regions.owlv2 import DETECTOR, Owlv2Boxes
from capeval_core.regions.precomputed import PrecomputedRegions
from capeval_core.regions.regions import Regions
from capeval_core.regions.sam import SEGMENTER, EverythingRegions, ObjectRegions
from capeval_core.regions.source import RegionSource
from capeval_core.weights.folder import WeightsError
from tests.golden import recipe
from tests.regions.conftest import save_owlv2, save_sam
from tests.regions.test_sam import CASE, opened


def plain(image: Image.Image) -> InputImage:
    return InputImage.of(image, "images[0]")


def test_names() -> None:
    assert region_opener("colours")().name == "colours"
    source = region_opener({"a": []})()
    assert isinstance(source, PrecomputedRegions)
    assert region_opener(source)() is source


def test_files_of_masks(tmp_path: Path) -> None:
    (tmp_path / "masks.json").write_text(json.dumps({"a": []}))
    for spec in (tmp_path / "masks.json", str(tmp_path / "masks.json")):
        assert region_opener(spec)().name == "precomputed:masks.json"


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("colors", ValueError, "did you mean 'colours'?"),
        ("objects:", ValueError, "expected 'objects'"),
        ("colours:x", ValueError, "expected 'objects'"),
        (3, TypeError, "a JSON file of masks by image id, or a RegionSource"),
        ("none.json", ValueError, "none.json: there is no such file"),
        ("objects:name", WeightsError, "neither a folder nor a Hub id"),
        ("objects:threshold=", ValueError, "a threshold from 0 to 1, as in 'objects:threshold=0.2'"),
        ("rectangles:threshold=1.5", ValueError, "a threshold from 0 to 1, as in 'rectangles:threshold=0.2'"),
        ("objects:org/name,threshold=nan", ValueError, "a threshold from 0 to 1"),
        ("objects:treshold=0.2", ValueError, "no setting 'treshold': did you mean 'threshold'?"),
        ("everything:threshold=0.2", ValueError, "'everything' has no boxes"),
        ("objects:name,threshold=0.2", WeightsError, "segmenter 'name'"),
        ("everything:a b/c", WeightsError, "neither a folder nor a Hub id"),
    ],
)
def test_unknown_names(spec: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message.replace("?", r"\?")):
        region_opener(spec)()


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch, sam_folder: Path, owlv2_folder: Path) -> None:
    """Tiny models where the Hub's would be."""
    monkeypatch.setattr("capeval_core.regions.sam.SEGMENTER", str(sam_folder))
    monkeypatch.setattr("capeval_core.regions.owlv2.DETECTOR", str(owlv2_folder))


@pytest.mark.usefixtures("defaults")
def test_objects(image: Image.Image, sam_folder: Path) -> None:
    source = region_opener("objects")(device="cpu")
    regions = source.segment(image)
    boxes = source.boxes.find(plain(image), image)  # type: ignore[attr-defined]
    assert regions.size == (100, 160)
    assert len(regions) + regions.dropped == len(boxes) > 5
    assert source.name.startswith("objects:tiny-sam@") and "+tiny-owlv2@" in source.name
    assert (source.segment(image).masks() == regions.masks()).all()
    named = region_opener(f"objects:{sam_folder}")(device="cpu")
    assert named.fingerprint == source.fingerprint


def less_sure(folder: Path, place: Path, by: float) -> Path:
    """A detector whose logits of objectness are lower."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, place)
    tensors = load_file(place / "model.safetensors")
    tensors["objectness_head.dense2.bias"] -= by
    save_file(tensors, place / "model.safetensors")
    return place


@pytest.mark.usefixtures("defaults")
def test_the_threshold_of_boxes(
    image: Image.Image,
    sam_folder: Path,
    owlv2_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    detector = less_sure(owlv2_folder, tmp_path / "owl", by=3.0)
    monkeypatch.setattr("capeval_core.regions.owlv2.DETECTOR", str(detector))

    def scores(spec: str) -> list[float]:
        source: Any = region_opener(spec)(device="cpu")
        return list(source.boxes.find(plain(image), image).scores)

    every = scores("objects:threshold=0")
    assert min(every) < 0.1 < 0.6 < max(every)
    usual = [score for score in every if score >= 0.1]
    assert scores("objects") == scores("objects:threshold=0.1") == scores("rectangles") == usual
    sure = [score for score in every if score >= 0.6]
    for spec in (
        "objects:threshold=0.6",
        f"objects:{sam_folder},threshold=0.6",
        "rectangles:threshold=0.6",
        f"rectangles:{detector},threshold=6e-1",
    ):
        assert scores(spec) == sure, spec
    prints = [region_opener(f"objects{more}")(device="cpu").fingerprint for more in ("", ":threshold=0.6")]
    assert prints[0] != prints[1]


@pytest.mark.parametrize("least", ["0", "1", "1.0", "1e-3"])
def test_thresholds_from_0_to_1_are_taken(least: str) -> None:
    region_opener(f"objects:threshold={least}")


@pytest.mark.usefixtures("defaults")
def test_a_folder_may_be_called_as_a_setting_is(
    image: Image.Image, sam_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threshold=7").symlink_to(sam_folder)
    monkeypatch.chdir(tmp_path)
    named = region_opener("objects:threshold=7")(device="cpu")
    assert named.fingerprint == region_opener("objects")(device="cpu").fingerprint


@pytest.mark.usefixtures("defaults")
def test_an_image_without_objects_has_no_region_and_is_its_own(
    owlv2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "capeval_core.regions.owlv2.DETECTOR", str(less_sure(owlv2_folder, tmp_path / "owl", by=30.0))
    )
    blank = Image.new("RGB", (160, 100), "grey")
    for spec in ("objects", "rectangles"):
        assert len(region_opener(spec)(device="cpu").segment(blank)) == 0
    usual, every = (
        load("hices", weights="tiny", regions=regions, device="cpu", cache=FeatureCache()).score(
            ["a grey wall"], [blank]
        )
        for regions in ("objects", "objects:threshold=0")
    )
    assert every.parts["region_count"][0] > 5  # without a threshold there are regions of nothing
    assert usual.parts["region_count"] == [0]
    assert usual.parts["recall"][0] == pytest.approx(usual.parts["precision"][0], abs=1e-6)  # one and one


@pytest.mark.usefixtures("defaults")
def test_rectangles(image: Image.Image) -> None:
    source = region_opener("rectangles")(device="cpu")
    boxes = source.boxes.find(plain(image), image)  # type: ignore[attr-defined]
    regions = source.segment(image)
    assert len(regions) + regions.dropped == len(boxes)
    assert (np.diff(regions.quality) <= 0).all()
    for mask, (x0, y0, x1, y1) in zip(regions.masks(), regions.boxes, strict=True):
        rows, columns = np.nonzero(mask)
        assert mask.sum() == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert abs(columns.min() - x0) <= 0.5 and abs(rows.max() + 1 - y1) <= 0.5
        assert 0 <= x0 < x1 <= 160 and 0 <= y0 < y1 <= 100


def test_settings_and_weights_change_the_fingerprint(
    sam_folder: Path, owlv2_folder: Path, tmp_path: Path
) -> None:
    def boxes(folder: Path = owlv2_folder, **settings: Any) -> Owlv2Boxes:
        return Owlv2Boxes(folder, device="cpu", **settings)

    variants = [
        boxes(), boxes(threshold=0.2), boxes(dtype="bfloat16"),
        boxes(save_owlv2(tmp_path / "owl", seed=1)),
    ]  # fmt: skip
    sams = [opened(sam_folder), opened(sam_folder, dtype="bfloat16"), opened(save_sam(tmp_path / "sam", 1))]
    prints = [each.fingerprint for each in variants]
    prints += [ObjectRegions(variants[0], sam).fingerprint for sam in sams]
    prints += [EverythingRegions(sam).fingerprint for sam in sams]
    prints.append(RectangleRegions(variants[0]).fingerprint)
    assert len(set(prints)) == len(prints)
    assert boxes().fingerprint == prints[0]


def test_owlv2_boxes_are_those_of_transformers(image: Image.Image, owlv2_folder: Path) -> None:
    """The best box is the one that its own one-shot detection takes as its query."""
    from transformers import Owlv2ForObjectDetection, Owlv2ImageProcessor

    model: Any = Owlv2ForObjectDetection.from_pretrained(owlv2_folder)
    processor: Any = Owlv2ImageProcessor.from_pretrained(owlv2_folder)
    pixels = processor(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        detected = model.image_guided_detection(pixels, query_pixel_values=pixels)
        features = model.image_embedder(pixels)[0].flatten(1, 2)
        _, best, boxes = model.embed_image_query(features, detected.query_image_embeds)
    x, y, width, height = (boxes[0, int(best)] * 160).tolist()
    ours = Owlv2Boxes(owlv2_folder, device="cpu").find(plain(image), image)
    expected = np.clip([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 0, [160, 100] * 2)
    assert np.allclose(ours.corners[0], expected, atol=1e-3)
    assert (np.diff(ours.scores) <= 0).all()


def test_owlv2_limits(image: Image.Image, owlv2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Owlv2Boxes(owlv2_folder, device="cpu").find(plain(image), image)
    with monkeypatch.context() as patched:
        patched.setattr("capeval_core.regions.owlv2.MAX_BOXES", 3)
        few = Owlv2Boxes(owlv2_folder, device="cpu").find(plain(image), image)
    assert (few.corners == everything.corners[:3]).all()
    middle = float(np.median(everything.scores))
    likely = Owlv2Boxes(owlv2_folder, device="cpu", threshold=middle).find(plain(image), image)
    assert len(likely) == (everything.scores >= middle).sum()
    exact = Owlv2Boxes(owlv2_folder, device="cpu", threshold=float(everything.scores[4])).find(
        plain(image), image
    )
    assert exact.scores.tolist() == everything.scores[:5].tolist()  # a box at the threshold stays
    assert len(Owlv2Boxes(owlv2_folder, device="cpu", threshold=1.0).find(plain(image), image)) == 0


def test_overlapping_boxes_by_definition() -> None:
    rng = np.random.default_rng(0)
    low = rng.random((60, 2)) * 20
    corners = np.concatenate([low, low + 5 + rng.random((60, 2)) * 20], axis=1).astype(np.float32)
    scores = (rng.integers(0, 9, 60) / 8).astype(np.float32)

    def overlap(a: np.ndarray, b: np.ndarray) -> float:
        sides = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)
        return float(sides.prod() / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - sides.prod()))

    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if all(overlap(corners[i], corners[j]) <= 0.5 for j in kept):
            kept.append(int(i))
    boxes = suppress_overlaps(corners, scores, 0.5, 12)
    assert (boxes.corners == corners[kept[:12]]).all()


def test_everything(image: Image.Image, sam_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sam_module.GRID, "points_per_crop", 4)
    sam = opened(sam_folder)
    everything = EverythingRegions(sam)
    assert len(everything.segment(image)) == 0  # a random model predicts no good mask
    monkeypatch.setitem(sam_module.GRID, "pred_iou_thresh", -9.0)
    monkeypatch.setitem(sam_module.GRID, "stability_score_thresh", 0.0)
    regions = everything.segment(image)
    assert len(regions) >= 1 and regions.size == (100, 160)
    large = everything.segment(image.resize((640, 400)))
    assert large.size == (400, 640) and len(large) >= 1
    half = EverythingRegions(opened(sam_folder, dtype="bfloat16"))
    assert half.segment(image).size == (100, 160)


def test_the_released_detectors_network() -> None:
    image = Image.new("RGB", (160, 100), (204, 102, 51))
    inputs: list[torch.Tensor] = []

    def network(pixels: torch.Tensor) -> torch.Tensor:
        inputs.append(pixels)
        return torch.tensor([[512.0, 320, 200, 100, 0.9], [512, 320, 202, 100, 0.8], [100, 100, 20, 20, 0.3]])

    boxes = ObjectAwareBoxes(network, fingerprint="x", device="cpu").find(plain(image), image)
    assert inputs[0].shape == (1, 3, 640, 1024)
    assert inputs[0][0, :, 320, 32].tolist() == pytest.approx([0.2, 0.4, 0.8])  # blue first
    assert boxes.corners.tolist() == [pytest.approx([64.375, 42.1875, 95.625, 57.8125])]

    none = ObjectAwareBoxes(lambda _: torch.zeros(5, 5), fingerprint="x", device="cpu")
    assert len(none.find(plain(image), image)) == 0


def test_the_released_detector_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(
        WeightsError, match=r"AGPL-3\.0: `pip install ultralytics`, or take the boxes of OWLv2"
    ):
        ObjectAwareBoxes.from_ultralytics("boxes.safetensors")


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError) as caught:
        region_opener("objects")()
    for part in (
        SEGMENTER,
        "could not be loaded",
        "hf download",
        'regions="colours"',
        'regions="masks.json"',
    ):
        assert part in str(caught.value)
    with pytest.raises(WeightsError, match=f"a/b.* could not be loaded .*The default is {DETECTOR}"):
        region_opener("rectangles:a/b")()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            r"has no model\.safetensors in .*: pass",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "holds a list, expected an object"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "vit"}'), "type 'vit', expected"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
    ],
)
def test_damaged_folders(
    spoil: Any, message: str, sam_folder: Path, owlv2_folder: Path, tmp_path: Path
) -> None:
    for name, folder in (("objects", sam_folder), ("rectangles", owlv2_folder)):
        damaged = shutil.copytree(folder, tmp_path / name)
        spoil(damaged)
        with pytest.raises(WeightsError, match=message):
            region_opener(f"{name}:{damaged}")()


def test_a_checkpoint_is_to_be_converted_first(tmp_path: Path) -> None:
    (tmp_path / "mobile_sam.pt").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"`capeval convert regions .*mobile_sam\.pt --out FOLDER`"):
        region_opener(f"objects:{tmp_path / 'mobile_sam.pt'}")()


def test_converted_weights_serve_where_they_are_meant_to(tmp_path: Path, image: Image.Image) -> None:
    tensors = recipe.state_dict(CASE / "manifest.json", 1)
    torch.save({name: torch.from_numpy(x) for name, x in tensors.items()}, tmp_path / "sam.pth")
    out = str(tmp_path / "made")
    assert main(["convert", "regions", str(tmp_path / "sam.pth"), "--out", out, "--decoder-heads", "2"]) == 0
    source = region_opener(f"everything:{out}")(device="cpu")
    assert source.name.startswith("everything:made@")
    with pytest.raises(WeightsError, match="'sam', expected 'owlv2', such as google/owlv2"):
        region_opener(f"rectangles:{out}")()


def test_missing_tensors_of_the_detector(owlv2_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    damaged = shutil.copytree(owlv2_folder, tmp_path / "owl")
    tensors = load_file(damaged / "model.safetensors")
    del tensors["objectness_head.dense0.weight"]
    save_file(tensors, damaged / "model.safetensors")
    with pytest.raises(WeightsError, match=r"1 tensors are missing, such as objectness_head\.dense0"):
        Owlv2Boxes(damaged, device="cpu")


def test_a_source_of_the_user(image: Image.Image) -> None:
    class Halves(RegionSource):
        name = fingerprint = "halves"

        def find(self, image: InputImage) -> Regions:
            width, height = image.load().size
            left = np.arange(width) < width / 2
            return Regions.of([np.tile(left, (height, 1)), np.tile(~left, (height, 1))])

    source = region_opener(Halves())()
    assert source.segment(image).areas.tolist() == [8000, 8000]
