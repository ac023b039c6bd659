"""`capeval demo`: good, subtly wrong and unrelated captions of the packaged images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from capeval_core.commands.compare import cell_of, compare_systems
from capeval_core.commands.terminal import help_texts, paragraph, parser_of, table
from capeval_core.demo import KINDS, DemoItem, demo_set, score_kinds
from capeval_core.registry import load, metric_class
from capeval_core.reports.tables import System, stacked_table
from capeval_core.result import Result
from capeval_core.store import whole_folder

_Results = dict[str, Mapping[str, Result]]  # of each kind of caption, by metric
METRICS = ("pacs", "refpacs")
_SHOWN = 4  # images whose captions are printed


def run(arguments: list[str]) -> int:
    out = parser_of("demo").read(arguments).out
    if out is not None:
        _write_files(out)
    _print_scores()
    after = help_texts()["demo after"]
    print(after["text"], end="")
    if out is not None:
        print(Template(after["files"]).substitute(out=out), end="")
    return 0


def _write_files(folder: Path) -> None:
    if folder.exists():
        raise FileExistsError(f"--out {folder} exists: name a folder to be made")
    items = demo_set()
    # A file of captions per kind, as if each kind were a system: {image id: caption}.
    files: dict[str, dict[str, Any]] = {}
    for field in (*KINDS.values(), "references"):
        files[field] = {item.id: getattr(item, field) for item in items}
    with whole_folder(folder) as partial:
        (partial / "images").mkdir()
        for item in items:
            shutil.copy(item.image, partial / "images")
        for name, content in files.items():
            (partial / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _print_scores() -> None:
    """Score the captions of each kind, and print the first ones and the means."""
    items = demo_set()
    results: _Results = {}
    for name in METRICS:
        results[name] = score_kinds(load(name, weights="tiny"), items)
    count = len(items)
    about = f"{count} drawn images, each with a good caption, one that is wrong in a word, and one of another"
    print(paragraph(f"{about} image. The first {_SHOWN}:"), end="\n\n")
    print(table(_rows(items[:_SHOWN], results)), end="\n\n")
    systems = _systems(items, results)
    # The good captions are the baseline, so that the table tests how surely the others score below them.
    means = stacked_table(compare_systems(systems, systems[0].name))
    print(f"Means of all {count} images:", means.text(), sep="\n\n", end="\n\n")


def _rows(items: Sequence[DemoItem], results: _Results) -> list[list[str]]:
    """A header, then a row for each caption of images: its scores, its kind and itself."""
    titles = [metric_class(name).title for name in results]
    rows = [["IMAGE", *titles, "KIND", "CAPTION"]]
    for index, item in enumerate(items):
        for kind, field in KINDS.items():
            row = [item.image.name if kind == "good" else ""]  # once for its captions
            for result_of_kind in results.values():
                row.append(f"{result_of_kind[kind].scores[index]:.3f}")
            rows.append([*row, kind, getattr(item, field)])
    return rows


def _systems(items: Sequence[DemoItem], results: _Results) -> list[System]:
    """The captions of each kind as if one system had written them."""
    ids = [item.id for item in items]
    systems = []
    for kind, field in KINDS.items():
        captions = [getattr(item, field) for item in items]
        cells = {name: cell_of(result_of_kind[kind]) for name, result_of_kind in results.items()}
        systems.append(System(kind, ids, captions, cells))
    return systems
