"""BLEU, ROUGE-L and CIDEr-D beside scores of judged sets that pycocoevalcap computed, caption by caption.

    python -m benchmarks.ngram_sets [DATA] [--out FILE.md]

DATA holds a folder per set (capeval1k, composite, flickr8k_cf, ...) with captions, references and a file
`scores.npz` of pycocoevalcap 1.2, whose tokens are those of its tokeniser in Java. That tool reads all
captions as one text, so that a single letter at the end of one ("a Wii U.") keeps its full stop or not by
what the next one begins with; ours reads each by itself. The table counts captions whose score that moves:
its own, and by document frequencies those near it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.integrations import CocoScores

DATA = Path(__file__).parents[2] / "shared" / "data"
NAMES = {f"BLEU-{n}": f"Bleu_{n}" for n in range(1, 5)} | {"ROUGE-L": "ROUGE_L", "CIDEr": "CIDEr"}
"""Names in the files of scores, and in pycocoevalcap."""


EQUAL = 1e-9


@dataclass(frozen=True)
class Stored:
    """Captions that were scored together, and their scores, name by name as in `CocoScores.arrays`."""

    name: str
    captions: list[str]
    references: list[list[str]]
    scores: dict[str, NDArray[np.float64]]

    def differences(self) -> dict[str, NDArray[np.float64]]:
        """The difference of each caption, by name."""
        gts = dict(enumerate(self.references))
        arrays = CocoScores(gts, {i: [text] for i, text in enumerate(self.captions)}).arrays
        return {name: np.abs(arrays[name] - stored) for name, stored in self.scores.items()}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _scores(path: Path, suffix: str = "", file: str = "scores.npz") -> dict[str, NDArray[np.float64]]:
    with np.load(path / file, allow_pickle=False) as arrays:
        return {
            ours: arrays[theirs + suffix] for theirs, ours in NAMES.items() if theirs + suffix in arrays.files
        }


def _flickr8k_expert(path: Path) -> Iterator[Stored]:
    rows, references = _lines(path / "judgements.jsonl"), _json(path / "references.json")
    # The captions of one image and their references, as one line each: white space was collapsed.
    texts = [" ".join(row["candidate"].split()) for row in rows]
    yield Stored(path.name, texts, [references[row["image"]] for row in rows], _scores(path))


def _flickr8k_cf(path: Path) -> Iterator[Stored]:
    captions, references = _json(path / "captions.json"), _json(path / "references.json")
    with (path / "judgements.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [captions[row["caption_id"]] for row in rows]
    yield Stored(path.name, texts, [references[row["image"]] for row in rows], _scores(path))


def _composite(path: Path) -> Iterator[Stored]:
    rows, sets = _lines(path / "judgements.jsonl"), _json(path / "references.json")
    texts = [row["candidate"] for row in rows]
    of_rows = [sets[f"{row['subset']}/{row['image']}"] for row in rows]
    yield Stored(
        f"{path.name}, all references",
        texts,
        [own["references"] for own in of_rows],
        _scores(path, "__all_references"),
    )
    left = [
        [text for i, text in enumerate(own["references"]) if i != own["human_candidate_index"]]
        for own in of_rows
    ]
    yield Stored(path.name, texts, left, _scores(path))


def _capeval1k(path: Path) -> Iterator[Stored]:
    rows, references = _lines(path / "captions.jsonl"), _json(path / "references.json")
    texts = [row["candidate"] for row in rows]
    yield Stored(path.name, texts, [references[row["image"]] for row in rows], _scores(path))


def _nebula_test(path: Path) -> Iterator[Stored]:
    rows = _lines(path / "test.jsonl")
    texts = [row["candidate"] for row in rows]
    yield Stored(path.name, texts, [row["references"] for row in rows], _scores(path))


def _thumb_mscoco(path: Path) -> Iterator[Stored]:
    rows, references = _lines(path / "captions.jsonl"), _json(path / "references.json")
    texts = [row["hyp"] for row in rows]
    yield Stored(path.name, texts, [references[row["seg_id"]] for row in rows], _scores(path))


def _nocaps_foil(path: Path) -> Iterator[Stored]:
    rows = _lines(path / "pairs.jsonl")
    for count in (1, 4, 9):
        texts = [row[f"{kind}_caption"] for row in rows for kind in ("true", "foil")]
        references = [row["references"][:count] for row in rows for _ in range(2)]
        scores = {name: pairs.ravel() for name, pairs in _scores(path, f"__refs{count}").items()}
        yield Stored(f"{path.name}, {count} references", texts, references, scores)


def _pascal50s(path: Path) -> Iterator[Stored]:
    pairs, fifty = _lines(path / "pairs.jsonl"), _json(path / "references50.json")
    chosen = _json(path / "references5.json")
    own = [[fifty[pair["image"]][i] for i in five] for pair, five in zip(pairs, chosen, strict=True)]
    texts = [pair[f"caption_{side}"] for side in "ab" for pair in pairs]
    a, b = (_scores(path, f"__{side}", "scores_references5.npz") for side in "ab")
    yield Stored(path.name, texts, own * 2, {name: np.concatenate([a[name], b[name]]) for name in a})


SETS: dict[str, Callable[[Path], Iterator[Stored]]] = {
    "capeval1k": _capeval1k,
    "composite": _composite,
    "flickr8k_cf": _flickr8k_cf,
    "flickr8k_expert": _flickr8k_expert,
    "nebula_test": _nebula_test,
    "nocaps_foil": _nocaps_foil,
    "pascal50s": _pascal50s,
    "thumb_mscoco": _thumb_mscoco,
}
"""The reader of each set, by its folder."""


def _cell(apart: NDArray[np.float64]) -> str:
    count = int(np.count_nonzero(apart > EQUAL))
    return f"{apart.max():.1e}" + (f" ({count})" if count else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ngram_sets", description=__doc__.splitlines()[0]
    )
    parser.add_argument("data", nargs="?", type=Path, default=DATA)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    lines = [
        "# Scores of pycocoevalcap that lie beside judged sets, and ours",
        "",
        f"`python -m benchmarks.ngram_sets`, {datetime.date.today()}: the largest difference of one caption, "
        f"and how many differ by more than {EQUAL:g}.",
        "",
        "| set | captions | " + " | ".join(NAMES) + " | seconds |",
        "| --- | --- | " + " | ".join("---" for _ in NAMES) + " | --- |",
    ]
    for name, read in SETS.items():
        for stored in read(given.data / name):
            start = time.perf_counter()
            apart = stored.differences()
            seconds = time.perf_counter() - start
            cells = [_cell(apart[n]) if n in apart else "" for n in NAMES.values()]
            lines.append(
                f"| {stored.name} | {len(stored.captions):,} | {' | '.join(cells)} | {seconds:.1f} |"
            )
            print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
