"""Where metrics on regions get box features: a region encoder, features made before, or the input itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problem, naming, setting, wrong_option
from capeval_core.inputs.box_stores import BoxFeatureStore, id_of
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.inputs.images import ImageError, InputImage, InputVisual, Refused, Source
from capeval_core.inputs.texts import as_list
from capeval_core.regions.features import (
    FIXED,
    MOST,
    BoxVisual,
    RegionEncoder,
    Selection,
    boxes_kept,
    refuse_unusable,
)
from capeval_core.values import described, expanded_path
from capeval_core.weights.catalogue import FASTER_RCNN, TINY_OF
from capeval_core.weights.folder import CONFIG, WeightsError, open_unless_on_the_hub, open_weights

_SUFFIXES = (".npz", ".tsv", ".mdb", ".lmdb")
"""Of files of features, which are no weights even where they are missing."""
_LONGEST_SHOWN = 200
_EXPECTED = (
    "expected weights of a region encoder (a Hub id, a folder, 'tiny') or features made before (a folder of "
    ".npz files, UNITER's LMDB, a bottom-up-attention .tsv)"
)


@dataclass(frozen=True)
class BoxSource:
    """The box features of images, from a region encoder where they do not come with the images.

    label, fingerprint: in signatures, and in stamps of rows. encoder: None where there are features of all
    images. selection: which boxes are kept; None: all that a region encoder gives, the first 100 of stored
    ones.
    """

    label: str
    fingerprint: str
    encoder: RegionEncoder | None
    selection: Selection | None

    def boxes(
        self,
        visuals: Sequence[InputVisual[Any]],
        *,
        cache: FeatureCache,
        batch_size: int | None = None,
    ) -> Iterator[BoxVisual | FirstBoxes]:
        """Box features of any number of images and of boxes that are at hand, in order."""
        images = (visual for visual in visuals if isinstance(visual, InputImage))
        encoded: Iterator[BoxVisual] = iter(())
        if self.encoder is not None:
            encoded = self.encoder.encode_boxes(images, cache=cache, batch_size=batch_size)
        for visual in visuals:
            if not isinstance(visual, InputImage):
                yield FirstBoxes(visual, self.selection)
                continue
            found = next(encoded, None)
            if found is None:
                raise ValueError(
                    f"the region encoder {self.label} gave boxes of fewer images than it was given"
                )
            if not isinstance(found, BoxVisual):
                raise TypeError(
                    f"the region encoder {self.label} gave {described(found)}, expected a BoxVisual"
                )
            yield refuse_unusable(found)  # of a region encoder that somebody else wrote


@dataclass(frozen=True)
class FirstBoxes:
    """The first boxes of stored box features, as many as a rule of selection keeps: a `Visual`.

    selection: None: the first 100.
    """

    visual: InputVisual[BoxFeatures]
    selection: Selection | None

    @property
    def key(self) -> str:
        """Of the content and the rule. Raises ImageError."""
        return f"{self.visual.key}:{self.selection}"

    @property
    def content(self) -> str:
        """Content key of the boxes. Raises ImageError."""
        return self.visual.key

    @property
    def identity(self) -> object:
        """Equal for visuals that are known to be equal without reading them."""
        return id(self.visual.source)

    @property
    def where(self) -> str:
        return self.visual.where

    @property
    def name(self) -> str:
        return self.visual.name

    def load(self) -> BoxFeatures:
        """The boxes that are kept. Raises ImageError.

        Features that come without scores are taken as they are, up to the most that the rule keeps; those
        that a rule has chosen already, all of them.
        """
        boxes = self.visual.load()
        known = get_args(Selection)
        if self.selection is not None and boxes.selection in known and boxes.selection != self.selection:
            found, fix = _other_selection(boxes.selection)
            raise ImageError(Problem(self.where, f"has {found}", fix))
        if boxes.selection is not None:
            return boxes
        if self.selection == "lxmert36":
            return boxes.first(FIXED)
        if self.selection is None or boxes.scores is None:
            return boxes.first(MOST)
        return boxes.first(boxes_kept(boxes.scores))

    def check(self) -> None:
        """Raise ImageError unless `load` will succeed."""
        self.visual.check()


def box_source_opener(spec: str | os.PathLike[str] | RegionEncoder) -> Callable[..., BoxSource]:
    """Check a source of box features before any model is opened; the result opens it.

    It takes the keywords `selection`, as `BoxSource` has it, `device` and `dtype`, as options of metrics.

    Args:
        spec: weights of a region encoder (a Hub id, a folder, `"tiny"`); features that were made before, as
            `BoxFeatureStore.open` takes them; or a `RegionEncoder`.

    Raises:
        ValueError, TypeError: any other `spec`. When it is opened, WeightsError: the weights could not be
            loaded.
    """
    if isinstance(spec, RegionEncoder):
        if not isinstance(spec.fingerprint, str):
            found = f"a region encoder whose fingerprint is {described(spec.fingerprint)}"
            raise wrong_option("regions", spec, found, "expected a text", kind=TypeError)
        encoder, label = spec, f"{type(spec).__name__}@{_digest(spec.fingerprint)}"
        return lambda selection, **settings: BoxSource(label, encoder.fingerprint, encoder, selection)
    if not isinstance(spec, (str, os.PathLike)):
        raise wrong_option("regions", spec, "", f"{_EXPECTED}, or a RegionEncoder", verb="", kind=TypeError)
    if (store := store_of(spec)) is not None:
        label = f"{store.name}@{_digest(store.fingerprint)}"
        # Rows are keyed by the content of the boxes, wherever they lie.
        return lambda selection, **settings: BoxSource(label, "boxes", None, selection)
    name = os.fspath(spec)
    with naming({"weights": "regions"}):
        open_unless_on_the_hub(name, metric=FASTER_RCNN, tiny=TINY_OF["scene_regions"])
    return partial(_open, name)


def _open(name: str, *, selection: Selection | None, device: str | None, dtype: str) -> BoxSource:
    from capeval_core.registry import network_of

    with naming({"weights": "regions"}):
        folder = open_weights(name, metric=FASTER_RCNN, tiny=TINY_OF["scene_regions"])
    network = network_of(folder)
    if not hasattr(network, "encode_boxes"):
        raise wrong_option("regions", name, f"weights of {network.kind!r}, which finds no boxes", _EXPECTED)
    encoder: Any = network.open(folder, device=device, dtype=dtype)
    selecting = selection is not None and hasattr(encoder, "selecting")
    regions: RegionEncoder = encoder.selecting(selection) if selecting else encoder
    return BoxSource(folder.label(encoder.fingerprint), regions.fingerprint, regions, selection)


def check_selection(spec: Any, selection: Selection) -> None:
    """Refuse another rule than the one that chose the boxes of a store, where that is known."""
    store = store_of(spec)
    if store is not None and store.selection in get_args(Selection) and store.selection != selection:
        found, fix = _other_selection(store.selection)
        raise wrong_option("regions", str(spec), found, fix, verb="has")


def _other_selection(chosen: str | None) -> tuple[str, str]:
    return f"boxes that were chosen as {chosen!r}", setting("selection", chosen, "pass ")


def store_of(spec: Any) -> BoxFeatureStore | None:
    """Features that were made before; None where `spec` names or is a region encoder.

    Raises:
        FileError: a path that holds no such features.
    """
    if not isinstance(spec, (str, os.PathLike)):
        return None
    if not os.fspath(spec):
        raise wrong_option("regions", spec, "empty", _EXPECTED + " ('.' is the current folder)")
    try:
        path = expanded_path(spec)
        exists, is_weights = path.exists(), path.is_dir() and (path / CONFIG).exists()
    except (OSError, RuntimeError) as error:  # too long, or ~ of an unknown user
        reason = getattr(error, "strerror", None) or error
        name = os.fspath(spec)
        cut = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
        raise wrong_option("regions", cut, f"no path that can be looked up ({reason})", _EXPECTED) from None
    if path.suffix.lower() in _SUFFIXES or (exists and not is_weights and os.fspath(spec) != "tiny"):
        return BoxFeatureStore.open(path)
    return None


def regions_of(config: Mapping[str, Any], default: str) -> str:
    """The region encoder that the config of weights names; `default` where it names none.

    Raises:
        WeightsError: it names something else.
    """
    constants = config.get("constants", {})
    named = constants.get("regions", default) if isinstance(constants, dict) else None
    if not isinstance(named, str) or not named or (named != "tiny" and store_of(named) is not None):
        raise WeightsError(
            "in the config, constants.regions names no weights of a region encoder: convert the weights "
            "again, or download them again"
        )
    return named


def boxes_by_id(store: BoxFeatureStore, images: Any) -> Any:
    """Box features for a list of image ids; what cannot be a list of ids is left for the check of inputs.

    An id without features is one whose box features cannot be read.
    """
    ids = as_list(images)
    if ids is None:
        return images
    sources: dict[Any, Source[BoxFeatures]] = {}
    visuals = []
    for index, image in enumerate(ids):
        try:
            image_id = id_of(image)
            if image_id not in sources:
                sources[image_id] = store.find(image_id)
            visuals.append(InputBoxes(f"images[{index}]", sources[image_id]))
        except Refused as refused:
            visuals.append(InputBoxes(f"images[{index}]", Missing(refused)))
    return visuals


@dataclass(eq=False, slots=True)
class Missing(Source[BoxFeatures]):
    """The source of an id without box features."""

    reason: Refused

    @property
    def name(self) -> str:
        return str(self.reason)

    def compute_key(self) -> str:
        raise self.reason

    def decode(self, reduced: bool = False) -> BoxFeatures:
        raise self.reason


def _digest(fingerprint: str) -> str:
    return hashlib.blake2b(fingerprint.encode(), digest_size=4).hexdigest()
