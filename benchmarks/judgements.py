"""Every judged set at hand: our numbers beside those recomputed with other programs, and beside the papers'.

    python -m benchmarks.judgements --data FOLDER [--sets NAMES] [--out benchmarks/results/judgements.md]

FOLDER holds a folder per set with its `expected.json`, which was made by pycocoevalcap 1.2 and scipy (BLEU,
ROUGE-L and CIDEr of its Java tokeniser). BLEU, ROUGE-L and CIDEr-D are computed here; METEOR, FLEUR and UMIC
are scores that lie beside the sets. A difference above 0.01 on the scale of 100 (1e-5 on the scale of 1 for
systems) is a FAIL, and exit status 1. The output holds numbers only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import capeval_core
from capeval_core.errors import FileError
from capeval_core.judgements.external_scores import read_scores
from capeval_core.judgements.protocols import Cell, JudgedSet, Scored
from capeval_core.judgements.scoring import SetScorer
from capeval_core.judgements.sets import folder_of, load_set, set_entry
from capeval_core.judgements.tables import published

METRICS = ("bleu", "rougel", "ciderd")
OURS = {"CIDEr": "CIDEr-D"}
"""Rows of `expected.json` by their label here."""
SYSTEMS = {
    "m2_transformer": {"BLEU-1": 80.761, "BLEU-4": 39.094, "ROUGE-L": 58.635, "CIDEr": 131.197},
    "blip2_results_xe": {"BLEU-1": 83.137, "BLEU-4": 43.807, "ROUGE-L": 62.010, "CIDEr": 146.007},
}
"""pycocoevalcap 1.2 after Java's PTB tokenisation, five digits."""
TOLERANCE = 0.01
OF_SYSTEMS = 1e-3


@dataclass(frozen=True)
class Line:
    """A number of ours, what is expected, what is published, and the distance to that in deviations of
    draws."""

    name: str
    label: str
    column: str
    ours: float
    expected: float | None
    tolerance: float = TOLERANCE
    deviation: float = math.nan

    @property
    def ok(self) -> bool:
        return self.expected is None or abs(self.ours - self.expected) <= self.tolerance

    def cells(self) -> list[str]:
        expected = "" if self.expected is None else f"{self.expected:.4f}"
        difference = "" if self.expected is None else f"{self.ours - self.expected:+.5f}"
        paper = published(self.name.split(",")[0], self.label, self.column)
        printed = distance = z_score = ""
        if paper is not None:
            printed = paper.printed
            distance = f"{self.ours - paper.value:+.2f}"
            if self.deviation > 0:
                z_score = f"{(self.ours - paper.value) / self.deviation:+.1f}"
        verdict = "" if self.expected is None else "ok" if self.ok else "FAIL"
        first = [self.name, self.label, self.column, f"{self.ours:.4f}", expected, difference, verdict]
        return [*first, printed, distance, z_score]


def scored(judged: JudgedSet) -> dict[str, list[Scored]]:
    """The n-gram metrics over a set, by the labels of `expected.json`."""
    scores: dict[str, list[Scored]] = {}
    for name in METRICS:
        scores |= SetScorer(judged).score(capeval_core.load(name))
    label_of = {label: name for name, label in OURS.items()}
    return {label_of.get(label, label): runs for label, runs in scores.items()}


def stored(judged: JudgedSet, path: Path, labels: tuple[str, ...]) -> dict[str, list[Scored]]:
    """These rows of a file of scores, where it is there."""
    scores = read_scores(path, judged) if path.exists() else {}
    return {label: runs for label, runs in scores.items() if label in labels}


