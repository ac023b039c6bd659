"""The released checkpoint of the ResNeXt FPN detector: names, what is left out, and its file of settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capeval_core.encoders.x152 import X152
from capeval_core.weights.catalogue import X152_VG
from tests.support.seeded import X152_CONFIG, x152_checkpoint, x152_tensors

SETTINGS = """
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  RPN:
    USE_FPN: True
    ANCHOR_STRIDE: (4, 8, 16, 32, 64)
    PRE_NMS_TOP_N_TEST: 60
    POST_NMS_TOP_N_TEST: 20
    FPN_POST_NMS_TOP_N_TEST: 40
  RESNETS:
    STRIDE_IN_1X1: False
"""


def test_every_tensor_that_features_depend_on_is_there(tmp_path: Path) -> None:
    release = X152.convert(x152_checkpoint(tmp_path / "detectron_model.pth"))
    assert release.tensors.keys() == x152_tensors().keys()
    for name, tensor in x152_tensors().items():
        assert torch.equal(release.tensors[name], tensor), name
    assert release.config["architecture"] == X152_CONFIG["architecture"]
    assert release.config["preprocessing"] == {
        **X152_CONFIG["preprocessing"],
        "shortest_side": 800,
        "longest_side": 1333,
    }
    assert release.config["proposals"] == {
        **{"before_nms": 6000, "after_nms": 1000, "most": 2000, "overlap": 0.7},
        "delta_weights": [1.0] * 4,
    }
    assert release.config["detections"] == {"most": 100, "overlap": 0.5, "threshold": 0.0}
    assert X152.config_problems(release.config) == []
    assert release.config["source"]["licence"] == "not stated by the original"
    notes = " ".join(release.notes)
    assert "the prefix 'model.module.' of all names was taken off" in notes
    assert "left out 3 tensors that the model does not use" in notes and "attr_linear1" in notes
    assert "as released, since there is no detectron_config.yaml" in notes


def test_the_released_place_gives_the_licence(tmp_path: Path) -> None:
    place = tmp_path / "vilbert-multi-task"
    place.mkdir()
    source = X152.convert(x152_checkpoint(place / "detectron_model.pth")).config["source"]
    assert (source["licence"], source["url"]) == ("MIT", X152_VG.original)


def test_the_file_of_settings_beside_it_holds_where_it_differs_from_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "detectron_config.yaml").write_text(SETTINGS)
    release = X152.convert(x152_checkpoint(tmp_path / "detectron_model.pth"))
    assert release.config["proposals"] == X152_CONFIG["proposals"]
    assert "of detectron_config.yaml" in " ".join(release.notes)
    assert [file["file"] for file in release.config["source"]["beside"]] == ["detectron_config.yaml"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("False", "True", "MODEL.RESNETS.STRIDE_IN_1X1 is True, but only False is known here"),
        ("(4, 8, 16, 32, 64)", "(16,)", "MODEL.RPN.ANCHOR_STRIDE is [16], but only [4, 8, 16, 32, 64] is"),
        ("(4, 8, 16, 32, 64)", '"(4, 8"', "MODEL.RPN.ANCHOR_STRIDE is '(4, 8', but only"),
        ("MODEL:", "MODEL: [", "is no detectron_config.yaml of a release"),
    ],
)
def test_settings_of_another_network(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = x152_checkpoint(tmp_path / "detectron_model.pth")
    (tmp_path / "other.yaml").write_text(SETTINGS.replace(old, new))
    with pytest.raises(ValueError, match="other") as raised:
        X152.convert(path, release_config=tmp_path / "other.yaml")
    assert message in str(raised.value)
    with pytest.raises(ValueError, match="is no file: pass the detectron_config"):
        X152.convert(path, release_config=tmp_path / "none.yaml")


def test_a_checkpoint_that_lacks_something(tmp_path: Path) -> None:
    path = x152_checkpoint(tmp_path / "detectron_model.pth")
    whole = torch.load(path, weights_only=True)["model"]
    for missing, message in (
        ("rpn.anchor_generator.cell_anchors.2", "cell_anchors has 4 levels, expected 5"),
        ("backbone.fpn.fpn_layer2.weight", "1 tensors are missing: 'fpn.layer_blocks.1.0.weight'"),
        ("roi_heads.box.feature_extractor.fc7.weight", "fc7.weight is not in the checkpoint"),
    ):
        torch.save({"model": {k: v for k, v in whole.items() if k != f"module.{missing}"}}, path)
        with pytest.raises(ValueError, match="detectron_model") as raised:
            X152.convert(path)
        assert message in str(raised.value)
    with pytest.raises(ValueError, match="1 tensors are not part of the architecture: 'roi_heads"):
        X152.convert(x152_checkpoint(path, **{"module.roi_heads.mask": torch.ones(1)}))
