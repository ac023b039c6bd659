"""Where a hostile input lies, and what the expressions of `inputs.txt` are made of."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import capeval_core

TINY = Path(capeval_core.__file__).parent / "weights" / "tiny"
"""Small networks with their weights."""
RAN = Path(__file__).with_name("ran")
"""Made where something that was only to be read ran."""
SAVED = {
    "metric": "pacs",
    "key": "pac_s",
    "mean": 0.5,
    "signature": "capeval:pacs|v:0",
    "counts": {"captions": 6, "failed": 0, "truncated": 0, "empty": 0},
    "scores": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    "parts": {},
    "groups": list("abcdef"),
    "errors": {},
    "relative": None,
}


@dataclass(frozen=True)
class World:
    """A folder of a case's own; beside it a folder with one good image, and weights that do not open.

    metric: what the case is about.
    """

    folder: Path
    metric: str

    @cached_property
    def image(self) -> Path:
        path = self.folder.parent / "images" / "0.png"
        if not path.exists():
            path.parent.mkdir()
            Image.effect_noise((40, 30), 50).save(path)
        return path

    @property
    def images(self) -> Path:
        return self.image.parent

    @cached_property
    def video(self) -> Path:
        frames = [Image.new("L", (32, 24), shade) for shade in (0, 90, 200)]
        return self.save("moving.gif", frames[0], save_all=True, append_images=frames[1:])

    @cached_property
    def unopened(self) -> Path:
        """Weights that can't be opened: an error about anything else was raised before they were."""
        path = self.folder.parent / "unopened"
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text("{}")
        return path

    def __getitem__(self, name: str) -> str:
        """A part of a command line."""
        texts = {"rating": "rating\n1\n", "words": "rating\n" + "x\n" * 6}
        if name in ("good", "result"):
            return str(self.file(f"{name}.json", {"0": "a dog"} if name == "good" else SAVED))
        if name in texts:
            return str(self.file(f"{name}.csv", texts[name]))
        return "a photo of " * 60 if name == "prompt" else str(getattr(self, name))

    def file(self, name: str, content: bytes | str | Any) -> Path:
        """A file of these bytes or this text; anything else is written as JSON."""
        path = self.folder / name
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def save(self, name: str, image: Image.Image, **options: Any) -> Path:
        image.save(self.folder / name, **options)
        return self.folder / name

    def pipe(self, name: str) -> Path:
        os.mkfifo(self.folder / name)
        return self.folder / name

    def parquet(self, rows: list[dict[str, Any]], name: str = "c.parquet") -> Path:
        pq.write_table(pa.Table.from_pylist(rows), self.folder / name)
        return self.folder / name

    def twice(self, name: str) -> Path:
        """A table with two columns of a name."""
        table = pa.Table.from_arrays([pa.array(["0"]), *[pa.array(["x"])] * 2], ["id", "caption", "caption"])
        pq.write_table(table, self.folder / name)
        return self.folder / name

    def npz(self, name: str, **arrays: Any) -> Path:
        np.savez(self.folder / name, **arrays)
        return self.folder / name

    def sparse(self, name: str, length: int) -> Path:
        """A file that takes no room."""
        self.file(name, jpeg())
        os.truncate(self.folder / name, length)
        return self.folder / name

    def cut(self, path: Path) -> Path:
        """A file's first half."""
        return self.file(f"cut{path.suffix}", path.read_bytes()[: path.stat().st_size // 2])

    def loop(self) -> Path:
        """A link to itself."""
        (self.folder / "loop.json").symlink_to("loop.json")
        return self.folder / "loop.json"

    def saved(self, **changes: Any) -> Path:
        """A result of `--json`, changed."""
        return self.file("b.json", {**SAVED, **changes})

    def checkpoint(self, value: Any) -> Path:
        torch.save(value, self.folder / "x.pth")
        return self.folder / "x.pth"

    def content(self, name: str, change: bytes | Callable[[bytes], bytes] | None) -> Path:
        """Weights with another file, or without it."""
        folder = Path(shutil.copytree(TINY / self.metric, self.folder / "weights"))
        before = (folder / name).read_bytes()
        (folder / name).unlink()
        if change is not None:
            (folder / name).write_bytes(change if isinstance(change, bytes) else change(before))
        return folder

    def edited(self, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> Path:
        """Weights with a change of config or tensors, and without the checksums of before."""
        folder = Path(shutil.copytree(TINY / self.metric, self.folder / "weights"))
        config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        change(config, tensors)
        save_file(tensors, folder / "model.safetensors")
        del config["checksum"]
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def make(self, expression: str) -> Any:
        """The value of an expression of `inputs.txt`."""
        return eval(expression, globals() | {"world": self})


class Runs:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {RAN}",)


def encoded(form: str, mode: str = "RGB", **options: Any) -> bytes:
    data = io.BytesIO()
    Image.effect_noise((64, 48), 60).convert(mode).save(data, form, **options)
    return data.getvalue()


def moving(form: str) -> bytes:
    """Three frames."""
    data = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 90, 200)]
    frames[0].save(data, form, save_all=True, append_images=frames[1:])
    return data.getvalue()


def closed(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image


def jpeg() -> bytes:
    return encoded("JPEG")


def eps() -> bytes:
    return encoded("EPS")


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""
    data = io.BytesIO()
    Image.new("L", (1, 1)).save(data, "PNG")
    whole = bytearray(data.getvalue())
    whole[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    whole[29:33] = zlib.crc32(bytes(whole[12:29])).to_bytes(4, "big")
    return bytes(whole)


def boxes(**changes: Any) -> dict[str, Any]:
    """Two boxes with features; None: leave it out."""
    found = {"boxes": np.float32([[1, 1, 9, 9]] * 2), "features": np.ones((2, 64), np.float32)}
    found |= {"size": (40, 30), "scores": np.float32([0.9, 0.5]), **changes}
    return {name: value for name, value in found.items() if value is not None}


def flipped(data: bytes) -> bytes:
    """Another bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


def largest(tensors: dict[str, torch.Tensor]) -> str:
    return max(tensors, key=lambda name: (tensors[name].ndim == 2) * tensors[name].numel())


def narrow(config: Any, tensors: dict[str, torch.Tensor]) -> None:
    tensors[largest(tensors)] = tensors[largest(tensors)][:, :-1].contiguous()


def spoil(value: float) -> Callable[[Any, dict[str, torch.Tensor]], None]:
    def change(config: Any, tensors: dict[str, torch.Tensor]) -> None:
        tensors[largest(tensors)][0, 0] = value

    return change


def size(value: Any) -> Callable[[dict[str, Any], Any], None]:
    """Another value for the first size that the config of a network names."""

    def change(config: dict[str, Any], tensors: Any) -> None:
        inner = config["architecture"]
        while True:
            name, one = next((k, v) for k, v in inner.items() if not isinstance(v, (str, bool, list)))
            if not isinstance(one, dict):
                inner[name] = value
                return
            inner = one

    return change


GREY = np.full((48, 48, 3), 128, dtype=np.uint8)
ROWS = torch.ones(3, 4)
NAMES = datasets, gzip, pd, pickle
"""For expressions."""
