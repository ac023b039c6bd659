"""What metrics on box features of images share: where the boxes come from, and which captions share them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar

from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, Model
from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.regions.features import BoxVisual, RegionEncoder, Selection
from capeval_core.scores.box_source import (
    BoxSource,
    FirstBoxes,
    box_source_opener,
    boxes_by_id,
    regions_of,
    store_of,
)
from capeval_core.weights.catalogue import WeightsEntry
from capeval_core.weights.folder import WeightsFolder

CAPTIONS_AT_ONCE = 256
"""Captions whose images' box features are held together, which bounds memory."""


@dataclass(frozen=True, kw_only=True)
class RegionOptions(CommonOptions):
    """Options of metrics on box features."""

    regions: str | PathLike[str] | RegionEncoder | None = option(
        None,
        "box features: weights of a region encoder (Hub id, folder, `tiny`), or features that were made "
        "before (a folder of .npz files, UNITER's LMDB, a bottom-up-attention .tsv), and then `images` are "
        "ids and none is opened; None: the region encoder that the weights name",
    )

    @property
    def images_are_ids(self) -> bool:
        return store_of(self.regions) is not None

    def check(self, metric: Any) -> None:
        if self.regions is not None:
            box_source_opener(self.regions)


class RegionMetric(CaptionMetric):
    """A metric that compares captions with features of boxes in images."""

    media = ("image", "boxes")
    crops = False
    plots = True
    default_regions: ClassVar[WeightsEntry]
    """The region encoder where neither options nor weights name one."""

    options: RegionOptions

    @classmethod
    def check_input(cls, options: Any, *inputs: Any, progress: bool = False) -> Samples:
        captions, images, *references = inputs
        if (store := store_of(options.regions)) is not None:
            images = boxes_by_id(store, images)
        return super().check_input(options, captions, images, *references, progress=progress)

    def open_regions(
        self, folder: WeightsFolder, selection: Selection | None, device: Mapping[str, Any]
    ) -> Model:
        """Open the region encoder of the options, else the one that the metric's weights name."""
        spec = self.options.regions
        if spec is None:
            spec = regions_of(folder.config, self.default_regions.repository)
            self.options = dataclasses.replace(self.options, regions=spec)
        self.regions: BoxSource = box_source_opener(spec)(selection=selection, **device)
        return Model(self.regions.label, self.regions.fingerprint)

    def boxes(self, samples: Samples) -> list[BoxVisual | FirstBoxes]:
        """Box features of the samples' images."""
        found = self.regions.boxes(samples.images, cache=self.cache, batch_size=self.options.batch_size)
        return list(found)


def rows_by_image(boxes: Sequence[BoxVisual | FirstBoxes]) -> list[list[int]]:
    """Rows that share an image, for each image, in order."""
    sharing: dict[object, list[int]] = {}
    for row, visual in enumerate(boxes):
        sharing.setdefault(visual.identity, []).append(row)
    return list(sharing.values())
