"""Small shards of every format, with captions and images that tests can count on."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

NOUNS = ("dog", "house", "red circle", "green square on a table", "star")


def picture(number: int, side: int = 48) -> bytes:
    """A PNG of coloured blocks."""
    blocks = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(blocks).resize((side, side), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def rows_of(count: int, first: int = 0) -> dict[str, list[Any]]:
    """Rows with uids, captions, images as bytes and references; some images and captions are equal."""
    numbers = range(first, first + count)
    return {
        "uid": [f"row-{i:06d}" for i in numbers],
        "caption": [f"a {NOUNS[i % len(NOUNS)]} {i % 7}" for i in numbers],
        "image": [picture(i % 5) for i in numbers],
        "references": [
            [f"a {NOUNS[i % 5]}", f"one {NOUNS[(i + 1) % 5]}", "a thing"][: 1 + i % 3] for i in numbers
        ],
    }


def write_parquet(path: Path, rows: Mapping[str, Sequence[Any]], **options: Any) -> Path:
    pq.write_table(pa.table(dict(rows)), path, **options)
    return path


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    mode: Any = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz", ".tar": "w"}[path.suffix]
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def tar_members(rows: Mapping[str, Sequence[Any]], *, fields: bool) -> list[tuple[str, bytes]]:
    """Members of a tar: an image and a `.json` with all fields, or a `.txt` with the caption alone."""
    members = []
    for i, uid in enumerate(rows["uid"]):
        members.append((f"{uid}.png", rows["image"][i]))
        if fields:
            content = {"caption": rows["caption"][i], "references": rows["references"][i], "uid": "other"}
            members.append((f"{uid}.json", json.dumps(content).encode()))
        else:
            members.append((f"{uid}.txt", f"{rows['caption'][i]}\n".encode()))
    return members


def write_lines(path: Path, rows: Mapping[str, Sequence[Any]], images: Path) -> Path:
    """JSON lines beside a folder of images."""
    images.mkdir(exist_ok=True)
    lines = []
    for i, uid in enumerate(rows["uid"]):
        (images / f"{uid}.png").write_bytes(rows["image"][i])
        line = {"uid": uid, "caption": rows["caption"][i], "image": f"{uid}.png"}
        lines.append(json.dumps({**line, "references": rows["references"][i]}))
    path.write_text("\n".join(lines) + "\n")
    return path
