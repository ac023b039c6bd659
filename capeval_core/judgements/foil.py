"""FOIL, nocaps-FOIL and ActivityNet-FOIL: a right caption against the same one with a wrong word.

FOIL (Shekhar et al., ACL 2017) and nocaps-FOIL (Petryk et al., NAACL 2024) compare captions of an image, with
the first 1, 4 or 9 references. ActivityNet-FOIL (Shi et al., CVPR 2022) compares paragraphs about a video:
the scores of a paragraph's sentences are averaged first. The right one has to have the strictly higher score.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capeval_core.judgements.files import Rows
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.pairs import PairedSet

_PAIR: dict[str, type | tuple[type, ...]] = {"true_caption": str, "foil_caption": str, "references": list}


def load_foil(folder: Path) -> PairedSet:
    """`pairs.jsonl` (image, true_caption, foil_caption, references), for 1 and 4 references."""
    return _with_references("foil", folder, (1, 4))


def load_nocaps_foil(folder: Path) -> PairedSet:
    """`pairs.jsonl` (image, true_caption, foil_caption, references), for 1, 4 and 9 references."""
    return _with_references("nocaps_foil", folder, (1, 4, 9))


def load_activitynet_foil(folder: Path) -> PairedSet:
    """`pairs.jsonl` (video, paragraph, true_caption, foil_caption, references): a row is a pair of
    sentences."""
    file = Rows(folder / "pairs.jsonl", {"video": str, "paragraph": str, **_PAIR})
    items = _items(file, "video")
    paragraphs = [f"{row['video']}/{row['paragraph']}" for row in file.rows]
    return PairedSet(
        "activitynet_foil",
        (Scoring("accuracy", items),),
        ([0] * len(file),),
        file.column("video"),
        by_scoring=True,
        paragraphs=paragraphs,
    )


def _with_references(name: str, folder: Path, counts: Sequence[int]) -> PairedSet:
    file = Rows(folder / "pairs.jsonl", {"image": str, **_PAIR})
    items = _items(file, "image")
    available = [len(texts) for texts in items.references or []]
    scorings = [
        Scoring(
            "1 reference" if count == 1 else f"{count} references",
            items,
            [list(range(min(count, own))) for own in available],
        )
        for count in counts
    ]
    labels = ([0] * len(file),) * len(scorings)
    return PairedSet(name, tuple(scorings), labels, file.column("image"), by_scoring=True)


def _items(file: Rows, visual: str) -> Items:
    """True caption, foil, true caption, foil, ..."""
    return Items(
        [caption for row in file.rows for caption in (row["true_caption"], row["foil_caption"])],
        [row[visual] for row in file.rows for _ in range(2)],
        [row["references"] for row in file.rows for _ in range(2)],
    )
