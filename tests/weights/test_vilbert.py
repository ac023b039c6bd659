"""Conversion of both releases of ViLBERT: names, sizes, words, and what the tensors do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.weights.catalogue import VILBERT, VILBERT_PRETRAINED
from capeval_core.weights.conversion import Release
from tests.golden import recipe
from tests.golden.vilbert_tiny import DECODER, MARKS, WORDS

CASE = Path(__file__).parents[1] / "golden" / "cases" / "vilbertscore-tiny"
HEADS = {"text_heads": 4, "visual_heads": 4, "co_heads": 4}


def checkpoint(name: str = "manifest") -> dict[str, torch.Tensor]:
    manifest = json.loads((CASE / f"{name}.json").read_text())
    tensors = {key: torch.from_numpy(array) for key, array in recipe.state_dict(manifest, seed=1).items()}
    return {**tensors, DECODER: tensors[WORDS]}


def convert(tmp_path: Path, content: dict[str, Any], words: int = 300, **settings: Any) -> Release:
    vocabulary = [MARKS.get(index, f"w{index}") for index in range(words)]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    torch.save(content, tmp_path / "release.bin")
    given = {"vocabulary": str(tmp_path / "vocab.txt"), **HEADS, **settings}
    return VilbertEncoder.convert(
        tmp_path / "release.bin", **{name: value for name, value in given.items() if value is not None}
    )


def test_the_multi_task_release(tmp_path: Path) -> None:
    content = checkpoint()
    found = convert(tmp_path, {f"module.{name}": tensor for name, tensor in content.items()})
    shape = found.config["architecture"]
    assert shape["text"] == {
        "vocab_size": 300,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
    }
    assert shape["visual"]["region_size"] == 64 and shape["visual"]["intermediate_size"] == 80
    assert shape["text_layers_before"] == [2, 3] and shape["visual_layers_before"] == [0, 1]
    assert (shape["tasks"], found.config["task"], found.config["context_length"]) == (20, 7, 37)
    assert found.config["lowercase"] is True
    text, visual = "co_layers.1.text", "co_layers.1.visual"
    for ours, theirs in (
        (f"{text}.query.weight", "bert.encoder.c_layer.1.biattention.query2.weight"),
        (f"{visual}.value.bias", "bert.encoder.c_layer.1.biattention.value1.bias"),
        (f"{text}.merge.dense.weight", "bert.encoder.c_layer.1.biOutput.dense2.weight"),
        (f"{visual}.merge.LayerNorm.weight", "bert.encoder.c_layer.1.biOutput.LayerNorm1.weight"),
        (f"{visual}.intermediate.dense.weight", "bert.encoder.c_layer.1.v_intermediate.dense.weight"),
        ("task_embeddings.weight", "bert.embeddings.task_embeddings.weight"),
        ("visual_pooler.weight", "bert.v_pooler.dense.weight"),
    ):
        assert torch.equal(found.tensors[ours], content[theirs]), ours
    assert f"left out {len(content) - len(found.tensors)} tensors" in " ".join(found.notes)


def test_the_pretrained_release_has_no_tasks(tmp_path: Path) -> None:
    found = convert(tmp_path, checkpoint("manifest_pretrained"))
    assert found.config["architecture"]["tasks"] == 0 and found.config["task"] is None
    assert "task_embeddings.weight" not in found.tensors
    assert any("without a task token" in note for note in found.notes)


def test_a_decoder_that_differs_is_what_the_original_would_read_words_by(tmp_path: Path) -> None:
    content = checkpoint()
    same = convert(tmp_path, content)
    assert torch.equal(same.tensors["embeddings.word_embeddings.weight"], content[WORDS])
    assert not any("stands in" in note for note in same.notes)
    content[DECODER] = content[WORDS] + 1
    other = convert(tmp_path, content)
    assert torch.equal(other.tensors["embeddings.word_embeddings.weight"], content[DECODER])
    assert any("stands in" in note for note in other.notes)
    prefixed = convert(tmp_path, {f"module.{name}": tensor for name, tensor in content.items()})
    assert torch.equal(prefixed.tensors["embeddings.word_embeddings.weight"], content[DECODER])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": None}, "pass vocabulary.*bert-base-uncased"),
        ({"words": 299}, "299 words, but the model has 300"),
        ({"text_heads": None}, "how many heads share the width 48: pass text_heads"),
        ({"visual_heads": 5}, "how many heads share the width 64: pass visual_heads"),
        ({"text_layers_before": "1"}, "text_layers_before='1': there are 2 co-attention blocks and 4"),
        ({"text_layers_before": "3,1"}, "rising"),
        ({"visual_layers_before": "0,3"}, "there are 2 co-attention blocks and 2 such layers"),
        ({"visual_layers_before": "0;1"}, "with commas between"),
        ({"task": 20}, "task=20: the checkpoint has tasks 0 to 19"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(tmp_path, checkpoint(), **settings)


def test_a_task_of_the_pretrained_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task=7: the checkpoint has no task embeddings"):
        convert(tmp_path, checkpoint("manifest_pretrained"), task=7)


def test_another_model_is_refused(tmp_path: Path) -> None:
    content = {name: tensor for name, tensor in checkpoint().items() if "v_embeddings" not in name}
    with pytest.raises(ValueError, match=r"no ViLBERT: expected bert\.v_embeddings"):
        convert(tmp_path, content)
    content = checkpoint()
    del content["bert.encoder.layer.2.output.dense.bias"]
    with pytest.raises(ValueError, match=r"missing: 'text_layers\.2\.output\.dense\.bias'"):
        convert(tmp_path, content)


def test_the_catalogue_describes_both_releases() -> None:
    shape = {
        "text": {"num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 30522},
        "visual": {"num_hidden_layers": 6, "hidden_size": 1024, "region_size": 2048},
        "text_layers_before": [6, 7, 8, 9, 10, 11],
    }
    for entry, tasks in ((VILBERT, 20), (VILBERT_PRETRAINED, 0)):
        described = VilbertEncoder.describe({"architecture": {**shape, "tasks": tasks}})
        assert entry.is_another(described) is None
        assert entry.is_another(described.replace("12x768", "6x768")) is not None
