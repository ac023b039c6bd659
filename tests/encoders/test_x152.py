"""The ResNeXt FPN detector: resizing, levels, what is kept, the engine, configs and the canary."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.x152 import X152, resized_by, scale_of, with_margin
from capeval_core.encoders.x152_model import Proposals, level_of
from capeval_core.inputs.visual import InputImage
from capeval_core.models.batching import count_forwards
from capeval_core.regions.features import RegionEncoder
from capeval_core.scores.box_source import box_source_opener
from capeval_core.weights.folder import WeightsError
from tests.support.seeded import X152_CONFIG as CONFIG
from tests.support.seeded import x152 as network
from tests.support.seeded import x152_tensors as tensors


def drawn(width: int = 90, height: int = 60, seed: int = 0, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height)).convert(mode)


def encode(*images: Image.Image, encoder: X152 | None = None, cache: FeatureCache | None = None) -> list[Any]:
    inputs = [InputImage.of(image, f"images[{i}]") for i, image in enumerate(images)]
    return list((encoder or network()).encode_boxes(inputs, cache=cache or FeatureCache()))


@pytest.mark.parametrize("scale", [1.28, 0.731, 2.0, 1.0, 1 / 3])
def test_resizing_is_linear_between_the_two_nearest_pixels(scale: float) -> None:
    pixels = np.random.default_rng(0).normal(0, 50, (11, 17, 3)).astype(np.float32)
    found = resized_by(pixels, scale)
    assert found.shape == (round(11 * scale), round(17 * scale), 3)
    for row in range(found.shape[0]):
        for column in range(found.shape[1]):
            y, x = (max((place + 0.5) / scale - 0.5, 0) for place in (row, column))
            top, left = min(int(y), 10), min(int(x), 16)
            down, right = min(top + 1, 10), min(left + 1, 16)
            a, b = min(y, 10) - top, min(x, 16) - left
            upper = pixels[top, left] * (1 - b) + pixels[top, right] * b
            lower = pixels[down, left] * (1 - b) + pixels[down, right] * b
            assert found[row, column] == pytest.approx(upper * (1 - a) + lower * a, abs=1e-3)


def test_resizing_is_torchs_by_the_scale_itself() -> None:
    pixels = np.random.default_rng(1).normal(0, 50, (50, 80, 3)).astype(np.float32)
    found = resized_by(pixels, 1.26)  # 63 by 100.8, which torch rounds down
    planes = torch.from_numpy(pixels.transpose(2, 0, 1))[None]
    theirs = functional.interpolate(planes, scale_factor=1.26, mode="bilinear", recompute_scale_factor=False)
    np.testing.assert_allclose(found[:, :100].transpose(2, 0, 1), theirs[0], atol=2e-3)


def test_scales_and_margins() -> None:
    assert scale_of((1000, 500), 800, 1333) == 1.333
    assert scale_of((833, 500), 800, 1333) == 1.6
    assert scale_of((1000, 600), 800, 1333) == 800 / 600  # 1333.3 rounds to 1333, which is no more
    assert scale_of((500, 834), 800, 1333) == 1333 / 834
    assert with_margin(torch.ones(3, 33, 64)).shape == (3, 64, 64)
    assert with_margin(torch.ones(3, 33, 64)).sum() == 3 * 33 * 64


def test_levels_count_a_pixel_more_than_the_difference() -> None:
    boxes = torch.tensor([[0.0, 0, 110, 111], [0, 0, 111, 111], [0, 0, 5000, 5000], [7, 7, 7, 7]])
    assert level_of(boxes).tolist() == [0, 1, 3, 0]


def test_pixels_are_blue_first_less_the_mean_then_resized() -> None:
    image = Image.new("RGB", (90, 60), (10, 20, 30))
    pixels, scale = network().preprocess(image)
    assert scale == 96 / 90 and pixels.shape == (3, 64, 96)
    assert pixels[:, 0, 0].tolist() == pytest.approx([30 - 102.9801, 20 - 115.9465, 10 - 122.7717], abs=1e-4)
    opaque, transparent = (network().preprocess(drawn(mode=mode))[0] for mode in ("RGB", "RGBA"))
    assert torch.equal(opaque, transparent)
    grey, _ = network().preprocess(drawn(mode="L"))
    assert torch.allclose(grey[0] + 102.9801, grey[2] + 122.7717, atol=1e-3)


def test_what_is_kept_is_the_most_confident_proposals() -> None:
    encoder, image = network(), drawn()
    pixels, scale = encoder.preprocess(image)
    found, kept = encoder.propose(pixels), encoder.detect(image)
    assert len(kept) == 8 < len(found.boxes) <= 40
    assert (np.diff(kept.scores) <= 0).all() and kept.scores[0] > 0
    assert (found.objectness.diff() <= 0).all()
    boxes = found.boxes.numpy() / np.float32(scale)
    for box, feature, probabilities in zip(kept.boxes, kept.features, kept.class_scores, strict=True):
        (row,) = np.flatnonzero((boxes == box).all(axis=1) & (found.features.numpy() == feature).all(axis=1))
        logits = found.class_logits[row].double()
        np.testing.assert_allclose(probabilities, torch.softmax(logits, 0), atol=1e-6)
    assert kept.classes.tolist() == kept.class_scores[:, 1:].argmax(axis=1).tolist()


def test_proposals_of_a_level_do_not_overlap_and_stay_in_the_padded_input() -> None:
    encoder = network()
    pixels, _ = encoder.preprocess(drawn(100, 70))
    maps = encoder.network.feature_maps(pixels[None])
    assert [map_.shape[2:] for map_ in maps] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    for level, map_ in enumerate(maps):
        boxes, objectness = encoder.network._propose({level: map_}, (64, 96))[0]
        assert 0 < len(boxes) <= 20 and len(objectness) == len(boxes)
        assert (boxes >= 0).all() and (boxes[:, 2] <= 95).all() and (boxes[:, 3] <= 63).all()
        x0, y0, x1, y1 = boxes.unbind(1)
        width = (x1[:, None].minimum(x1) - x0[:, None].maximum(x0) + 1).clamp(min=0)
        height = (y1[:, None].minimum(y1) - y0[:, None].maximum(y0) + 1).clamp(min=0)
        area = (x1 - x0 + 1) * (y1 - y0 + 1)
        overlap = width * height / (area[:, None] + area - width * height)
        assert (overlap.fill_diagonal_(0) < 0.7).all()


def test_proposals_are_the_best_of_all_levels() -> None:
    encoder = network()
    pixels, _ = encoder.preprocess(drawn(100, 70))
    maps = encoder.network.feature_maps(pixels[None])
    of_levels = [encoder.network._propose({level: map_}, (64, 96))[0][1] for level, map_ in enumerate(maps)]
    best = torch.cat(of_levels).sort(descending=True).values[:40]
    assert len(torch.cat(of_levels)) > 40 and not torch.equal(torch.cat(of_levels)[:40], best)
    assert torch.equal(encoder.propose(pixels).objectness, best)


def test_proposals_that_share_exactly_the_bound_suppress_each_other() -> None:
    config, changed = deepcopy(CONFIG), dict(tensors())
    config["proposals"]["overlap"] = 0.5
    changed["head.anchors"] = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 4]]).repeat(5, 1, 1)  # 50 of 100 pixels
    for name in ("objectness_logits", "anchor_deltas"):
        for kind in ("weight", "bias"):
            changed[f"head.{name}.{kind}"] = torch.zeros_like(changed[f"head.{name}.{kind}"])
    model = X152(config, changed, device="cpu").network
    boxes, objectness = model._propose({4: torch.zeros(1, 6, 1, 1)}, (64, 64))[0]
    assert boxes.tolist() == [[0, 0, 9, 9]] and objectness.tolist() == [0.5]


def test_kept_boxes_are_suppressed_with_a_pixel_more_and_at_the_bound() -> None:
    boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 4], [0, 0, 9, 3]])
    logits = torch.zeros(3, 6)
    logits[:, 1:] = torch.tensor([3.0, 2, 1])[:, None]
    found = Proposals(boxes, torch.ones(3), torch.eye(3), torch.eye(3), logits)
    kept = network().select(found, 1.0, (40, 40))
    assert kept.features.argmax(axis=1).tolist() == [0, 2, 1]  # 0.5 is enough, and 0.4 is not
    assert np.count_nonzero(kept.scores) == 2


def test_the_engine_gives_what_detect_gives_and_encodes_once() -> None:
    first, second = drawn(seed=1), drawn(40, 80, seed=2)
    cache = FeatureCache()
    with count_forwards() as count:
        visuals = encode(first, second, first, cache=cache)
        assert encode(second, cache=cache)[0].packed_key == visuals[1].packed_key
    assert (count.items, count.batches) == (2, 2)
    for visual, image in zip(visuals, (first, second, first), strict=True):
        kept, found = network().detect(image), visual.load()
        assert found.size == image.size == kept.size
        for ours, theirs in (
            (found.boxes, kept.boxes),
            (found.features, kept.features),
            (found.scores, kept.scores),
        ):
            assert np.array_equal(ours, theirs)


def test_a_damaged_image_costs_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    inputs = [InputImage.of(tmp_path / "a.png", "images[0]"), InputImage.of(drawn(), "images[1]")]
    broken, whole = network().encode_boxes(inputs, cache=FeatureCache())
    assert "images[0]" in str(broken.error) and whole.error is None


def test_strips_have_boxes() -> None:
    for size in ((400, 2), (2, 2), (2, 300)):
        (visual,) = encode(drawn(*size))
        assert len(visual.load()) > 0


def test_numbers_that_overflow_are_an_error_of_the_image() -> None:
    changed = {
        **tensors(),
        "fc6.bias": tensors()["fc6.bias"] + 3e38,
        "fc6.weight": tensors()["fc6.weight"] * 3e37,
    }
    (visual,) = encode(drawn(), encoder=X152(CONFIG, changed, device="cpu"))
    assert 'not finite: pass dtype="float32"' in str(visual.error)


def test_lower_precision_rounds_the_convolutions_only() -> None:
    exact, rounded = network(), network("bfloat16")
    assert rounded.network.body["layer2"][0].conv2.weight.dtype == torch.bfloat16
    assert rounded.network.fc6.weight.dtype == rounded.network.head.conv.weight.dtype == torch.float32
    pixels, _ = exact.preprocess(drawn())
    ours, theirs = (each.network.feature_maps(pixels[None])[0] for each in (rounded, exact))
    assert 0 < float((ours - theirs).abs().max()) < 0.1 * float(theirs.abs().max())
    assert encode(drawn(), encoder=rounded)[0].error is None


def test_a_saved_folder_opens_as_a_region_encoder(tmp_path: Path) -> None:
    network().save_pretrained(tmp_path / "weights")
    opened = X152.from_pretrained(tmp_path / "weights", device="cpu")
    assert opened.dimension == 10 and isinstance(opened, RegionEncoder)
    source = box_source_opener(tmp_path / "weights")(selection="bua10_100", device="cpu", dtype="float32")
    assert source.encoder is opened
    ours, theirs = (encode(drawn(), encoder=each)[0].load() for each in (opened, network()))
    assert np.array_equal(ours.features, theirs.features)


def test_the_canary_knows_every_layer() -> None:
    expected = network().canary()
    assert expected.shape == (8, 3)
    layers = {
        name: t for name, t in tensors().items() if name.endswith(("weight", "anchors")) and "bn2" not in name
    }
    for name, tensor in layers.items():
        turned = tensor.flip(0) if tensor.ndim > 1 else tensor * torch.linspace(0.2, 3, len(tensor))
        other = X152(CONFIG, {**tensors(), name: turned}, device="cpu")
        if name == "head.anchors":  # no outputs of the network, but where they are
            assert not np.array_equal(encode(drawn(), encoder=other)[0].packed, encode(drawn())[0].packed)
        else:
            assert np.abs(other.canary() - expected).max() > 1e-4, name


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("architecture", "groups", 0, "architecture.groups is 0, expected a whole number from 1 to 65,536"),
        ("architecture", "groups", 3, "architecture.width is 4, which 3 groups of blocks with out_width 8"),
        (
            "architecture",
            "layers",
            [1, 1, 1],
            "architecture.layers is [1, 1, 1], expected four whole numbers",
        ),
        ("preprocessing", "shortest_side", 97, "preprocessing.shortest_side is above"),
        ("preprocessing", "mean", [1, 2], "preprocessing.mean is [1, 2], expected three numbers"),
        ("proposals", "most", 10_001, "proposals.most is 10001, expected a whole number from 1 to 10,000"),
        ("proposals", "overlap", 0, "proposals.overlap is 0, expected a number above 0, at most 1"),
        ("proposals", "delta_weights", [0] * 4, "proposals.delta_weights is [0, 0, 0, 0], expected four"),
        ("detections", "overlap", "x", "detections.overlap is 'x', expected a number above 0, at most 1"),
        ("detections", "threshold", -0.1, "detections.threshold is -0.1, expected a number from 0 to 1"),
        ("detections", "threshold", None, "detections.threshold is None"),
        ("detections", "least", 10, "detections has 'least', which is not known here"),
        ("detections", "most", True, "detections.most is True, expected a whole number from 1 to 1,000"),
    ],
)
def test_configs_that_are_wrong(section: str, name: str, value: Any, message: str) -> None:
    config = deepcopy(CONFIG)
    config[section][name] = value
    problem, *others = X152.config_problems(config)
    assert others == []
    assert message in problem
    assert X152.config_problems(CONFIG) == []


def test_a_wrong_folder_is_refused_before_tensors_are_read(tmp_path: Path) -> None:
    config = deepcopy(CONFIG)
    del config["proposals"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(
        WeightsError, match="proposals is None, expected an object: convert the weights again"
    ):
        X152.from_pretrained(tmp_path)
