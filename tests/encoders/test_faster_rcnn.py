"""Faster R-CNN on seeded weights: what a batch, a cache, a colour mode or a margin change, and its rules."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.faster_rcnn import Detections, FasterRcnn
from capeval_core.encoders.faster_rcnn_model import Proposals, build, decoded
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.models.batching import count_forwards
from capeval_core.regions.features import BoxVisual
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.faster_rcnn import RELEASED
from capeval_core.weights.folder import WeightsError
from tests.inputs.photographs import encoded, photograph
from tests.regions.test_suppression import survivors
from tests.support.seeded import faster_rcnn, faster_rcnn_release, write_config

Floats = NDArray[np.float32]
Change = Callable[[dict[str, Any]], Any]
RULES: tuple[Any, ...] = ("bua10_100", "lxmert36")
FULL = {
    "architecture": {
        "layers": [3, 4, 23, 3],
        **{"stem_width": 64, "width": 64, "out_width": 256, "proposal_width": 512, "anchors": 12},
        **{"classes": 1600, "attributes": 400, "class_width": 256, "attribute_width": 512},
    },
    "proposals": {"before_nms": 6000, "after_nms": 300, "overlap": 0.7, "delta_weights": [1.0] * 4},
}
"""The released network."""


def image(seed: int, width: int = 96, height: int = 64) -> InputImage:
    return InputImage.of(photograph(width, height, seed), where=f"images[{seed}]")


def boxes(of: FasterRcnn, images: list[InputImage], **more: Any) -> list[BoxVisual]:
    more.setdefault("cache", FeatureCache(0))
    return list(of.encode_boxes(images, **more))


def same(one: BoxFeatures, other: BoxFeatures) -> bool:
    pairs = ((one.boxes, other.boxes), (one.features, other.features), (one.scores, other.scores))
    return one.size == other.size and all(
        np.array_equal(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None
    )


def altered(change: Change, **tensors: torch.Tensor) -> FasterRcnn:
    """The seeded network with another config or other tensors."""
    found = faster_rcnn_release()
    config = {
        key: dict(part) if isinstance(part, dict) else part
        for key, part in found.config.items()
        if key != "canary"
    }
    change(config)
    return FasterRcnn(config, found.tensors | tensors, device="cpu")


def proposals(count: int, classes: int = 30, seed: int = 0, confident: float = 4.0) -> Proposals:
    """Random boxes within 100 by 60 pixels, whose features are their numbers."""
    random = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=random) * torch.tensor([60.0, 30.0])
    sides = torch.rand(count, 2, generator=random) * 29 + 1
    return Proposals(
        torch.cat([corners, corners + sides], dim=1),
        torch.rand(count, generator=random),
        torch.arange(count, dtype=torch.float32)[:, None].expand(count, 4),
        torch.randn(count, classes + 1, generator=random) * confident,
        torch.randn(count, 12, generator=random),
        torch.randn(count, 4 * classes, generator=random) * 0.1,
    )


def test_the_full_network_has_the_tensors_of_the_release() -> None:
    config = {"architecture": FULL["architecture"]}
    with torch.device("meta"):
        tensors = build(FULL).state_dict()
    assert len(tensors) == 640
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) == 262_181_688
    assert FasterRcnn.describe(config) == FASTER_RCNN_VG.architecture


@pytest.mark.parametrize("rule", RULES)
def test_order_repetitions_and_company_change_nothing(rule: Any) -> None:
    encoder = faster_rcnn()
    images = [image(0), image(1, 50, 90), image(2, 120, 40)]
    alone = [boxes(encoder, [each], selection=rule)[0].load() for each in images]
    order = [2, 0, 0, 1, 2, 0]
    with count_forwards() as count:
        together = boxes(encoder, [images[i] for i in order], selection=rule, batch_size=4)
    assert [count.items, count.batches] == [3, 3]  # equal images once, one at a time
    assert all(same(found.load(), alone[i]) for i, found in zip(order, together, strict=True))
    assert [found.where for found in together] == [images[i].where for i in order]


def test_what_was_found_is_kept_by_rule_and_image(tmp_path: Any) -> None:
    encoder, cache = faster_rcnn(), FeatureCache(folder=tmp_path)
    first = {rule: boxes(encoder, [image(0)], selection=rule, cache=cache)[0] for rule in RULES}
    assert len({found.key for found in first.values()}) == 2
    with count_forwards() as count:
        for rule in RULES:
            again = boxes(encoder, [image(0)], selection=rule, cache=FeatureCache(folder=tmp_path))[0]
            assert same(again.load(), first[rule].load()) and again.key == first[rule].key
    assert count.items == 0
    assert not same(first["bua10_100"].load(), first["lxmert36"].load())


def test_a_rule_makes_a_region_encoder_of_its_own() -> None:
    encoder = faster_rcnn()
    regions = {rule: encoder.selecting(rule) for rule in RULES}
    assert len({encoder.fingerprint, *(each.fingerprint for each in regions.values())}) == 3
    for rule, each in regions.items():
        (found,) = each.encode_boxes([image(0)], cache=FeatureCache(0))
        assert same(found.load(), boxes(encoder, [image(0)], selection=rule)[0].load())
    other: Any = "bua36"
    message = "selection='bua36' is unknown: expected 'bua10_100' or 'lxmert36'"
    for call in (encoder.selecting, lambda rule: encoder.detect(photograph(), rule)):
        with pytest.raises(ValueError, match=message):
            call(other)
    with pytest.raises(ValueError, match=message):
        encoder.encode_boxes([], selection=other)


def test_boxes_lie_in_their_image_best_first() -> None:
    for rule in RULES:
        for width, height in ((96, 64), (31, 90), (300, 12)):
            found = boxes(faster_rcnn(), [image(0, width, height)], selection=rule)[0].load()
            assert found.size == (width, height) and found.features.shape[1] == faster_rcnn().dimension
            assert found.scores is not None and (np.diff(found.scores) <= 0).all()
            assert (found.boxes >= 0).all() and (found.boxes <= [width, height] * 2).all()
            assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()


def test_rounding_moves_no_box_out_of_the_image() -> None:
    width = next(w for w in range(300, 900) if np.float32(w) / np.float32(1067) * np.float32(1067) > w)
    edges = torch.tensor([[0.0, 0.0, 1067.0, 800.0]]).expand(3, 4).clone()
    found = dataclasses.replace(proposals(3), boxes=edges)
    for rule in RULES:
        kept = faster_rcnn().select(found, (800, 1067), (width, 600), rule)
        assert kept.boxes[:, 2].max() <= width


def plain_bua10_100(found: Proposals) -> tuple[list[int], list[float]]:
    """Numbers and confidences of the proposals that are kept, in loops."""
    scores = torch.softmax(found.class_logits, dim=1)[:, :-1].numpy()
    corners = found.boxes.numpy()
    best = [0.0] * len(corners)
    for column in scores.T:
        for index in survivors(corners, column, 0.3):
            best[index] = max(best[index], float(column[index]))
    order = sorted(range(len(best)), key=lambda index: -best[index])
    count = min(100, max(10, sum(each > 0.2 for each in best)))
    return order[:count], [best[index] for index in order[:count]]


@pytest.mark.parametrize(
    ("count", "confident", "kept"),
    [(60, 2.0, range(11, 60)), (90, 0.1, {10}), (6, 4.0, {6}), (1, 0.0, {1}), (150, 60.0, {100})],
)
def test_bua10_100_is_what_plain_loops_keep(count: int, confident: float, kept: Any) -> None:
    classes = 3 if confident > 50 else 30
    network = altered(lambda config: config["architecture"].update(classes=30))
    for seed in range(3):
        found = proposals(count, classes, seed, confident)
        if confident > 50:  # far apart, so that none is suppressed
            steps = torch.arange(count, dtype=torch.float32)[:, None] * torch.tensor([40.0, 0, 40.0, 0])
            found = dataclasses.replace(found, boxes=found.boxes + steps)
        numbers, confidences = plain_bua10_100(found)
        detections = network.select(found, (60, 7000), (14000, 120), "bua10_100")
        assert detections.features[:, 0].tolist() == numbers and len(numbers) in kept
        assert detections.scores.tolist() == pytest.approx(confidences, abs=1e-6)
        corners = found.boxes.numpy()[numbers] * 2  # of the proposals, at twice the size
        assert np.allclose(detections.boxes, corners, atol=1e-3)
        likeliest = found.class_logits[:, :-1].argmax(dim=1).numpy()[numbers]
        assert detections.classes.tolist() == likeliest.tolist()


def test_lxmert36_keeps_what_the_last_threshold_leaves_where_none_leaves_enough() -> None:
    found = proposals(20)
    network = altered(lambda config: config["detections"].update(least=20, most=20, overlaps=[0.1, 0.3]))
    last = altered(lambda config: config["detections"].update(least=1, most=20, overlaps=[0.3]))
    mine, theirs = (each.select(found, (60, 100), (100, 60), "lxmert36") for each in (network, last))
    assert 1 < len(mine) < 20
    assert np.array_equal(mine.boxes, theirs.boxes) and np.array_equal(mine.features, theirs.features)


def test_without_any_box_there_is_an_error_in_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = faster_rcnn()
    clean = boxes(encoder, [image(1)])[0].load()
    proper = type(encoder.network).propose

    def nothing_in_large_ones(network: Any, logits: Any, deltas: Any, size: tuple[int, int]) -> Any:
        if size[1] == 208:  # the second image is wider than high
            logits, deltas = logits[..., :0, :0], deltas[..., :0, :0]
        return proper(network, logits, deltas, size)

    monkeypatch.setattr(type(encoder.network), "propose", nothing_in_large_ones)
    first, second, third = boxes(encoder, [image(1), image(2, 120, 40), image(1)])
    assert same(first.load(), clean) and same(third.load(), clean)
    assert second.error == f"images[2]: the detector found no box in {image(2, 120, 40).name}"
    with pytest.raises(ImageError, match="found no box"):
        second.load()


def test_numbers_that_overflow_are_an_error_in_the_row() -> None:
    weight = faster_rcnn_release().tensors["res5.2.conv3.norm.bias"]
    network = altered(lambda config: None, **{"res5.2.conv3.norm.bias": torch.full_like(weight, 3e38)})
    (found,) = boxes(network, [image(0)])
    assert found.error is not None and "are not finite: pass dtype=" in found.error


def test_images_that_cannot_be_used_cost_their_rows() -> None:
    broken = InputImage.of(encoded(photograph())[:300], where="images[1]")
    pixel = InputImage.of(Image.new("RGB", (1, 1)), where="images[2]")
    first, second, third, last = boxes(faster_rcnn(), [image(0), broken, pixel, image(0)])
    assert same(first.load(), last.load())
    assert second.error is not None and "images[1]" in second.error and "truncated" in second.error
    assert third.error is not None and "1x1 pixels" in third.error


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (3000, 1), (1, 3000), (400, 3)])
def test_the_smallest_and_the_narrowest_images_run(size: tuple[int, int]) -> None:
    found = faster_rcnn().detect(photograph(*size))
    assert found.size == size and len(found) >= 1
    assert np.isfinite(found.features).all() and (found.boxes <= [*size, *size]).all()


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P", "LA", "1", "I;16"])
def test_other_colour_modes_are_converted_to_rgb(mode: str) -> None:
    grey = mode in ("L", "LA", "1", "I;16")
    drawn = photograph().convert("L" if grey else "RGB").convert(mode)
    found = boxes(faster_rcnn(), [InputImage.of(drawn)])[0].load()
    assert same(found, boxes(faster_rcnn(), [InputImage.of(drawn.convert("RGB"))])[0].load())


def test_blue_comes_first_less_its_mean() -> None:
    pixels = faster_rcnn().preprocess(Image.new("RGB", (20, 10), (10, 20, 30)))
    mean = torch.tensor(RELEASED["model.pixel_mean"])
    assert torch.allclose(pixels[:, 0, 0], torch.tensor([30.0, 20.0, 10.0]) - mean)
    assert pixels.shape == (3, 104, 208)  # the longer side is bounded


def test_a_margin_would_change_features() -> None:
    """Why images run one at a time."""
    encoder, pixels = faster_rcnn(), faster_rcnn().preprocess(photograph())
    wide = torch.nn.functional.pad(pixels, (0, 40))
    size = (pixels.shape[1], pixels.shape[2])
    bare, with_margin = encoder.propose(pixels), encoder.propose(wide, size)
    assert not torch.equal(bare.features[:5], with_margin.features[:5])
    assert (with_margin.boxes[:, 2] <= size[1]).all()


def test_a_box_grows_by_a_bounded_factor() -> None:
    box, deltas = torch.tensor([[10.0, 10.0, 12.0, 14.0]]), torch.tensor([[0.0, 0.0, 50.0, -50.0]])
    grown = decoded(deltas, box, (1, 1, 1, 1))
    assert torch.allclose(grown, torch.tensor([[11 - 62.5, 12.0, 11 + 62.5, 12.0]]))


def test_only_the_best_anchors_are_decoded() -> None:
    network = altered(lambda config: config["proposals"].update(before_nms=5)).network
    with torch.inference_mode():
        pixels = faster_rcnn().preprocess(photograph())
        logits, deltas = network.head(network.feature_map(pixels[None]))
        _, scores = network.propose(logits, deltas, (pixels.shape[1], pixels.shape[2]))
    best = logits.flatten().topk(5).values
    assert 1 <= len(scores) <= 5 and torch.isin(scores, best).all() and scores[0] == best[0]


def test_features_of_many_proposals_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    network, pixels = faster_rcnn().network, faster_rcnn().preprocess(photograph())
    found = faster_rcnn().propose(pixels)
    assert len(found.boxes) > 14
    monkeypatch.setattr("capeval_core.encoders.faster_rcnn_model._AT_A_TIME", 7)
    with torch.inference_mode():
        parts = network.box_features(network.feature_map(pixels[None]), found.boxes)
    assert torch.allclose(parts, found.features, atol=1e-5)


def test_half_precision_finds_about_the_same() -> None:
    whole = faster_rcnn().propose(faster_rcnn().preprocess(photograph()))
    for dtype, tolerance in (("bfloat16", 0.05), ("float16", 0.01)):
        encoder = faster_rcnn(dtype)
        network = encoder.network
        with torch.inference_mode():
            pixels = encoder.preprocess(photograph())[None]
            map_, exact = network.feature_map(pixels), faster_rcnn().network.feature_map(pixels)
            near = network.box_features(map_, whole.boxes)
        assert map_.dtype is torch.float32 and not torch.equal(map_, exact)
        assert float((near - whole.features).abs().max()) < tolerance * float(whole.features.max())
        found = encoder.detect(photograph())
        assert isinstance(found, Detections) and np.isfinite(found.features).all()
        assert encoder.network.predictor.cls_score.weight.dtype is torch.float32
        assert encoder._key("lxmert36", "x") != faster_rcnn()._key("lxmert36", "x")


@pytest.mark.parametrize("name", [
    "backbone.stem.conv1.weight", "backbone.res3.1.conv2.weight", "backbone.res4.5.conv3.norm.running_var",
    "res5.1.conv2.weight", "head.conv.weight", "head.objectness_logits.weight", "head.anchor_deltas.bias",
    "predictor.cls_score.weight", "predictor.bbox_pred.weight", "predictor.cls_embedding.weight",
    "predictor.fc_attr.weight", "predictor.attr_score.bias",
])  # fmt: skip
def test_the_canary_shows_any_change_of_the_weights(name: str) -> None:
    tensor = faster_rcnn_release().tensors[name]
    random = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0))
    other = altered(lambda config: None, **{name: tensor * (0.3 + random)})
    assert np.abs(other.canary() - faster_rcnn().canary()).max() > 1e-4


def test_the_canary_shows_other_means_and_survives_half_precision() -> None:
    other = altered(lambda config: config["preprocessing"].update(mean=[122.7717, 115.9465, 102.9801]))
    exact = faster_rcnn().canary()
    assert np.abs(other.canary() - exact).max() > 1e-4
    assert np.abs(faster_rcnn("bfloat16").canary() - exact).max() < 5e-2
    assert np.abs(faster_rcnn("float16").canary() - exact).max() < 1e-2


def test_weights_of_another_network_are_refused(seeded_weights: Any) -> None:
    with pytest.raises(WeightsError, match="weights of encoder 'clip', expected 'faster_rcnn'"):
        FasterRcnn.from_pretrained(seeded_weights, device="cpu")
    with pytest.raises(WeightsError, match=r"a file: convert it with `capeval convert faster-rcnn "):
        FasterRcnn.from_pretrained(__file__)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("architecture", {"layers": [3, 4, 6]}, "architecture.layers is [3, 4, 6], expected four whole"),
        ("architecture", {"classes": None}, "architecture.classes is None, expected a whole number from 1"),
        ("architecture", {"heads": 3}, "architecture has 'heads', which is not known here"),
        ("preprocessing", {"shortest_side": 2000}, "shortest_side is above preprocessing.longest_side"),
        ("preprocessing", {"std": [1, 1, 0]}, "preprocessing.std is [1, 1, 0], expected three numbers"),
        ("proposals", {"overlap": 1.5}, "proposals.overlap is 1.5, expected a number above 0, at most 1"),
        ("proposals", {"delta_weights": [1, 1]}, "proposals.delta_weights is [1, 1], expected four numbers"),
        ("detections", {"overlaps": []}, "detections.overlaps is [], expected numbers above 0"),
        ("detections", {"least": 40}, "detections.least is 40, but detections.most is 12"),
        ("detections", {"most": True}, "detections.most is True, expected a whole number from 1 to 1,000"),
    ],
)
def test_wrong_configs_are_refused_by_name(
    part: str, value: dict[str, Any], message: str, tmp_path: Any
) -> None:
    faster_rcnn().save_pretrained(tmp_path / "w")
    config = json.loads((tmp_path / "w" / "config.json").read_text())
    write_config(tmp_path / "w", {**config, part: {**config[part], **value}})
    with pytest.raises(WeightsError) as caught:
        FasterRcnn.from_pretrained(tmp_path / "w", device="cpu")
    assert message in str(caught.value) and "weights 'w'" in str(caught.value)
