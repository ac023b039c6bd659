"""Metrics on box features of images; the boxes come from a region encoder, a store, or the input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os import PathLike
from typing import Any, ClassVar, get_args

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problem, expanded_path, naming, setting, wrong_option
from capeval_core.fetching import listed_entry, open_listed
from capeval_core.inputs.boxes import Boxes, BoxFeatures, BoxFeatureStore, id_of
from capeval_core.inputs.images import ImageError, Source, Visual, as_list
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, CommonOptions, Model
from capeval_core.options import option
from capeval_core.regions.features import (
    FIXED,
    MOST,
    BoxVisual,
    RegionEncoder,
    Selection,
    boxes_kept,
    refuse_unusable,
)
from capeval_core.registry import network_of
from capeval_core.weights.catalogue import FASTER_RCNN, WeightsEntry
from capeval_core.weights.folder import CONFIG, WeightsError, open_unless_on_the_hub

_SUFFIXES = (".npz", ".tsv", ".mdb", ".lmdb")
"""Suffixes of files of features, which are not weights even where they are missing."""
_EXPECTED = (
    "expected weights of a region encoder (a Hub id, a folder, 'tiny') or features made before (a folder of "
    ".npz files, UNITER's LMDB, a bottom-up-attention .tsv; '.' is the current folder)"
)


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

    @property
    def box_selection(self) -> Selection | None:
        """The rule by which boxes of an image are selected; None: all that the region encoder gives."""
        return None


class RegionMetric(CaptionMetric):
    """A metric that compares captions with features of boxes in images."""

    media = ("image", "boxes")
    languages = ("English",)
    crops = False
    plots = True
    default_regions: ClassVar[WeightsEntry]
    """The region encoder where neither options nor weights name one."""

    options: RegionOptions

    @classmethod
    def check_options(cls, options: Any) -> None:
        super().check_options(options)
        if options.regions is not None:
            box_source_opener(options.regions)  # whose checks come before any weights are opened
        if options.exif is not None and options.images_are_ids:
            problem = "is for images, and regions holds features that were made before"
            raise wrong_option("exif", options.exif, problem, "leave it out")
        # The boxes of another rule give plausible scores that are not the metric's.
        if options.box_selection is not None:
            check_selection(options.regions, options.box_selection)

    @classmethod
    def check_input(
        cls, options: Any, captions: object, images: object, references: object = None, **settings: Any
    ) -> Samples:
        store = store_of(options.regions)
        if store is not None:
            images = boxes_by_id(store, images)
        return super().check_input(options, captions, images, references, **settings)

    @classmethod
    def entries(cls, options: RegionOptions) -> list[WeightsEntry]:
        weights = super().entries(options)
        regions = options.regions
        if regions is None and weights:  # weights of another kind name their own encoder
            return [*weights, cls.default_regions]
        listed = listed_entry(regions) if isinstance(regions, (str, PathLike)) else None
        return weights if listed is None else [*weights, listed]

    def open_models(self) -> dict[str, Model]:
        models = super().open_models()
        regions = self.options.regions
        if regions is None:
            # Weights that were trained on the boxes of one detector mean little on those of another.
            constants = self.folder.config.get("constants", {})
            regions = constants.get("regions", self.default_regions.name)
            if not isinstance(regions, str) or not regions or store_of(regions) is not None:
                raise WeightsError(
                    "in the config, constants.regions names no weights of a region encoder: convert the "
                    "weights again, or download them again"
                )
            self.options = replace(self.options, regions=regions)  # so that the signature names them
        options = self.options
        self.regions: BoxSource = box_source_opener(regions)(
            selection=options.box_selection, device=options.device, dtype=options.dtype
        )
        # Opened at once, so that wrong weights are refused before anything runs; with rows of an earlier run
        # where the first row is missing, since there may be nothing left to encode.
        if options.rows is None:
            _ = self.regions.encoder
        return {**models, "regions": Model(self.regions.label, self.regions.fingerprint)}

    def boxes(self, samples: Samples) -> tuple[list[Any], list[list[int]]]:
        """Box features of the samples' images, and the rows that share an image, for each image, in order."""
        boxes = list(self.regions.boxes(samples.images, **self.run))
        # By identity, not by content: rows of one image share its source, and contents need not be read.
        sharing: dict[object, list[int]] = {}
        for row, visual in enumerate(boxes):
            sharing.setdefault(visual.identity, []).append(row)
        return boxes, list(sharing.values())


