"""Pascal-50S and Abstract-50S (Vedantam, Zitnick and Parikh, CVPR 2015): which of two captions people prefer.

Five of about fifty references are drawn for each pair, five times; an accuracy is the mean over the draws.
The label is the majority of the votes; a tied vote is decided at random, so the labels are part of a draw. A
pair counts where the labelled caption has the strictly higher score.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, file_problem
from capeval_core.inputs.json_files import load_json
from capeval_core.judgements.correlation import majority
from capeval_core.judgements.files import Dropped, Rows, mapping_of_lists, references_of
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.pairs import PairedSet

LABELS = ("label", "label_fleur_run")
_DRAWS, _REFERENCES = 5, 5


def load_pascal(folder: Path, labels: str = "label", draws: str = "draws") -> PairedSet:
    """`pairs.jsonl` (category, image, caption_a, caption_b, label), `references50.json`, and `draws.json`.

    Args:
        labels: which labels of the pairs count: `label`, or `label_fleur_run` of FLEUR's release.
        draws: `draws` for five draws of references, or `fixed` for those of `references5.json`.

    Without `draws.json` five references are drawn here, five times, with a fixed seed.
    """
    fields: dict[str, type | tuple[type, ...]] = {"category": str, "image": str, "caption_a": str}
    file = Rows(folder / "pairs.jsonl", {**fields, "caption_b": str})
    path = folder / "references50.json"
    references = references_of(path, mapping_of_lists(path), file.column("image"))
    dropped = Dropped()
    rows = []
    for number, row in enumerate(file.rows):
        if row.get(labels) in ("a", "b"):
            rows.append(number)
        else:
            dropped.add(f"pairs without {labels}")
    if not rows:
        found = f"no pair has {labels!r} a or b"
        raise FileError(file_problem(folder / "pairs.jsonl", found))
    if draws == "fixed":
        all_draws = [
            _indices(folder / "references5.json", load_json(folder / "references5.json"), references)
        ]
    elif (folder / "draws.json").exists():
        content = load_json(folder / "draws.json")
        all_draws = [_indices(folder / "draws.json", draw, references) for draw in content]
    else:
        all_draws = drawn([len(texts) for texts in references])
    chosen = [[draw[number] for number in rows] for draw in all_draws]
    pairs = [file.rows[number] for number in rows]
    items = _items(
        [(row["caption_a"], row["caption_b"]) for row in pairs],
        [row["image"] for row in pairs],
        [references[number] for number in rows],
    )
    categories = [row["category"] for row in pairs]
    preferred = [int(row[labels] == "b") for row in pairs]
    return PairedSet(
        "pascal50s",
        _scorings(items, chosen),
        (preferred,) * len(chosen),
        [row["image"] for row in pairs],
        categories,
        dropped=dropped.counts,
    )


def load_abstract(folder: Path) -> PairedSet:
    """`pairs.jsonl` (image, caption_b, caption_c, references, votes) and `draws.json`.

    Without `draws.json` references are drawn and tied votes decided here, with a fixed seed.
    """
    fields: dict[str, type | tuple[type, ...]] = {"image": str, "caption_b": str, "caption_c": str}
    file = Rows(folder / "pairs.jsonl", {**fields, "references": list, "votes": list})
    references: list[list[str]] = file.column("references")
    signs = [int(majority(row["votes"])) for row in file.rows]
    path = folder / "draws.json"
    preferred: list[list[int]] = []
    if path.exists():
        content = load_json(path)
        draws = [_indices(path, draw["reference_indices"], references) for draw in content]
        for draw in content:
            labels = draw.get("labels", [])
            if len(labels) != len(file) or not set(labels) <= {"b", "c"}:
                found = f"{len(labels)} labels, expected b or c for each of {len(file)} pairs"
                raise FileError(file_problem(path, found, verb="has"))
            preferred.append([int(label == "c") for label in labels])
    else:
        rng = np.random.default_rng(0)
        draws = drawn([len(texts) for texts in references])
        for _ in draws:
            coins = rng.integers(0, 2, len(signs)).tolist()
            preferred.append(
                [coin if sign == 0 else int(sign < 0) for sign, coin in zip(signs, coins, strict=True)]
            )
    captions = [(row["caption_b"], row["caption_c"]) for row in file.rows]
    items = _items(captions, file.column("image"), references)
    return PairedSet("abstract50s", _scorings(items, draws), tuple(preferred), file.column("image"))


def drawn(counts: list[int], seed: int = 0) -> list[list[list[int]]]:
    """Five draws of five distinct references for each pair, of so many references.

    >>> [len(draw) for draw in drawn([50, 48])]
    [2, 2, 2, 2, 2]
    """
    rng = np.random.default_rng(seed)
    return [
        [rng.choice(count, min(_REFERENCES, count), replace=False).tolist() for count in counts]
        for _ in range(_DRAWS)
    ]


def _items(captions: list[tuple[str, str]], images: list[str], references: list[list[str]]) -> Items:
    return Items(
        [caption for pair in captions for caption in pair],
        [image for image in images for _ in range(2)],
        [texts for texts in references for _ in range(2)],
    )


def _scorings(items: Items, draws: list[list[list[int]]]) -> tuple[Scoring, ...]:
    return tuple(
        Scoring(f"draw {number}", items, [indices for indices in draw for _ in range(2)])
        for number, draw in enumerate(draws, start=1)
    )


def _indices(path: Path, draw: Any, references: list[list[str]]) -> list[list[int]]:
    """A draw's indices, checked against the references of each pair."""
    if not isinstance(draw, list) or len(draw) != len(references):
        found = f"{len(draw) if isinstance(draw, list) else 'no'} entries of {len(references)} pairs"
        raise FileError(file_problem(path, found, "expected a list of indices per pair", verb="has"))
    for number, (indices, texts) in enumerate(zip(draw, references, strict=True)):
        if not all(isinstance(index, int) and 0 <= index < len(texts) for index in indices):
            found = f"{indices}, of {len(texts)} references"
            raise FileError(file_problem(path, found, index=f"pair {number}", verb="has"))
    return draw