def taus(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    scores = scored(judged) | stored(judged, folder / "scores.npz", ("METEOR", "FLEUR", "FLEUR_raw"))
    for label, runs in scores.items():
        of_label = expected["recomputed"].get(label, {})
        for column, cell in judged.cells(runs, None).items():
            yield Line(name, label, column, 100 * cell.value, of_label.get(f"kendall_{column}"))
    umic = folder / "released_umic_scores.json"
    if umic.exists():
        runs = next(iter(read_scores(umic, judged).values()))
        for column, cell in judged.cells(runs, None).items():
            yield Line(name, "UMIC", column, 100 * cell.value, {"tau_b": 32.8, "tau_c": 32.9}[column], 0.05)


def pascal(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    of_draws = expected["recomputed_per_draw"]
    means = expected["recomputed_mean_of_five_draws_from_50"]
    for label, runs in scored(judged).items():
        cells = judged.cells(runs, None)
        expected_of_draws = [draw.get(label) for draw in of_draws]
        for column, cell in cells.items():
            key = "Mean" if column == "mean" else column
            for number, (value, draw) in enumerate(zip(cell.runs, expected_of_draws, strict=True), start=1):
                if draw is not None:
                    yield Line(f"{name}, draw {number}", label, column, 100 * value, draw[key])
            mean = means[label]["mean"][key] if label in means else None
            yield Line(name, label, column, 100 * cell.value, mean, deviation=100 * cell.deviation)
    fixed = load_set(name, folder, draws="fixed")
    recomputed = expected["recomputed_fixed_references5"]
    labels = ("METEOR", "FLEUR")
    scores = scored(fixed) | stored(fixed, folder / "scores_references5.npz", labels)
    for label, runs in scores.items():
        of_label = recomputed.get(label, {})
        for column, cell in fixed.cells(runs, None).items():
            yield Line(f"{name}, released references", label, column, 100 * cell.value, of_label.get(column))
    fleur_set = load_set(name, folder, draws="fixed", labels="label_fleur_run")
    for label, runs in stored(fleur_set, folder / "scores_references5.npz", ("FLEUR",)).items():
        for column, cell in fleur_set.cells(runs, None).items():
            value = expected["FLEUR_with_its_own_labels"][column]
            yield Line(f"{name}, FLEUR's labels", label, column, 100 * cell.value, value)


def abstract(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    for label, runs in scored(judged).items():
        for column, cell in judged.cells(runs, None).items():
            for number, (value, draw) in enumerate(
                zip(cell.runs, expected["recomputed_per_draw"], strict=True), 1
            ):
                yield Line(f"{name}, draw {number}", label, column, 100 * value, draw[label]["strict"])
            mean = expected["recomputed_mean"][label]["strict"]
            yield Line(name, label, column, 100 * cell.value, mean, deviation=100 * cell.deviation)


def nocaps(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    for label, runs in (scored(judged) | stored(judged, folder / "scores.npz", ("METEOR",))).items():
        for column, cell in judged.cells(runs, None).items():
            value = expected["recomputed"][column.split()[0]][label]["strict"]
            yield Line(name, label, column, 100 * cell.value, value)


def thumb(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    names = {"P": "P", "R": "R", "total": "human_score"}
    for label, runs in (scored(judged) | stored(judged, folder / "scores.npz", ("METEOR",))).items():
        for column, cell in judged.cells(runs, None).items():
            rating, _, subset = column.partition(" ")
            if rating in names and math.isfinite(cell.value):
                of_rows = expected["recomputed"]["without_human" if subset else "all"]
                yield Line(name, label, column, 100 * cell.value, 100 * of_rows[label][names[rating]])


def hat(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    for label, runs in scored(judged).items():
        cell: Cell = judged.cells(runs, None)["AP"]
        yield Line(name, label, "AP", 100 * cell.value, expected["recomputed"].get(label))


def systems(name: str, folder: Path, expected: Mapping[str, Any]) -> Iterator[Line]:
    judged = load_set(name, folder)
    for label, runs in scored(judged).items():
        for column, cell in judged.cells(runs, None).items():
            yield Line(name, label, column, 100 * cell.value, SYSTEMS[column].get(label), OF_SYSTEMS)


KINDS = {
    "flickr8k_expert": taus,
    "flickr8k_cf": taus,
    "composite": taus,
    "pascal50s": pascal,
    "abstract50s": abstract,
    "nocaps_foil": nocaps,
    "hat": hat,
    "capeval1k": taus,
    "thumb": thumb,
    "nebula": taus,
    "coco_systems": systems,
}


def lines_of(name: str, data: Path) -> Iterator[Line]:
    """Every number of a set.

    Raises:
        FileError: the set is not there.
    """
    folder = folder_of(set_entry(name), data)
    path = folder / "expected.json"
    expected = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    yield from KINDS[name](name, folder, expected)


def main() -> int:
    parser = argparse.ArgumentParser(description="Our numbers on the judged sets beside the expected ones.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(KINDS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    header = ["set", "metric", "column", "ours", "expected", "difference", "", "published", "distance", "z"]
    text = [
        f"`python -m benchmarks.judgements --data FOLDER`, {datetime.now(UTC):%Y-%m-%d}, times 100.",
        "Expected: recomputed with pycocoevalcap 1.2 and scipy; published: see",
        "`capeval_core/judgements/published.toml`; z: distance in deviations over the draws of references.\n",
        f"| {' | '.join(header)} |",
        "| " + " | ".join(["---"] * len(header)) + " |",
    ]
    failed = compared = 0
    for name in options.sets.split(","):
        start = time.perf_counter()
        try:
            lines = list(lines_of(name, options.data))
        except FileError as error:
            print(f"{name}: skipped, {error}", file=sys.stderr)
            continue
        text += [f"| {' | '.join(line.cells())} |" for line in lines]
        of_set = [line for line in lines if line.expected is not None]
        failed_lines = [line for line in of_set if not line.ok]
        failed += len(failed_lines)
        compared += len(of_set)
        seconds = time.perf_counter() - start
        print(
            f"{name}: {len(of_set)} compared, {len(failed_lines)} FAIL, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    text.append(f"\n{compared} numbers compared, {failed} FAIL.")
    output = "\n".join(text) + "\n"
    print(output) if options.out is None else options.out.write_text(output, encoding="utf-8")
    return int(failed > 0 or compared == 0)


if __name__ == "__main__":
    sys.exit(main())
