"""The base of all converters, with a network of two layers: a name table and a config are enough."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from capeval_core.weights.catalogue import ALPHA_L14
from capeval_core.weights.conversion import (
    Conversion,
    Release,
    Shapes,
    as_float32,
    complete,
    count_blocks,
    renamed,
    tensor_problems,
)

Tensors = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToyConversion(Conversion):
    """Two linear layers, which the original calls fc0 and fc1 (or, in older files, dense0 and dense1)."""

    encoder = "toy"
    title = "toy"
    anchors = ("fc0.weight", "dense0.weight")
    unused = r"(head|loss)\."
    names = ((r"^(fc|dense)0\.", "first."), (r"^(fc|dense)1\.", "second."))

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        width, size = shapes["first.weight"]
        return {"architecture": {"size": size, "width": width, "classes": shapes["second.weight"][0]}}


def empty(config: dict[str, Any]) -> nn.Module:
    sizes = config["architecture"]
    with torch.device("meta"):
        first, second = (
            nn.Linear(sizes["size"], sizes["width"]),
            nn.Linear(sizes["width"], sizes["classes"]),
        )
    return nn.ModuleDict({"first": first, "second": second})


def original() -> Tensors:
    return {
        "fc0.weight": torch.arange(6.0).reshape(3, 2),
        "fc0.bias": torch.zeros(3).half(),
        "fc1.weight": torch.ones(4, 3),
        "fc1.bias": torch.ones(4),
    }


def converted(folder: Path, content: Tensors, **settings: Any) -> Release:
    torch.save(content, folder / "toy.pth")
    return ToyConversion(**settings).read(folder / "toy.pth", empty)


def test_a_name_table_and_a_config_make_a_converter(tmp_path: Path) -> None:
    release = converted(tmp_path, original(), licence="MIT")
    assert list(release.tensors) == list(empty(release.config).state_dict())
    assert torch.equal(release.tensors["first.weight"], original()["fc0.weight"])
    assert release.tensors["first.bias"].dtype is torch.float32
    source = release.config.pop("source")
    assert release.config == {
        "format": 1,
        "encoder": "toy",
        "architecture": {"size": 2, "width": 3, "classes": 4},
    }
    file = tmp_path / "toy.pth"
    assert source == {
        "name": "toy",
        "url": None,
        "file": "toy.pth",
        "size": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "licence": "MIT",
        "notes": ["float16 tensors were stored as float32"],
    }
    assert release.notes == source["notes"]


@pytest.mark.parametrize("prefix", ["", "module.", "module.model.visual."])
@pytest.mark.parametrize("layer", ["fc", "dense"])
def test_wrappings_and_older_names_give_the_same(prefix: str, layer: str, tmp_path: Path) -> None:
    content = {prefix + name.replace("fc", layer): tensor for name, tensor in original().items()}
    content[prefix + "head.weight"] = torch.ones(2)
    release = converted(tmp_path, content)
    expected = converted(tmp_path, original())
    assert release.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(release.tensors[name], tensor) for name, tensor in expected.tensors.items())
    assert any("left out 1 tensors" in note and "'head.weight'" in note for note in release.notes)
    assert any(repr(prefix) in note for note in release.notes) is bool(prefix)


REFUSED = {
    "another network": ({"conv.weight": torch.ones(1)}, "no toy: expected fc0.weight or dense0.weight among"),
    "two models": (
        {f"{model}.{name}": tensor for model in "ab" for name, tensor in original().items()},
        "several models in one checkpoint: 'a.fc0.weight', 'b.fc0.weight'",
    ),
    "more than the model": (
        {f"a.{name}": tensor for name, tensor in original().items()} | {"b.bias": torch.ones(1)},
        "lies under 'a.', but there is more: 'b.bias'",
    ),
    "a telling tensor missing": (
        {name: tensor for name, tensor in original().items() if name != "fc1.weight"},
        "not a complete toy: 'second.weight' is missing",
    ),
    "missing and unknown": (
        {name.replace("1.bias", "1.scale"): tensor for name, tensor in original().items()},
        "1 tensors are missing: 'second.bias'; 1 tensors are not part of the architecture: 'second.scale'",
    ),
    "another shape": (
        original() | {"fc1.bias": torch.ones(5)},
        r"1 tensors have another shape: 'second.bias \(5,\) instead of \(4,\)'",
    ),
    "twice": (original() | {"dense1.bias": torch.ones(4)}, "dense1.bias is a second second.bias"),
    "not a number": (original() | {"fc1.bias": torch.full((4,), torch.nan)}, "fc1.bias holds NaN"),
    "infinite": (original() | {"fc1.bias": torch.full((4,), torch.inf)}, "fc1.bias holds NaN or infinite"),
    "sparse": (original() | {"fc1.bias": torch.ones(4).to_sparse()}, "fc1.bias "),
    "integers": (original() | {"fc1.bias": torch.ones(4).int()}, "fc1.bias is of type int32"),
    "no tensor": (original() | {"fc1.bias": "x"}, "fc1.bias is no tensor but a str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_file(case: str, tmp_path: Path) -> None:
    content, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        converted(tmp_path, content)
    assert str(tmp_path / "toy.pth") in str(caught.value)


def test_an_anchor_is_a_whole_part_of_a_name(tmp_path: Path) -> None:
    release = converted(tmp_path, original() | {"head.xfc0.weight": torch.ones(1)})
    assert len(release.tensors) == 4 and "left out 1 tensors" in release.notes[0]


def test_tensors_are_in_the_models_order_and_share_no_memory(tmp_path: Path) -> None:
    buffer = torch.arange(100.0)
    content = {
        "fc1.bias": buffer[12:16],
        "fc1.weight": buffer[:12].view(4, 3),
        "fc0.bias": torch.zeros(3),
        "fc0.weight": torch.arange(6.0).reshape(2, 3).T,
    }
    release = converted(tmp_path, content)
    assert list(release.tensors) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    for name, tensor in zip(reversed(release.tensors), content.values(), strict=True):
        own = release.tensors[name]
        assert torch.equal(own, tensor) and own.is_contiguous()
        assert own.untyped_storage().nbytes() == 4 * own.numel()


def test_counters_stay_integers_and_scalars_scalars() -> None:
    notes: list[str] = []
    given = {
        "a.num_batches_tracked": torch.tensor(7.0),
        "scale": torch.ones(1),
        "single": torch.ones(1),
    }
    expected = {
        "scale": torch.zeros(()),
        "single": torch.zeros(1),
        "a.num_batches_tracked": torch.tensor(0),
        "b.num_batches_tracked": torch.tensor(0),
    }
    tensors = complete(as_float32(given, notes), expected, "toy", notes)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in expected.items()
    }
    assert [int(tensors[f"{name}.num_batches_tracked"]) for name in "ab"] == [7, 0]
    assert len(notes) == 1 and notes[0].startswith("1 BatchNorm counters were missing")
    integers = {**tensors, "scale": torch.tensor(1)}
    assert tensor_problems(expected, integers) == ["1 tensors do not hold floating-point numbers: 'scale'"]


def test_what_the_user_states_goes_before_the_catalogue(tmp_path: Path) -> None:
    file = tmp_path / str(ALPHA_L14.checkpoint)
    torch.save(original(), file)
    listed = ToyConversion().read(file, empty).config["source"]
    assert (listed["name"], listed["url"]) == ("clip_l14_grit20m_fultune_2xe", ALPHA_L14.original)
    assert listed["licence"] == ALPHA_L14.licence == "research only"
    stated = ToyConversion(source="mine", url="https://a/b", licence="MIT").read(file, empty)
    source = stated.config["source"]
    assert (source["name"], source["url"], source["licence"]) == ("mine", "https://a/b", "MIT")


def test_rules_apply_in_order_and_blocks_are_counted_once() -> None:
    assert renamed("a.x", ((r"^a", "b"), (r"^b", "c"))) == "c.x"
    names = ("blocks.0.w", "blocks.0.b", "blocks.11.w")
    assert count_blocks(dict.fromkeys(names, (1,)), r"blocks\.(\d+)\.") == 2
