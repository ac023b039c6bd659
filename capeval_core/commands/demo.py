"""`capeval demo`: good, subtly wrong and unrelated captions of the packaged images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from string import Template
from typing import Any

from capeval_core.commands.compare import cell_of, compare_systems
from capeval_core.commands.terminal import help_texts, paragraph, parser_of, table
from capeval_core.demo import KINDS, demo_set, score_kinds
from capeval_core.registry import load, metric_class
from capeval_core.reports.tables import System, stacked_table
from capeval_core.store import whole_folder

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
    items = demo_set()
    results = {name: score_kinds(load(name, weights="tiny"), items) for name in METRICS}
    titles = [metric_class(name).title for name in METRICS]
    count = len(items)
    ids = [item.id for item in items]
    captions: dict[str, list[str]] = {}
    systems = []
    for kind, field in KINDS.items():
        captions[kind] = [getattr(item, field) for item in items]
        cells = {}
        for name in METRICS:
            cells[name] = cell_of(results[name][kind])
        systems.append(System(kind, ids, captions[kind], cells))
    about = f"{count} drawn images, each with a good caption, one that is wrong in a word, and one of another"
    print(paragraph(f"{about} image. The first {_SHOWN}:"), end="\n\n")
    rows = [["IMAGE", *titles, "KIND", "CAPTION"]]
    for i, item in enumerate(items[:_SHOWN]):
        for kind, texts in captions.items():
            row = [item.image.name if kind == "good" else ""]  # once for its captions
            for name in METRICS:
                row.append(f"{results[name][kind].scores[i]:.3f}")
            rows.append([*row, kind, texts[i]])
    print(table(rows), end="\n\n")
    # The good captions are the baseline, so that the table tests how surely the others score below them.
    means = stacked_table(compare_systems(systems, systems[0].name))
    print(f"Means of all {count} images:", means.text(), sep="\n\n", end="\n\n")
