"""Faster R-CNN's checkpoint and its config.yaml, whole and broken, to a folder and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from capeval_core.cli import main
from capeval_core.encoders.faster_rcnn import FasterRcnn
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.conversion import Release
from capeval_core.weights.faster_rcnn import FIXED, RELEASED
from tests.golden.frcnn_vg_tiny import write_checkpoint
from tests.support.seeded import CASES

Tensors = dict[str, torch.Tensor]
Change = Callable[[Any], Any]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(CASES / "frcnn-vg-tiny", tmp_path)


@pytest.fixture
def tensors(checkpoint: Path) -> Tensors:
    content: Tensors = torch.load(checkpoint, weights_only=True)
    return content


def written(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def same(one: Release, other: Release) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(one.tensors[name], tensor) for name, tensor in other.tensors.items()
    )


def test_every_tensor_comes_over_as_it_is(checkpoint: Path, tensors: Tensors) -> None:
    release = FasterRcnn.convert(checkpoint)
    assert len(release.tensors) == len(tensors) == 334
    left = {id(tensor): name for name, tensor in release.tensors.items()}
    for name, tensor in tensors.items():
        own = name.replace("roi_heads.res5", "res5").replace("roi_heads.box_predictor", "predictor")
        own = own.replace("proposal_generator.rpn_head", "head")
        own = own.replace("proposal_generator.anchor_generator.cell_anchors.0", "head.anchors")
        assert torch.equal(release.tensors[own], tensor), name
        del left[id(release.tensors[own])]
    assert not left
    json.dumps(release.config)


def test_the_config_has_what_the_yaml_says(checkpoint: Path) -> None:
    config = FasterRcnn.convert(checkpoint).config
    assert config["architecture"] == {
        "layers": [3, 4, 6, 3],
        **{"stem_width": 8, "width": 8, "out_width": 16, "proposal_width": 24, "anchors": 12},
        **{"classes": 30, "attributes": 11, "class_width": 16, "attribute_width": 32},
    }
    sides = {"shortest_side": 128, "longest_side": 208}
    mean = [102.9801, 115.9465, 122.7717]
    assert config["preprocessing"] == {**sides, "mean": mean, "std": [1.0, 1.0, 1.0]}
    weights = [1.0, 1.0, 1.0, 1.0]
    assert config["proposals"] == {
        **{"before_nms": 400, "after_nms": 48, "overlap": 0.7, "delta_weights": weights}
    }
    detections = {"delta_weights": [10.0, 10.0, 5.0, 5.0], "overlaps": [0.5, 0.6, 0.7]}
    assert config["detections"] == {**detections, "least": 12, "most": 12}
    source = config["source"]
    assert [source["file"], source["beside"][0]["file"]] == ["pytorch_model.bin", "config.yaml"]
    assert "sizes, thresholds and means: of config.yaml" in source["notes"]


def test_without_a_yaml_the_released_values_hold(checkpoint: Path) -> None:
    text = (checkpoint.parent / "config.yaml").rename(checkpoint.parent / "other.yaml").read_text()
    release = FasterRcnn.convert(checkpoint)
    assert "sizes, thresholds and means: as released, since there is no config.yaml" in release.notes
    assert release.config["preprocessing"]["shortest_side"] == 800
    assert release.config["proposals"]["after_nms"] == 300
    assert release.config["detections"]["most"] == 36
    given = FasterRcnn.convert(checkpoint, release_config=checkpoint.parent / "other.yaml")
    assert given.config["preprocessing"]["shortest_side"] == json.loads(text)["input"]["min_size_test"]


def test_the_released_values_are_those_of_the_full_configuration() -> None:
    """The case's config.yaml is the full one but for these sizes."""
    content = json.loads((CASES / "frcnn-vg-tiny" / "config.json").read_text())
    smaller = {name for name in RELEASED if name.startswith(("input.", "rpn.p")) or "_detections" in name}
    for name in {*RELEASED, *FIXED} - smaller:
        value = content
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        assert value == {**RELEASED, **FIXED}[name], name


def test_a_folder_comes_of_it_and_gives_the_same_back(checkpoint: Path, tmp_path: Path) -> None:
    release = FasterRcnn.convert(checkpoint)
    FasterRcnn(release.config, release.tensors, device="cpu").save_pretrained(tmp_path / "w")
    stored = load_file(tmp_path / "w" / "model.safetensors")
    assert stored.keys() == release.tensors.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in release.tensors.items())
    opened = FasterRcnn.from_pretrained(tmp_path / "w", device="cpu")
    assert opened.network.training is False
    assert opened.config["detections"] == release.config["detections"]


@pytest.mark.parametrize("wrap", [
    lambda t: {"model": t, "iteration": 3},
    lambda t: {"state_dict": {f"module.{name}": tensor for name, tensor in t.items()}},
    lambda t: {name: tensor for name, tensor in t.items() if "num_batches" not in name},
])  # fmt: skip
def test_wrappings(wrap: Change, checkpoint: Path, tensors: Tensors) -> None:
    plain = FasterRcnn.convert(checkpoint)
    assert same(FasterRcnn.convert(written(checkpoint, wrap(tensors))), plain)


