"""Conversion of UMIC's and UNITER's checkpoints: what differs between them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.weights.folder import WeightsError
from tests.support.seeded import WORDS, made_up_boxes, uniter

ORIGINAL = (
    ("region_embeddings.feature_norm.", "uniter.img_embeddings.img_layer_norm."),
    ("region_embeddings.feature.", "uniter.img_embeddings.img_linear."),
    ("region_embeddings.position_norm.", "uniter.img_embeddings.pos_layer_norm."),
    ("region_embeddings.position.", "uniter.img_embeddings.pos_linear."),
    ("region_embeddings.norm.", "uniter.img_embeddings.LayerNorm."),
    ("embeddings.", "uniter.embeddings."),
    ("layers.", "uniter.encoder.layer."),
    ("pooler.", "uniter.pooler.dense."),
    ("matching_head.", "itm_output."),
    ("ranking_head.", "rank_output."),
)


def released(folder: Path, encoder: UniterEncoder | None = None, **changes: Any) -> Path:
    """A seeded UNITER under the original's names, beside its vocabulary."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in (encoder or uniter()).model.state_dict().items():
        ours, theirs = next(pair for pair in ORIGINAL if name.startswith(pair[0]))
        tensors[name.replace(ours, theirs, 1)] = tensor
    tensors["uniter.img_embeddings.mask_embedding.weight"] = torch.zeros(2, 64)
    for name, value in changes.items():
        tensors |= {name: value} if value is not None else {}
        if value is None:
            tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(name)}
    torch.save(tensors, folder / "umic.pt")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder / "umic.pt"


def convert(folder: Path, path: Path, **settings: Any) -> Any:
    return UniterEncoder.convert(path, **{"vocabulary": str(folder / "vocab.txt"), "heads": 4, **settings})


def logit(encoder: UniterEncoder) -> float:
    (found,) = encoder.rank([InputBoxes.of(made_up_boxes(4))], [["a red dog"]], cache=FeatureCache(0))
    return float(found.logits[0])


def test_the_original_names_give_the_same_network(tmp_path: Path) -> None:
    release = convert(tmp_path, released(tmp_path))
    assert logit(UniterEncoder(release.config, release.tensors, device="cpu")) == logit(uniter())
    assert any("left out 1 tensors" in note for note in release.notes)
    assert release.config["lowercase"] is False and release.config["source"]["licence"] == "MIT"


def test_a_release_of_two_bytes_stays_one(tmp_path: Path) -> None:
    path = released(tmp_path)
    torch.save({name: tensor.half() for name, tensor in torch.load(path).items()}, path)
    release = convert(tmp_path, path)
    UniterEncoder(release.config, release.tensors, device="cpu").save_pretrained(tmp_path / "saved")
    rounded = {name: tensor.half().float() for name, tensor in uniter().model.state_dict().items()}
    opened = UniterEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert logit(opened) == logit(UniterEncoder(uniter().config, rounded, device="cpu"))
    parameters = sum(tensor.numel() for tensor in rounded.values())
    size = (tmp_path / "saved" / "model.safetensors").stat().st_size
    assert 2 * parameters < size < 2 * parameters + 20_000


def test_without_a_ranking_head_the_matching_head_stands_in(tmp_path: Path) -> None:
    release = convert(tmp_path, released(tmp_path, rank_output=None))
    assert torch.equal(release.tensors["ranking_head.weight"], release.tensors["matching_head.weight"][1:])
    assert torch.equal(release.tensors["ranking_head.bias"], release.tensors["matching_head.bias"][1:])
    assert any("no ranking head" in note for note in release.notes)
    model = UniterEncoder(release.config, release.tensors, device="cpu").model
    model.init_ranking_head()
    assert torch.equal(model.ranking_head.weight, release.tensors["ranking_head.weight"])


def test_older_names_of_norms_are_known(tmp_path: Path) -> None:
    path = released(tmp_path)
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in torch.load(path).items()
    }
    assert any(name.endswith(".gamma") for name in older)
    torch.save(older, path)
    release = convert(tmp_path, path)
    assert logit(UniterEncoder(release.config, release.tensors, device="cpu")) == logit(uniter())


@pytest.mark.parametrize(
    ("changes", "settings", "error", "message"),
    [
        ({}, {"heads": None}, ValueError, "do not show how many heads share the width 32: pass heads"),
        ({}, {"heads": 5}, ValueError, "do not show how many heads"),
        ({}, {"vocabulary": None}, ValueError, "the checkpoint holds no words: pass vocabulary"),
        ({}, {"vocabulary": "missing.txt"}, WeightsError, "missing.txt cannot be read"),
        ({"itm_output": None}, {}, ValueError, "itm_output|matching_head"),
        ({"uniter.pooler": None}, {}, ValueError, "not a complete UNITER"),
        ({"uniter.embeddings": None}, {}, ValueError, "no UNITER"),
        (
            {"uniter.embeddings.word_embeddings.weight": torch.ones(5)},
            {},
            ValueError,
            r"word_embeddings.weight has shape \(5,\): ex",
        ),
        (
            {"uniter.embeddings.position_embeddings.weight": torch.ones(())},
            {},
            ValueError,
            r"position_embeddings.weight has shape \(\):",
        ),
        (
            {"itm_output.weight": torch.ones(()), "rank_output": None},
            {},
            ValueError,
            "itm_output.weight is a single number, expected a row for a match",
        ),
        (
            {"rank_output.weight": torch.ones(1, 1).expand(1 << 40, 32)},
            {},
            ValueError,
            "rank_output.weight repeats one part of its values: save it whole",
        ),
        ({"extra.weight": torch.ones(2)}, {}, ValueError, "there is more|not part of the architecture"),
        ({"rank_output.bias": torch.tensor([float("nan")])}, {}, ValueError, "rank_output.bias holds NaN"),
    ],
)
def test_what_is_not_the_release_is_refused(
    tmp_path: Path, changes: dict[str, Any], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = released(tmp_path, **changes)
    with pytest.raises(error, match=message):
        convert(tmp_path, path, **settings)


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    path = released(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS[:-1]) + "\n")
    with pytest.raises(ValueError, match=f"has {len(WORDS) - 1} words, but the model has {len(WORDS)}"):
        convert(tmp_path, path)
