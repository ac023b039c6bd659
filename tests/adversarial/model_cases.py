"""Hostile weights folders, rows, features, sets to match, rewards and evaluations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.adversarial.case import GREY, Case, World
from tests.support.seeded import write_config

Config = dict[str, Any]


def _weights(change: Callable[[Config, dict[str, torch.Tensor]], Any]) -> Callable[[World], Path]:
    """A copy of good weights with a change of the config or of the tensors, whose checksum is right again."""

    def make(world: World) -> Path:
        folder = Path(shutil.copytree(world.weights, world.folder / "weights"))
        config, tensors = (
            json.loads((folder / "config.json").read_text()),
            load_file(folder / "model.safetensors"),
        )
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        change(config, tensors)
        if tensors.keys() != before.keys() or any(not torch.equal(tensors[k], before[k]) for k in before):
            save_file(tensors, folder / "model.safetensors")
            config.pop("checksum", None)
        write_config(folder, config)
        return folder

    return make


def _size(*path: str, value: Any) -> Callable[[World], Path]:
    def change(config: Config, tensors: Any) -> None:
        inner = config
        for name in path[:-1]:
            inner = inner[name]
        assert path[-1] in inner, inner.keys()
        inner[path[-1]] = value

    return _weights(change)


def _broken(name: str, content: bytes) -> Callable[[World], Path]:
    def make(world: World) -> Path:
        folder = Path(shutil.copytree(world.weights, world.folder / "weights"))
        (folder / name).write_bytes(content)
        return folder

    return make


def _flipped(world: World) -> Path:
    folder = Path(shutil.copytree(world.weights, world.folder / "weights"))
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 4
    (folder / "model.safetensors").write_bytes(data)
    return folder


def _narrow(config: Config, tensors: dict[str, torch.Tensor]) -> None:
    tensors["text_projection"] = tensors["text_projection"][:, :-1].contiguous()


def _spoil(value: float) -> Callable[[Config, dict[str, torch.Tensor]], None]:
    def change(config: Config, tensors: dict[str, torch.Tensor]) -> None:
        tensors["text_projection"][0, 0] = value

    return change


WEIGHTS: list[tuple[str, Callable[[World], Path], str, str]] = [
    ("no config", lambda world: world.folder, "config.json", "missing"),
    ("an empty config", _broken("config.json", b""), "config.json", "damaged"),
    ("a config of text", _broken("config.json", b'"x"'), "config.json", "type"),
    ("a deep config", _broken("config.json", b"[" * 100_000), "config.json", "damaged"),
    ("a config of others", _broken("config.json", b"{}"), "config.json", "missing"),
    ("no tensors", _broken("model.safetensors", b""), "model.safetensors", "damaged"),
    ("a flipped bit", _flipped, "model.safetensors", "damaged"),
    (
        "a tensor too few",
        _weights(lambda config, tensors: tensors.pop("ln_final.bias")),
        "ln_final.bias",
        "missing",
    ),
    ("a tensor too many", _weights(lambda config, tensors: tensors.update(x=torch.ones(1))), "x", "unknown"),
    ("a narrower tensor", _weights(_narrow), "text_projection", "shape"),
    ("NaN in a tensor", _weights(_spoil(float("nan"))), "text_projection", "value"),
    ("infinity in a tensor", _weights(_spoil(float("inf"))), "text_projection", "value"),
    ("an unknown encoder", _size("encoder", value="clap"), "clap", "unknown"),
    ("an unknown activation", _size("activation", value="relu"), "activation", "unknown"),
    ("layers below zero", _size("architecture", "text", "layers", value=-1), "layers", "value"),
    ("layers without end", _size("architecture", "text", "layers", value=10**9), "layers", "value"),
    ("a width of text", _size("architecture", "text", "width", value="wide"), "width", "type"),
    ("a width without end", _size("architecture", "text", "width", value=2**40), "width", "value"),
    ("a dimension of a half", _size("architecture", "embed_dim", value=0.5), "embed_dim", "type"),
]

ROWS = torch.ones(3, 4)
MATCHING: list[tuple[str, Any, dict[str, Any], str, str, str]] = [
    ("arrays", (ROWS.numpy(), ROWS, [3], [3]), {}, "x", "", "type"),
    ("whole numbers", (ROWS.long(), ROWS.long(), [3], [3]), {}, "x", "", "type"),
    ("one axis", (ROWS, ROWS[0], [3], [3]), {}, "y", "", "shape"),
    ("other widths", (ROWS, ROWS[:, :2], [3], [3]), {}, "y", "", "shape"),
    ("lengths too short", (ROWS, ROWS, [2], [3]), {}, "x_lengths", "", "shape"),
    ("a length below zero", (ROWS, ROWS, [3], [4, -1]), {}, "y_lengths", "[1]", "value"),
    (
        "a set beyond the last",
        (ROWS, ROWS, [3], [3]),
        {"x_of_pair": [0, 1], "y_of_pair": [0, 0]},
        "x_of_pair",
        "[1]",
        "value",
    ),
    ("a weight below zero", (ROWS, ROWS, [3], [3]), {"y_weights": [1, -1, 1]}, "y_weights", "[1]", "value"),
    ("NaN in a row", (ROWS * float("nan"), ROWS, [3], [3]), {}, "x[0]", "", "value"),
    ("an unknown path", (ROWS, ROWS, [3], [3]), {"path": "cuda"}, "path=", "", "unknown"),
]


def _evaluation(captions: Any) -> Any:
    return SimpleNamespace(predictions=captions, label_ids=np.zeros((2, 3), int))


OTHERS = [
    Case("reward", "a text", lambda world: ("a dog", [GREY]), "captions", "", "type"),
    Case("reward", "fewer images", lambda world: (["a", "b"], [GREY]), "len(images)=1", "", "count"),
    Case("reward", "two images for one", lambda world: (["a"], [[GREY, GREY]]), "images", "[0]", "count"),
    Case("reward", "a path that is none", lambda world: (["a"], ["no/such.png"]), "images", "[0]", "missing"),
    Case(
        "reward",
        "a conversation without text",
        lambda world: ([[{"role": "x"}]], [GREY]),
        "captions",
        "[0]",
        "missing",
    ),
    Case("trainer", "no processor", lambda world: (None, [GREY] * 2, None), "processor", "", "type"),
    Case("trainer", "no images", lambda world: ("words", None, None), "images", "", "missing"),
    Case("trainer", "a broken image", lambda world: ("words", [GREY, b"x"], None), "images", "[1]", "format"),
    Case(
        "trainer",
        "floats for ids",
        lambda world: ("words", [GREY] * 2, _evaluation(np.ones((2, 3)) * 0.5)),
        "predictions",
        "",
        "type",
    ),
    Case(
        "trainer",
        "fewer captions",
        lambda world: ("words", [GREY] * 2, _evaluation(np.zeros((1, 3), int))),
        "2 images",
        "",
        "count",
    ),
    Case(
        "module",
        "no predictions",
        lambda world: {"images": [GREY], "references": [["a"]]},
        "predictions",
        "",
        "missing",
    ),
    Case(
        "module",
        "no images",
        lambda world: {"predictions": ["a"], "references": [["a"]]},
        "images",
        "",
        "missing",
    ),
    Case(
        "module",
        "no references",
        lambda world: {"predictions": ["a"], "images": [GREY]},
        "references",
        "",
        "missing",
    ),
    Case(
        "module",
        "a misspelt input",
        lambda world: {"predictions": ["a"], "image": [GREY]},
        "image",
        "",
        "unknown",
    ),
    Case(
        "module",
        "an empty caption",
        lambda world: {"predictions": [""], "images": [GREY], "references": [["a"]]},
        "predictions",
        "[0]",
        "empty",
    ),
    Case(
        "module",
        "one image too few",
        lambda world: {"predictions": ["a"] * 2, "images": [GREY], "references": [["a"]] * 2},
        "len(images)=1",
        "",
        "count",
    ),
    Case(
        "module",
        "broken image",
        lambda world: {"predictions": ["a"], "images": [b"x"], "references": [["a"]]},
        "images",
        "[0]",
        "format",
    ),
]

CASES = [
    *(Case("weights", name, make, argument, "", kind) for name, make, argument, kind in WEIGHTS),
    *(
        Case("match", name, lambda world, a=arguments, o=options: (a, o), argument, index, kind)
        for name, arguments, options, argument, index, kind in MATCHING
    ),
    *OTHERS,
]
