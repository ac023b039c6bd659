"""`capeval score --explain`: where each score comes from, drawn and in numbers, caption by caption."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from capeval_core.commands.metrics import command_of
from capeval_core.commands.outputs import write
from capeval_core.metric import CaptionMetric
from capeval_core.registry import every_class
from capeval_core.result import Result, json_text

FLAG = "--explain"


def make_folder(folder: Path, metric: type[CaptionMetric]) -> None:
    """Have an empty folder for explanations, before anything is scored, or raise."""
    if not metric.plots:
        able = ", ".join(command_of(class_) for class_ in every_class() if class_.plots)
        raise ValueError(
            f"{FLAG}: what explains {command_of(metric)} cannot be drawn, only that of {able}; "
            "--evidence with --json writes it as numbers"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{FLAG} {folder} is a file: name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        filled = any(folder.iterdir())
    except OSError as error:
        raise OSError(f"{FLAG} {folder}: no folder can be made there ({error.strerror})") from error
    if filled:
        raise ValueError(f"{FLAG} {folder} is not empty: name a new or an empty folder")


def write_explanations(folder: Path, ids: Sequence[str], result: Result) -> str:
    """Write `ID-NUMBER.png` and `ID-NUMBER.json` for each caption of each image; a line that says how many.

    Slashes of ids become underscores. A caption without a score has no image; its numbers say why.
    """
    numbers: Counter[str] = Counter()
    drawn = 0
    for index, image_id in enumerate(tqdm(ids, FLAG[2:], disable=None, unit="caption")):
        name = image_id.replace("/", "_")
        numbers[name] += 1
        path = folder / f"{name}-{numbers[name]}"
        explanation = result.explain(index)
        content = {"id": image_id, "number": numbers[name], **explanation}
        write(FLAG, path.with_name(path.name + ".json"), json_text(content))
        if index not in result.errors:
            drawing = io.BytesIO()
            explanation.plot().save(drawing, "PNG")  # type: ignore[attr-defined]
            write(FLAG, path.with_name(path.name + ".png"), drawing.getvalue())
            drawn += 1
    share = f"{drawn:,}" if drawn == len(ids) else f"{drawn:,} of {len(ids):,}"
    return f"explained  {share} captions in {folder}"
