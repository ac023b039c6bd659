"""Hostile captions, images, references, pools and options, handed in from Python."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from tests.adversarial.case import GREY, Case, World, jpeg, png_header

CAPTIONS: list[tuple[str, Any, str, str, str]] = [
    ("none", None, "captions", "", "missing"),
    ("a single text", "a dog", "captions", "", "type"),
    ("bytes", b"a dog", "captions", "", "type"),
    ("a number", 7, "captions", "", "type"),
    ("a dict", {"1": "a dog"}, "captions", "", "type"),
    ("a set", {"a dog"}, "captions", "", "type"),
    ("an iterator", iter(["a dog"]), "captions", "", "type"),
    ("a frame", pd.DataFrame({"c": ["a dog"]}), "captions", "", "type"),
    ("a path", Path("captions.json"), "captions", "", "type"),
    ("an empty text", ["a", ""], "captions", "[1]", "empty"),
    ("whitespace", ["a", " \n\t "], "captions", "[1]", "empty"),
    ("None within", ["a", None], "captions", "[1]", "missing"),
    ("NaN within", ["a", float("nan")], "captions", "[1]", "type"),
    ("a number within", ["a", 3], "captions", "[1]", "type"),
    ("a bool within", ["a", True], "captions", "[1]", "type"),
    ("bytes within", ["a", b"dog"], "captions", "[1]", "type"),
    ("a list within", ["a", ["dog"]], "captions", "[1]", "type"),
    ("a numpy array within", ["a", np.array(["dog"])], "captions", "[1]", "type"),
    ("a lone surrogate", ["a", "dog \ud800"], "captions", "[1]", "damaged"),
    ("a matrix", np.array([["a", "b"], ["c", "d"]]), "captions", "", "type"),
]


def _fifo(world: World) -> Path:
    path = world.folder / "pipe.png"
    os.mkfifo(path)
    return path


def _eps(world: World) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (20, 20)).save(data, "EPS")
    return data.getvalue()


def _frames(world: World) -> Path:
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 90, 200)]
    return world.save("moving.gif", frames[0], save_all=True, append_images=frames[1:])


IMAGES: list[tuple[str, Any, str, str, str]] = [
    ("None", lambda world: None, "images", "[1]", "missing"),
    ("a number", lambda world: 5, "images", "[1]", "type"),
    ("an open file", lambda world: world.image.open("rb"), "images", "[1]", "type"),
    ("an empty path", lambda world: "", "images", "[1]", "empty"),
    ("no such file", lambda world: "no/such.png", "images", "[1]", "missing"),
    ("a folder", lambda world: world.folder, "images", "[1]", "place"),
    ("a path with NUL", lambda world: "a\0b.png", "images", "[1]", "place"),
    ("a pipe", _fifo, "images", "[1]", "place"),
    ("a device", lambda world: "/dev/zero", "images", "[1]", "place"),
    ("a web address", lambda world: "https://example.com/x.png", "images", "[1]", "address"),
    ("a file address", lambda world: "file:///etc/hostname", "images", "[1]", "address"),
    ("an inline image", lambda world: "data:image/png;base64,AAAA", "images", "[1]", "address"),
    ("no bytes", lambda world: b"", "images", "[1]", "empty"),
    ("text as an image", lambda world: world.file("x.jpg", "root:secret:0:0"), "images", "[1]", "format"),
    ("a cut JPEG", lambda world: jpeg()[:700], "images", "[1]", "damaged"),
    ("a cut PNG", lambda world: world.image.read_bytes()[:-60], "images", "[1]", "damaged"),
    ("EPS", lambda world: _eps(world), "images", "[1]", "format"),
    ("EPS named .png", lambda world: world.file("x.png", _eps(world)), "images", "[1]", "format"),
    ("PDF", lambda world: b"%PDF-1.7 ...", "images", "[1]", "format"),
    ("SVG", lambda world: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "images", "[1]", "format"),
    ("HEIC", lambda world: b"\0\0\0\x18ftypheic" + b"\0" * 40, "images", "[1]", "format"),
    ("an animation", _frames, "images", "[1]", "format"),
    ("one pixel", lambda world: Image.new("RGB", (1, 1)), "images", "[1]", "large"),
    ("a thread", lambda world: Image.new("L", (3000, 2)), "images", "[1]", "large"),
    ("a bomb", lambda world: png_header(60_000, 60_000), "images", "[1]", "large"),
    ("an empty dict", lambda world: {}, "images", "[1]", "missing"),
    ("a dict of None", lambda world: {"bytes": None, "path": None}, "images", "[1]", "missing"),
    ("a dict with a number", lambda world: {"bytes": 3, "path": None}, "images[1]", '["bytes"]', "type"),
    ("an array of text", lambda world: np.array([["a"]]), "images", "[1]", "type"),
    ("an array of objects", lambda world: np.array([[None]]), "images", "[1]", "type"),
    ("five channels", lambda world: np.zeros((8, 8, 5), np.uint8), "images", "[1]", "shape"),
    ("four axes", lambda world: np.zeros((1, 8, 8, 3), np.uint8), "images", "[1]", "shape"),
    ("no pixels", lambda world: np.zeros((0, 8, 3), np.uint8), "images", "[1]", "large"),
    ("whole numbers", lambda world: np.full((8, 8, 3), 300, np.int64), "images", "[1]", "type"),
    ("floats above 1", lambda world: np.full((8, 8, 3), 255.0), "images", "[1]", "value"),
    ("NaN pixels", lambda world: np.full((8, 8, 3), np.nan), "images", "[1]", "value"),
    ("complex pixels", lambda world: np.zeros((8, 8), complex), "images", "[1]", "type"),
    ("a masked array", lambda world: np.ma.masked_less(GREY, 200), "images", "[1]", "type"),
    ("a meta tensor", lambda world: torch.zeros(3, 8, 8, device="meta"), "images", "[1]", "type"),
    ("a sparse tensor", lambda world: torch.zeros(8, 8).to_sparse(), "images", "[1]", "type"),
    ("a tensor of five channels", lambda world: torch.zeros(5, 8, 8), "images", "[1]", "shape"),
    ("a tensor of NaN", lambda world: torch.full((3, 8, 8), float("nan")), "images", "[1]", "value"),
]
WHOLE_IMAGES: list[tuple[str, Any, str, str, str]] = [
    ("no images", lambda world: None, "images", "", "missing"),
    ("a single path", lambda world: str(world.image), "images", "", "type"),
    ("a single image", lambda world: Image.open(world.image), "images", "", "type"),
    ("a single array", lambda world: GREY, "images", "", "type"),
    ("a dict of images", lambda world: {"1": world.image}, "images", "", "type"),
    ("one too few", lambda world: [world.image], "len(images)=1", "", "count"),
    ("one too many", lambda world: [world.image] * 3, "len(images)=3", "", "count"),
    ("a frame", lambda world: pd.DataFrame({"i": [1, 2]}), "images", "", "type"),
]
REFERENCES: list[tuple[str, Any, str, str, str]] = [
    ("none", None, "references", "", "missing"),
    ("a single text", "a dog", "references", "", "type"),
    ("a number", 3, "references", "", "type"),
    ("a dict", {"1": ["a dog"]}, "references", "", "type"),
    ("one list too few", [["a"]], "len(references)=1", "", "count"),
    ("transposed", [["a", "b"], ["c", "d"], ["e", "f"]], "len(references)=3", "", "count"),
    ("None for a caption", [["a"], None], "references", "[1]", "missing"),
    ("an empty list", [["a"], []], "references", "[1]", "empty"),
    ("an empty text", [["a"], ["b", ""]], "references", "[1][1]", "empty"),
    ("None within", [["a"], ["b", None]], "references", "[1][1]", "missing"),
    ("a number within", [["a"], ["b", 2]], "references", "[1][1]", "type"),
    ("a number for a list", [["a"], 2], "references", "[1]", "type"),
]
POOLS: list[tuple[str, Any, str, str, str]] = [
    ("texts for lists", ["a", "b"], "captions", "[0]", "type"),
    ("an empty pool", [["a"], []], "captions", "[1]", "empty"),
    ("None for a pool", [["a"], None], "captions", "[1]", "missing"),
    ("an empty candidate", [["a"], ["b", " "]], "captions", "[1][1]", "empty"),
    ("a number within", [["a"], ["b", 4]], "captions", "[1][1]", "type"),
    ("a dict for a pool", [["a"], {"b": 1}], "captions", "[1]", "type"),
    ("one pool too few", [["a"]], "len(captions)=1", "", "count"),
]
OPTIONS: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("a misspelt option", "pacs", {"wieghts": "tiny"}, "'wieghts'", "unknown"),
    ("an option of another metric", "pacs", {"regions": "colours"}, "'regions'", "unknown"),
    ("w as text", "pacs", {"w": "2"}, "w=", "type"),
    ("w of NaN", "pacs", {"w": float("nan")}, "w=", "value"),
    ("w of infinity", "pacs", {"w": float("inf")}, "w=", "value"),
    ("w below zero", "pacs", {"w": -1.0}, "w=", "value"),
    ("w beyond floats", "pacs", {"w": 10**400}, "w=", "large"),
    ("w as a bool", "pacs", {"w": True}, "w=", "type"),
    ("a batch of none", "pacs", {"batch_size": 0}, "batch_size=", "value"),
    ("a batch of a half", "pacs", {"batch_size": 0.5}, "batch_size=", "type"),
    ("an unknown type of number", "pacs", {"dtype": "float8"}, "dtype=", "unknown"),
    ("a type as an object", "pacs", {"dtype": torch.float16}, "dtype=", "type"),
    ("an unknown device", "pacs", {"device": "gpu"}, "device=", "unknown"),
    ("a device of nowhere", "pacs", {"device": "cuda:99"}, "cuda", "missing"),
    ("an unknown on_error", "pacs", {"on_error": "ignore"}, "on_error=", "unknown"),
    ("an unknown empty", "pacs", {"empty": "skip"}, "empty=", "unknown"),
    ("an unknown compat", "pacs", {"compat": "original"}, "compat=", "unknown"),
    ("evidence as a number", "pacs", {"evidence": 1}, "evidence=", "type"),
    ("a prompt as a number", "pacs", {"prompt": 3}, "prompt=", "type"),
    (
        "a prompt that fills the model",
        "pacs",
        {"weights": "tiny", "prompt": "a photo of " * 60},
        "prompt",
        "large",
    ),
    ("no name for a cache", "pacs", {"cache": ""}, "cache=", "empty"),
    ("a file as a cache", "pacs", {"cache": __file__}, "cache=", "place"),
    ("a number as a cache", "pacs", {"cache": 3}, "cache=", "type"),
    ("NUL in a cache", "pacs", {"cache": "a\0b"}, "cache=", "place"),
    ("rows as a number", "pacs", {"rows": 5}, "rows=", "type"),
    ("no name for rows", "pacs", {"rows": ""}, "rows=", "empty"),
    ("weights as a number", "pacs", {"weights": 3}, "weights=", "type"),
    ("misspelt weights", "pacs", {"weights": "tinny"}, "weights=", "unknown"),
    ("a file as weights", "pacs", {"weights": __file__}, "weights=", "place"),
    ("NUL in weights", "pacs", {"weights": "a\0b"}, "weights=", "place"),
    ("unknown regions", "hices", {"regions": "object"}, "regions=", "unknown"),
    ("regions as a number", "hices", {"regions": 4}, "regions=", "type"),
    ("masks of text", "hices", {"regions": {"a": ["mask"]}}, "masks['a'][0]", "type"),
    ("regions from a missing file", "hices", {"regions": "no-such.json"}, "no-such.json", "missing"),
    ("no regions at most", "hices", {"max_regions": 0}, "max_regions=", "value"),
    ("unknown phrases", "hices", {"phrases": "facts"}, "phrases=", "unknown"),
    ("phrases as a text", "hices", {"phrases": {"a dog": "dog"}}, "a dog", "type"),
    ("unknown members", "eco", {"members": ["bigG"]}, "members", "unknown"),
    ("no members", "eco", {"members": []}, "members", "empty"),
]


def _score(captions: Any) -> Any:
    return lambda world: {
        "captions": captions,
        "images": [world.image] * (len(captions) if hasattr(captions, "__len__") else 1),
        "references": [["a"]] * (len(captions) if hasattr(captions, "__len__") else 1),
    }


def _image(make: Any) -> Any:
    return lambda world: {
        "captions": ["a", "b"],
        "images": [world.image, make(world)],
        "references": [["a"]] * 2,
    }


def _images(make: Any) -> Any:
    return lambda world: {"captions": ["a", "b"], "images": make(world), "references": [["a"]] * 2}


def _references(references: Any) -> Any:
    return lambda world: {"captions": ["a", "b"], "images": [world.image] * 2, "references": references}


def _pools(pools: Any) -> Any:
    return lambda world: {"captions": pools, "images": [world.image] * 2}


CASES = [
    *(Case("score", f"captions: {name}", _score(given), *rest) for name, given, *rest in CAPTIONS),
    *(Case("score", f"image: {name}", _image(make), *rest) for name, make, *rest in IMAGES),
    *(Case("score", f"images: {name}", _images(make), *rest) for name, make, *rest in WHOLE_IMAGES),
    *(Case("score", f"references: {name}", _references(given), *rest) for name, given, *rest in REFERENCES),
    *(Case("rerank", f"pools: {name}", _pools(given), *rest) for name, given, *rest in POOLS),
    *(
        Case("load", name, lambda world, m=metric, o=options: (m, o), argument, "", kind)
        for name, metric, options, argument, kind in OPTIONS
    ),
]
