"""The files of a transcript: eight pictures with captions, references and ratings, and mistakes in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image, ImageOps

from capeval_core.demo import demo_set


def write_world(folder: Path, name: str) -> None:
    """The files of the transcript of this name."""
    write_files(folder)
    if name in ("convert", "fetch"):
        _write_checkpoint(folder)
    elif name == "augment":
        from tests.training.generative import write_captioner

        write_captioner(folder / "captioner")


def _write_checkpoint(folder: Path) -> None:
    """A small seeded CLIP, as PAC-S's authors save theirs."""
    import numpy as np
    import torch

    from tests.golden import recipe

    case = Path(__file__).parents[1] / "golden" / "cases" / "pacs-vit-tiny"
    arrays = recipe.state_dict(case / "manifest.json", json.loads((case / "config.json").read_text())["seed"])
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    torch.save({"state_dict": tensors}, folder / "clip_tiny.pth")


def write_files(folder: Path) -> None:
    """Eight pictures with captions of two systems and references, in the forms that such files have."""
    (folder / "photos").mkdir()
    good: dict[str, str] = {}
    wrong: dict[str, str] = {}
    references: dict[str, list[str]] = {}
    for item in demo_set()[:4]:
        for image_id, flip in ((item.id, False), (f"{item.id}m", True)):
            with Image.open(item.image) as image:
                (ImageOps.mirror(image) if flip else image).save(folder / "photos" / f"{image_id}.png")
            good[image_id], wrong[image_id] = item.good, item.subtly_wrong
            references[image_id] = list(item.references)
    pools = {image_id: [good[image_id], wrong[image_id], "a red star"] for image_id in good}
    for name, content in {"good": good, "wrong": wrong, "references": references, "pools": pools}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    _write_forms(folder, good, references)
    _write_mistakes(folder, good)
    ratings = dict(zip(good, (5, 4, 4, 2, 3, 5, 1, 2), strict=True))
    lines = ["image_id,rating", *(f"{image_id},{rating}" for image_id, rating in ratings.items()), ""]
    (folder / "ratings.csv").write_text("\n".join(lines))
    judged = {"image_id": [*good], "caption": [*good.values()], "score": [*ratings.values()]}
    pd.DataFrame(judged).to_csv(folder / "judged.csv", index=False)
    (folder / "own").mkdir()
    lines = [
        json.dumps({"image": image_id, "candidate": good[image_id], "ratings": [rating]})
        for image_id, rating in ratings.items()
    ]
    (folder / "own" / "judgements.jsonl").write_text("\n".join(lines))
    (folder / "own" / "references.json").write_text(json.dumps(references))


def _write_forms(folder: Path, good: Mapping[str, str], references: Mapping[str, list[str]]) -> None:
    """The same captions and references as others write them."""
    results = [{"image_id": image_id, "caption": text} for image_id, text in good.items()]
    (folder / "results.json").write_text(json.dumps(results))
    gts = {image_id: [{"caption": text} for text in texts] for image_id, texts in references.items()}
    (folder / "gts.json").write_text(json.dumps(gts))
    lines = [json.dumps({"file_name": f"{image_id}.png", "text": text}) for image_id, text in good.items()]
    (folder / "photos" / "metadata.jsonl").write_text("\n".join(lines))
    pairs = [{"uid": i, "image": f"{i}.png", "caption": text} for i, text in good.items()]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    images = [
        {
            "filename": f"{image_id}.png",
            "split": "val" if image_id.endswith("m") else "test",
            "sentences": [{"raw": text, "tokens": text.split()} for text in texts],
        }
        for image_id, texts in references.items()
    ]
    (folder / "dataset.json").write_text(json.dumps({"dataset": "drawn", "images": images}))
    rows = [(image_id, n, text) for image_id, texts in references.items() for n, text in enumerate(texts)]
    table = ["image_name| comment_number| comment", *(f"{i}.png| {n}| {text}" for i, n, text in rows)]
    (folder / "flickr30k.csv").write_text("\n".join(table))
    (folder / "Flickr8k.token.txt").write_text("".join(f"{i}.png#{n}\t{text}\n" for i, n, text in rows))
    pd.DataFrame({"photo": [*good], "beam": "x", "generated": [*good.values()]}).to_csv(
        folder / "mine.tsv", sep="\t", index=False
    )


def _write_mistakes(folder: Path, good: Mapping[str, str]) -> None:
    """Files with one mistake each, as they happen."""
    mistakes: dict[str, Any] = {
        "empty.json": good | {"1": " ", "3m": ""},
        "null.json": good | {"2": None},
        "others.json": {f"img_{image_id}": text for image_id, text in good.items()},
        "two.json": [{"image_id": i, "text": text, "comment": "fine"} for i, text in good.items()],
    }
    for name, content in mistakes.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "cut.json").write_text((folder / "good.json").read_text()[:-40])
    (folder / "repeated.csv").write_text("image_id,caption\n" + "0,two hearts\n" * 3 + "1,a circle\n")
    (folder / "broken").mkdir()
    for image_id in good:
        data = (folder / "photos" / f"{image_id}.png").read_bytes()
        (folder / "broken" / f"{image_id}.png").write_bytes(data[: 300 if image_id == "2" else None])
    (folder / "empty").mkdir()