def test_half_precision_is_widened(checkpoint: Path, tensors: Tensors) -> None:
    halves = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    release = FasterRcnn.convert(written(checkpoint, halves))
    assert "float16 tensors were stored as float32" in release.notes
    assert release.tensors["head.anchors"].dtype is torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("roi_heads.res5.0.conv1.weight"), "1 tensors are missing: 'res5.0.conv1.weight'"),
        (
            lambda t: t.pop("proposal_generator.anchor_generator.cell_anchors.0"),
            "1 tensors are missing: 'head.anchors'",
        ),
        (lambda t: t.pop("roi_heads.box_predictor.attr_score.weight"), "attr_score.weight is not in the"),
        (lambda t: t.pop("backbone.stem.conv1.weight"), "no Faster R-CNN with attributes: expected backbone"),
        (lambda t: t.update(fpn=torch.zeros(2)), "1 tensors are not part of the architecture: 'fpn'"),
        (
            lambda t: t.update({"roi_heads.box_predictor.bbox_pred.weight": torch.zeros(4, 128)}),
            "'predictor.bbox_pred.weight (4, 128) instead of (120, 128)'",
        ),
        (
            lambda t: t.update({"backbone.res2.0.conv1.weight": torch.zeros(8, 8)}),
            "backbone.res2.0.conv1.weight has shape (8, 8): expected 4 dimensions",
        ),
        (lambda t: t["backbone.stem.conv1.weight"].fill_(float("nan")), "NaN or infinite"),
        (lambda t: t.update({"other.backbone.stem.conv1.weight": torch.zeros(1)}), "several models"),
    ],
)
def test_broken_checkpoints_are_refused(
    change: Change, message: str, checkpoint: Path, tensors: Tensors
) -> None:
    change(tensors)
    with pytest.raises(ValueError) as caught:
        FasterRcnn.convert(written(checkpoint, tensors))
    assert message in str(caught.value) and str(checkpoint) in str(caught.value)


def test_what_would_run_code_is_refused(checkpoint: Path) -> None:
    written(checkpoint, {"model": Path("x")})
    with pytest.raises(ValueError, match="reading it would run code"):
        FasterRcnn.convert(checkpoint)


def put(name: str, value: Any) -> Change:
    """A change of a setting with a dotted name; `...` takes it out."""

    def change(content: Any) -> None:
        *parts, last = name.split(".")
        for part in parts:
            content = content[part]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return change


BOMB: list[Any] = ["x"] * 8
"""A list whose text would take all memory, and whose YAML, with aliases, is short."""
for _ in range(20):
    BOMB = [BOMB] * 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("rpn.nms_thresh", ...), "rpn.nms_thresh is missing: pass the one that lies beside"),
        (put("max_detections", ...), "max_detections is missing"),
        (put("resnets.stride_in_1x1", False), "resnets.stride_in_1x1 is False, but only True is known"),
        (put("input.format", "RGB"), "input.format is 'RGB', but only 'BGR' is known"),
        (put("input.format", BOMB), "input.format is a list of length 8, expected a number, a short text"),
        (put("model.pixel_mean", BOMB), "model.pixel_mean is a list of length 8"),
        (put("model.pixel_mean", {"a": 1}), "model.pixel_mean is a dict of length 1"),
        (put("input.format", "x" * 101), "input.format is a str of length 101"),
        (put("roi_box_head.res5halve", True), "roi_box_head.res5halve is True"),
        (put("anchor_generator.offset", 0.5), "anchor_generator.offset is 0.5"),
        (put("input.min_size_test", "large"), "preprocessing.shortest_side is 'large', expected a whole"),
        (put("min_detections", 100), "detections.least is 100, but detections.most is 12"),
        (put("model.pixel_std", [1, 1]), "preprocessing.std is [1, 1], expected three numbers"),
    ],
)
def test_wrong_settings_are_refused(change: Change, message: str, checkpoint: Path) -> None:
    settings = checkpoint.parent / "config.yaml"
    content = yaml.safe_load(settings.read_text())
    change(content)
    settings.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError) as caught:
        FasterRcnn.convert(checkpoint)
    assert message in str(caught.value) and "config.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["a: [", "- 1\n- 2", "just words", "", "!!python/object/apply:os.getcwd []", "a: " + "x" * (1 << 21)],
)
def test_what_is_no_yaml_of_a_release_is_refused(text: str, checkpoint: Path) -> None:
    settings = checkpoint.parent / "config.yaml"
    settings.write_text(text)
    with pytest.raises(ValueError) as caught:
        FasterRcnn.convert(checkpoint)
    assert str(settings) in str(caught.value) and len(str(caught.value)) < 1000


def test_a_missing_file_of_settings_is_refused_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"release_config='.*none\.yaml' is no file: pass the config\.yaml"):
        FasterRcnn.convert(tmp_path / "nowhere.bin", release_config=tmp_path / "none.yaml")


def test_the_catalogue_knows_the_release_by_its_folder(checkpoint: Path) -> None:
    """Many models are called pytorch_model.bin."""
    source = FasterRcnn.convert(checkpoint).config["source"]
    assert (source["url"], source["licence"]) == (None, "not stated by the original")
    folder = checkpoint.parent / "frcnn-vg-finetuned"
    folder.mkdir()
    source = FasterRcnn.convert(write_checkpoint(CASES / "frcnn-vg-tiny", folder)).config["source"]
    assert (source["url"], source["licence"]) == (FASTER_RCNN_VG.original, "Apache-2.0")


def test_the_command_line(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / FASTER_RCNN_VG.folder
    arguments = ["convert", "faster-rcnn", str(checkpoint), "--out", str(out)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "Faster R-CNN, ResNet 3-4-6-3, width 8; 30 classes, 11 attributes; 128" in captured.out
    assert "images --regions" in captured.out
    assert "is not the released file" in captured.err  # by the name of the folder
    assert FasterRcnn.from_pretrained(out, device="cpu").config["detections"]["most"] == 12
    none = str(tmp_path / "none.yaml")
    assert main([*arguments[:-1], str(tmp_path / "x"), "--release-config", none]) == 2
    assert "--release-config" in capsys.readouterr().err
