"""Box features of a training set on the disk: computed once, then read as they are needed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capeval_core.encoders.uniter import RegionInput, region_input
from capeval_core.errors import Problem, Problems
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.visual import ImageError
from capeval_core.writing import write_whole

_INDEX, _FEATURES, _POSITIONS = "index.json", "features.bin", "positions.bin"


class FoundBoxes(Protocol):
    """Box features of an image, or why there are none: what region encoders and stores of features give."""

    @property
    def where(self) -> str:
        """The image, for messages."""

    def load(self) -> BoxFeatures:
        """The features. Raises ImageError or ValueError where there are none."""


class RegionStore:
    """What UNITER takes of the boxes of n images, in float16, in which it is trained.

    Args:
        folder: as `write` made it.

    Raises:
        OSError, ValueError: it is not complete.
    """

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        self.starts = np.cumsum([0, *index["boxes"]])
        shape = (int(self.starts[-1]), int(index["region_size"]))
        self.features: NDArray[np.float16] = np.memmap(folder / _FEATURES, np.float16, "r", shape=shape)
        self.positions: NDArray[np.float32] = np.memmap(
            folder / _POSITIONS, np.float32, "r", shape=(shape[0], 7)
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, image: int) -> RegionInput:
        """Of image number `image`."""
        rows = slice(self.starts[image], self.starts[image + 1])
        return RegionInput(self.features[rows].astype(np.float32), np.array(self.positions[rows]))

    def means(self) -> NDArray[np.float32]:
        """(n, region_size) mean features of the boxes of each image."""
        return np.stack([self[image].features.mean(axis=0) for image in range(len(self))])

    @classmethod
    def write(cls, folder: Path, boxes: Iterable[FoundBoxes], stamp: str, region_size: int) -> RegionStore:
        """The store of these images, in order; one that is there with the same stamp is opened.

        stamp: everything that the features depend on.

        Raises:
            ValueError: images without usable features; each is named with the reason.
        """
        index = folder / _INDEX
        if index.is_file() and json.loads(index.read_text(encoding="utf-8")).get("stamp") == stamp:
            return cls(folder)
        folder.mkdir(parents=True, exist_ok=True)
        counts: list[int] = []
        problems = Problems()
        with (folder / _FEATURES).open("wb") as features, (folder / _POSITIONS).open("wb") as positions:
            for found in boxes:
                try:
                    loaded = found.load()
                    loaded.check_width(region_size)
                    regions = region_input(loaded)
                except ImageError as error:
                    problems.extend(error.problems)
                    continue
                except ValueError as error:
                    problems.add(Problem(found.where, None, str(error), verb="", kind=ImageError))
                    continue
                features.write(regions.features.astype(np.float16).tobytes())
                positions.write(regions.positions.tobytes())
                counts.append(len(regions.positions))
        problems.raise_if_any()
        content = {"stamp": stamp, "region_size": region_size, "boxes": counts}
        write_whole(index, json.dumps(content))
        return cls(folder)
