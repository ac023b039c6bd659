"""Small judged sets on disk, in the form of each loader; and where the real ones lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no {SHARED}")
REFERENCES = {
    "a.png": ["a red circle", "a circle that is red", "one red circle"],
    "b.png": ["two blue stars", "blue stars", "a pair of stars"],
}


def write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_expert(folder: Path, rows: Sequence[dict[str, Any]] | None = None) -> Path:
    """A set in the form of Flickr8k-Expert and of one's own."""
    rated = rows or [
        {"image": "a.png", "candidate": "a red  round circle", "ratings": [4, 3, 4]},
        {"image": "a.png", "candidate": "two stars", "ratings": [1, 1, 2]},
        {"image": "b.png", "candidate": "two  blue stars", "ratings": [4, 4, 4]},
        {"image": "b.png", "candidate": "a green circle", "ratings": [1, None, 2]},
        {"image": "b.png", "candidate": "some blue stars here", "ratings": [3, float("nan"), "good"]},
    ]
    write_lines(folder / "judgements.jsonl", rated)
    write_json(folder / "references.json", REFERENCES)
    return folder


def write_pascal(folder: Path) -> Path:
    pairs = [
        ("HC", "a.png", "a red circle here", "a circle", "a", "b"),
        ("HI", "a.png", "a red circle", "two blue stars", "a", "a"),
        ("MM", "b.png", "a circle", "blue stars", "b", "b"),
        ("MM", "b.png", "a pair of stars", "stars", None, "a"),
    ]
    names = ("category", "image", "caption_a", "caption_b", "label", "label_fleur_run")
    write_lines(folder / "pairs.jsonl", [dict(zip(names, pair, strict=True)) for pair in pairs])
    write_json(folder / "references50.json", REFERENCES)
    write_json(folder / "draws.json", [[[0, 1], [0, 1], [0, 1], [2, 0]], [[2], [2], [2], [2]]])
    write_json(folder / "references5.json", [[0], [0], [0], [0]])
    return folder


def write_foil(folder: Path) -> Path:
    pairs = [
        ("a.png", "a red circle here", "a blue circle here"),
        ("b.png", "two blue stars", "two blue hearts"),
        ("b.png", "some stars", "some hearts"),
    ]
    rows = [
        {"image": i, "true_caption": t, "foil_caption": f, "references": REFERENCES[i]} for i, t, f in pairs
    ]
    write_lines(folder / "pairs.jsonl", rows)
    return folder