def error_of(error: str | None, first: BoxVisual | FirstBoxes, equal: BoxVisual | FirstBoxes) -> str | None:
    """An error about the first of equal images, as the one about another of them."""
    # Once: a path in the message may happen to hold the same text.
    return None if error is None else error.replace(first.where, equal.where, 1)


class BoxSource:
    """The box features of images, from a region encoder, or as they come with the images.

    label: in the signature. fingerprint: changes with everything that the features depend on. selection:
    which boxes are kept; None: all that a region encoder gives, the first 100 of stored ones. open_encoder:
    makes the region encoder; None: features come with the images.
    """

    def __init__(
        self,
        label: str,
        fingerprint: str,
        selection: Selection | None,
        open_encoder: Callable[[], RegionEncoder] | None = None,
    ) -> None:
        self.label = label
        self.fingerprint = fingerprint
        self.selection = selection
        self._open_encoder = open_encoder

    @cached_property
    def encoder(self) -> RegionEncoder | None:
        """The region encoder, opened where it is first needed; None without one."""
        return None if self._open_encoder is None else self._open_encoder()

    def boxes(
        self, visuals: Sequence[Visual[Any]], *, cache: FeatureCache, batch_size: int | None = None
    ) -> Iterator[BoxVisual | FirstBoxes]:
        """Box features of any number of images, and of boxes that come as the input, in order."""
        encoded: Iterator[BoxVisual] = iter(())
        if self.encoder is not None:
            images = (visual for visual in visuals if visual.medium == "image")
            encoded = self.encoder.encode_boxes(images, cache=cache, batch_size=batch_size)
        for visual in visuals:
            # Lazily, one by one: a generator of images must not be read ahead of its boxes.
            if visual.medium == "image":
                yield refuse_unusable(next(encoded))  # a user's region encoder may return anything
            else:
                yield FirstBoxes(visual, self.selection)


class FirstBoxes(Visual[BoxFeatures]):
    """The first boxes of stored box features, as many as a rule of selection keeps; without one 100."""

    def __init__(self, visual: Visual[BoxFeatures], selection: Selection | None) -> None:
        super().__init__(visual.where, visual.source)
        self.selection = selection

    @property
    def key(self) -> str:
        # The same features with fewer boxes are another input.
        return f"{self.content}:{self.selection}"

    @property
    def content(self) -> str:
        return super().key

    @property
    def identity(self) -> object:
        return id(self.source)

    def load(self) -> BoxFeatures:
        """The boxes that are kept: all that a rule has chosen already, or that come without scores."""
        boxes = super().load()
        problem = _other_selection(boxes.selection, self.selection)
        if problem is not None:
            description, fix = problem
            raise ImageError(Problem(self.where, f"has {description}", fix))
        if boxes.selection is not None:
            return boxes
        # The first rows, as in the released code, which takes for granted that the best boxes are first.
        count = FIXED if self.selection == "lxmert36" else MOST
        if self.selection == "bua10_100" and boxes.scores is not None:
            count = boxes_kept(boxes.scores)
        return boxes.first(count)


