"""Tables of examples for the trackers of trainings: TensorBoard, Weights & Biases and trackio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageDraw

from capeval_core.errors import warn
from capeval_core.reports.examples import COLUMNS, Example
from capeval_core.reports.tables import Table

_GAP = 6  # pixels between pictures
_LABEL = 14  # pixels above a picture, for its number


class Tracker(Protocol):
    """A place that the curves of a training are sent to."""

    name: str

    def log_examples(self, tag: str, examples: Sequence[Example], step: int) -> None:
        """Show a table of examples at a step; whatever the tracker raises is raised."""


class TensorBoardTracker:
    """A `SummaryWriter`: its tables are Markdown, without pictures, which are beside it under one number."""

    name = "TensorBoard"

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log_examples(self, tag: str, examples: Sequence[Example], step: int) -> None:
        rows = []
        pictures: dict[int, Image.Image] = {}
        for number, example in enumerate(examples, 1):
            has_picture = example.picture is not None
            if example.picture is not None:
                pictures[number] = example.picture
            cells = example.cells(f"{number}" if has_picture else "")
            rows.append(["" if cell is None else str(cell) for cell in cells])
        # Without the title, since TensorBoard shows the tag.
        text = Table("", COLUMNS, rows).markdown().partition("\n\n")[2]
        self._writer.add_text(tag, text, step)
        if pictures:
            # One sheet, each picture under its number: the cells of the table are text alone.
            self._writer.add_image(tag, np.asarray(_sheet(pictures)), step, dataformats="HWC")
        self._writer.flush()


class TableTracker:
    """Weights & Biases or trackio, whose modules have the same `Table`, `Image` and `log`."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.name = str(module.__name__)

    def log_examples(self, tag: str, examples: Sequence[Example], step: int) -> None:
        rows = []
        for example in examples:
            picture = None if example.picture is None else self._module.Image(example.picture)
            rows.append(example.cells(picture))
        table = self._module.Table(columns=list(COLUMNS), data=rows)
        # As the Trainer's callbacks log numbers: the step is a number of its own, not the tracker's counter.
        self._module.log({tag: table, "train/global_step": step})


class Guard:
    """Calls of trackers, of which one that fails costs a warning: it may not end a training of days."""

    def __init__(self) -> None:
        self._broken: set[str] = set()

    def log(self, name: str, call: Callable[[], object]) -> None:
        """Call a tracker, and warn once of the one with this name if it raises."""
        try:
            call()
        except Exception as error:  # a full disk, a server that is away, another version
            if name not in self._broken:
                self._broken.add(name)
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                warn(f"{name} took no examples or numbers of this evaluation; training goes on ({reason})")


def accelerate_trackers(trackers: Iterable[Any]) -> list[Tracker]:
    """Those of accelerate's trackers that take tables."""
    with_tables: list[Tracker] = []
    for tracker in trackers:
        if tracker.name == "tensorboard":
            with_tables.append(TensorBoardTracker(tracker.writer))
        elif tracker.name in ("wandb", "trackio"):
            with_tables.append(TableTracker(import_module(tracker.name)))
    return with_tables


def _sheet(pictures: dict[int, Image.Image]) -> Image.Image:
    """Pictures side by side in rows of four, each under its number in the table."""
    width = max(picture.width for picture in pictures.values()) + _GAP
    height = max(picture.height for picture in pictures.values()) + _LABEL + _GAP
    columns = min(len(pictures), 4)
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (number, picture) in enumerate(pictures.items()):
        x = place % columns * width
        y = place // columns * height
        draw.text((x + 2, y), str(number), fill="black")
        sheet.paste(picture, (x, y + _LABEL))
    return sheet
