"""`capeval demo`: good, subtly wrong and unrelated captions of the packaged images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from capeval_core.commands.compare import ScoredSystem, compare_systems
from capeval_core.commands.terminal import WHOLE_LINES, Parser, flag, paragraph, table
from capeval_core.demo import KINDS, DemoItem, demo_set, score_kinds
from capeval_core.kept import whole_folder
from capeval_core.registry import load, metric_class
from capeval_core.reports.systems import stacked_table
from capeval_core.result import Result
from capeval_core.weights.catalogue import PACS_B32

METRICS = ("pacs", "refpacs")
_SHOWN = 4
"""Images whose captions are printed."""


def run(arguments: list[str]) -> int:
    about = "Score packaged images with the packaged `tiny` weights: no network, no files."
    parser = Parser("demo", None, about)
    flag(parser, "--out FOLDER", "also write the images, captions and references into a folder")
    flags = parser.read(arguments)
    if flags.out is not None:
        _write_files(flags.out)
    print(_report())
    if flags.out is not None:
        files = f"--candidates {flags.out / 'good.json'} --images {flags.out / 'images'}"
        more = f"--references {flags.out / 'references.json'} --weights tiny"
        print(f"\nOn the files in {flags.out}:\n  capeval score refpacs {files} \\\n      {more}")
    return 0


def _write_files(folder: Path) -> None:
    """Write `images/`, `references.json`, and a file of each kind of captions, into a new folder."""
    if folder.exists():
        raise FileExistsError(f"--out {folder} exists: name a folder to be made")
    items = demo_set()
    texts = {field: {item.id: getattr(item, field) for item in items} for field in KINDS.values()}
    with whole_folder(folder) as partial:
        (partial / "images").mkdir()
        for item in items:
            shutil.copy(item.image, partial / "images")
        for name, content in {**texts, "references": {item.id: item.references for item in items}}.items():
            text = json.dumps(content, indent=1) + "\n"
            (partial / f"{name}.json").write_text(text, encoding="utf-8")


def _report() -> str:
    """The demo as text: scores of the first images, then means of all with intervals and tests."""
    items = demo_set()
    results = {name: score_kinds(load(name, weights="tiny"), items) for name in METRICS}
    titles = [metric_class(name).title for name in METRICS]
    ids = [item.id for item in items]
    systems = [
        ScoredSystem(
            kind,
            ids,
            [getattr(item, field) for item in items],
            None,
            None,
            {name: results[name][kind] for name in METRICS},
        )
        for kind, field in KINDS.items()
    ]
    means = stacked_table(compare_systems(systems, systems[0].name, one_run=True))
    return "\n".join(
        [
            paragraph(
                f"{len(items)} drawn images, each with a good caption, one that is wrong in a word, and "
                f"one of another image. The first {_SHOWN}:"
            ),
            "",
            table([["IMAGE", *titles, "KIND", "CAPTION"], *_rows(items[:_SHOWN], results)]),
            "",
            *_mistakes(items, results),
            f"Means of all {len(items)} images:",
            "",
            table([means.header, *means.rows], width=WHOLE_LINES),
            "",
            *(note if "|" in note else paragraph(note) for note in means.notes),
            "",
            *_next_steps(),
        ]
    )


def _rows(items: list[DemoItem], results: dict[str, dict[str, Result]]) -> Iterator[list[str]]:
    for i, item in enumerate(items):
        for kind, field in KINDS.items():
            scores = [f"{results[name][kind].scores[i]:.3f}" for name in METRICS]
            yield [item.image.name if kind == "good" else "", *scores, kind, getattr(item, field)]


def _mistakes(items: list[DemoItem], results: dict[str, dict[str, Result]]) -> list[str]:
    """Where a caption that is not true has the best score of its image, which a metric may give."""
    mistakes = [
        f"{metric_class(name).title} of {item.image.name}"
        for name in METRICS
        for i, item in enumerate(items)
        if max(KINDS, key=lambda kind: results[name][kind].scores[i]) != "good"
    ]
    if not mistakes:
        return []
    lesson = "single scores are noisy; means over many captions much less"
    return [paragraph(f"A wrong caption wins in {', '.join(mistakes)}: {lesson}."), ""]


def _next_steps() -> list[str]:
    files = "--candidates captions.json --images images"
    weights = PACS_B32
    return [
        "`tiny` knows only such drawings. On yours CLIP-S, with its weights from the Hub:",
        f"  capeval score clips {files}",
        f"and PAC-S, with {weights.checkpoint} of its authors, who host it at",
        *(f"  {address}" for address in weights.original.split(" and ")),
        "  " + weights.convert_command("pacs").replace(" --out", " \\\n      --out"),
        f"  capeval score pacs {files} \\\n      --weights {weights.folder}",
    ]