def box_source_opener(spec: object) -> Callable[..., BoxSource]:
    """Check a source of box features before any model is opened; the result opens it, with the keywords
    `selection`, `device` and `dtype`."""
    if isinstance(spec, RegionEncoder):
        label = Model.of(type(spec).__name__, spec.fingerprint).label
        return lambda selection, **settings: BoxSource(label, spec.fingerprint, selection, lambda: spec)
    if not isinstance(spec, (str, PathLike)):
        raise wrong_option("regions", spec, "", _EXPECTED, kind=TypeError)
    store = store_of(spec)
    if store is not None:
        label = Model.of(store.name, store.fingerprint).label
        # Rows are keyed by the content of the boxes, wherever they lie.
        return lambda selection, **settings: BoxSource(label, "boxes", selection)
    if listed_entry(spec) is None:
        with naming({"weights": "regions"}):
            open_unless_on_the_hub(os.fspath(spec), metric=FASTER_RCNN, tiny="scene-regions")
    return partial(_open, os.fspath(spec))


def _open(name: str, *, selection: Selection | None, device: str | None, dtype: str) -> BoxSource:
    with naming({"weights": "regions"}):
        folder = open_listed(name, metric=FASTER_RCNN, tiny="scene-regions")
    network: Any = network_of(folder)
    # By what it can do, not by its name: another package's detector serves as well.
    if not hasattr(network, "encode_boxes"):
        problem = f"is weights of {network.kind!r}, which finds no boxes"
        raise wrong_option("regions", name, problem, _EXPECTED)
    fingerprint = network.fingerprint_of(folder)
    label = folder.label(fingerprint)
    selects = selection is not None and hasattr(network, "selecting")
    if selects:
        fingerprint = network.selected_fingerprint(fingerprint, selection)

    def open_encoder() -> Any:
        encoder = network.open(folder, device=device, dtype=dtype)
        return encoder.selecting(selection) if selects else encoder

    return BoxSource(label, fingerprint, selection, open_encoder)


def check_selection(spec: object, selection: Selection) -> None:
    """Refuse another rule than the one that chose the boxes of a store, where that is known."""
    store = store_of(spec)
    problem = None if store is None else _other_selection(store.selection, selection)
    if problem is not None:
        raise wrong_option("regions", str(spec), *problem)


def _other_selection(of_boxes: str | None, of_option: Selection | None) -> tuple[str, str] | None:
    """The difference of two rules of selection and its fix; None where there is none, or none is known."""
    if of_option is None or of_boxes == of_option or of_boxes not in get_args(Selection):
        return None
    return f"has boxes that were chosen as {of_boxes!r}", setting("selection", of_boxes, "pass ")


def store_of(spec: object) -> BoxFeatureStore | None:
    """The precomputed features that `spec` names; None where it names or is a region encoder."""
    # `tiny` are weights, also where a folder of that name lies here.
    if not isinstance(spec, (str, PathLike)) or os.fspath(spec) == "tiny":
        return None
    path = expanded_path(spec)
    try:
        exists = path.exists()
        is_weights = (path / CONFIG).exists()
    except OSError as error:  # too long a name
        raise wrong_option(
            "regions", str(spec)[:200], f"is not a path ({error.strerror})", _EXPECTED
        ) from None
    if not os.fspath(spec):
        raise wrong_option("regions", spec, "is empty", _EXPECTED)
    is_store = path.suffix.lower() in _SUFFIXES or (exists and not is_weights)
    return BoxFeatureStore.open(path) if is_store else None


def boxes_by_id(store: BoxFeatureStore, images: object) -> Any:
    """Box features for a list of image ids; other input is left for the check of inputs."""
    ids = as_list(images)
    if ids is None:
        return images
    sources: dict[Any, Source[BoxFeatures]] = {}
    visuals = []
    for index, image in enumerate(ids):
        try:
            image_id = id_of(image)
            if image_id not in sources:  # rows of one image share a source, so that it is read once
                sources[image_id] = store.find(image_id)
            source = sources[image_id]
        except ImageError as error:
            # Raised where it is read, as that of a broken image: with on_error="nan" it costs one row.
            source = Boxes(partial(_raise, error), path=str(image)[:200])
        visuals.append(Visual(f"images[{index}]", source))
    return visuals


def _raise(error: ImageError) -> Any:
    raise error
