"""What trainings over captions and boxes share: box features on the disk, order, masks, and their run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.region_text import RegionTextEncoder
from capeval_core.encoders.tokenizers import UNKNOWN, Ids
from capeval_core.encoders.vilbert import LocatedBoxes
from capeval_core.errors import Problem, Problems
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.inputs.images import ImageError
from capeval_core.kept import write_whole
from capeval_core.scores.boxes import FirstBoxes, box_source_opener, store_of
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.negatives import NegativeSampler
from capeval_core.training.settings import RegionTraining
from capeval_core.training.similar import similar_by_captions, similar_by_features
from capeval_core.training.tags import Tagger
from capeval_core.training.trainer import (
    REGIONS,
    WEIGHTS,
    Looks,
    Objective,
    Report,
    Terms,
    Trainer,
    as_stored,
    save_trained,
)
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.folder import open_weights

MASK = "[MASK]"
OVERLAP = 0.4
"""Intersection over union from which a box is hidden with another one."""


class RegionStore:
    """What a network takes of the boxes of n images, on the disk; features in float16, enough to train on."""

    def __init__(
        self,
        folder: Path,
        stamp: str,
        boxes: Callable[[], Iterable[Any]],
        region_size: int,
        prepare: Callable[[BoxFeatures], Any],
        form: Callable[[Any, Any], Any],
    ) -> None:
        self.form = form
        file = folder / "index.json"
        index = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if index.get("stamp") != stamp:
            folder.mkdir(parents=True, exist_ok=True)
            index = {"stamp": stamp, **_write(folder, boxes(), region_size, prepare)}
            write_whole(file, json.dumps(index))
        self.starts = np.cumsum([0, *index["boxes"]])
        rows = int(self.starts[-1])
        self.features: NDArray[np.float16] = np.memmap(
            folder / "features.bin", np.float16, "r", shape=(rows, region_size)
        )
        self.positions: NDArray[np.float32] = np.memmap(
            folder / "positions.bin", np.float32, "r", shape=(rows, int(index["position_size"]))
        )

    def __getitem__(self, image: int) -> Any:
        """Of image number `image`."""
        rows = self._rows(image)
        return self.form(self.features[rows].astype(np.float32), np.array(self.positions[rows]))

    def _rows(self, image: int) -> slice:
        return slice(self.starts[image], self.starts[image + 1])

    def means(self) -> NDArray[np.float32]:
        """(n, region_size) mean features of the boxes of each image."""
        images = range(len(self.starts) - 1)
        return np.stack([self.features[self._rows(i)].astype(np.float32).mean(axis=0) for i in images])


def _write(
    folder: Path, boxes: Iterable[Any], region_size: int, prepare: Callable[[BoxFeatures], Any]
) -> dict[str, Any]:
    """Write features and positions of boxes; their counts, and the numbers of a position."""
    counts: list[int] = []
    position_size = 0
    problems = Problems()
    with (folder / "features.bin").open("wb") as features, (folder / "positions.bin").open("wb") as positions:
        for found in boxes:
            try:
                loaded = found.load()
                loaded.check_width(region_size)
                own, places = vars(prepare(loaded)).values()
                halves = _halves(own)
            except ImageError as error:
                problems.extend(error.problems)
                continue
            except ValueError as error:
                problems.add(Problem(found.where, str(error), kind=ImageError))
                continue
            features.write(halves.tobytes())
            positions.write(places.tobytes())
            counts.append(len(places))
            position_size = places.shape[1]
    problems.raise_if_any()
    return {"boxes": counts, "position_size": position_size}


def _halves(features: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = features.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ValueError("a feature exceeds the range of float16, in which features are kept for training")
    return halves


class CaptionData:
    """Captions by number, with negatives and boxes; every process knows their order from the seed alone."""

    def __init__(
        self, sampler: NegativeSampler, captioned: CaptionedImages, store: RegionStore, size: int, seed: int
    ) -> None:
        self.sampler, self.captions, self.store = sampler, captioned.captions, store
        self.images, self.size, self.seed = captioned.numbers, size, seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def _shuffled(self, epoch: int) -> list[int]:
        rng = np.random.default_rng([self.seed, 1, epoch])
        order: list[int] = rng.permutation(len(self.captions)).tolist()
        return order

    def chosen(self, number: int, size: int) -> list[tuple[int, int]]:
        """Epoch and caption of each positive of a batch: all captions come once before any comes again."""
        places = (divmod(place, len(self.captions)) for place in range(number * size, (number + 1) * size))
        return [(epoch, self._order(epoch)[place]) for epoch, place in places]

    def masked(
        self, number: int, size: int, tokenizer: Any, share: float, mask: int, shown: float = 0.0
    ) -> tuple[MaskedWords, list[Any], np.random.Generator]:
        """A batch of captions with masked words, the boxes of each, and the stream of further draws."""
        chosen = [index for _, index in self.chosen(number, size)]
        rng = np.random.default_rng([self.seed, 2, number])
        texts = tokenizer.encode([self.captions[index] for index in chosen]).ids
        return mask_words(texts, share, mask, rng, shown=shown), self.regions(chosen), rng

    def regions(self, chosen: Sequence[int]) -> list[Any]:
        """What the network takes of the boxes of each caption's image."""
        return [self.store[self.images[index]] for index in chosen]


class MaskedWords(NamedTuple):
    """Texts with masked tokens. places: of these, in the texts laid end to end. tokens: what was there."""

    texts: list[Ids]
    places: list[int]
    tokens: list[int]


def mask_id(words: Sequence[str]) -> int:
    """The id that stands for a masked token: that of `[MASK]`, or the unknown word's where there is none."""
    return words.index(MASK if MASK in words else UNKNOWN)


def mask_words(
    texts: Sequence[Ids], share: float, mask: int, rng: np.random.Generator, *, shown: float = 0.0
) -> MaskedWords:
    """Mask a share of the tokens of each text, at least one, its marks left out.

    shown: share of the chosen tokens that stay as they are, and are predicted all the same.

    >>> mask_words([(2, 7, 8, 9, 3)], 0.3, 4, np.random.default_rng(0))
    MaskedWords(texts=[(2, 7, 4, 4, 3)], places=[2, 3], tokens=[8, 9])
    """
    rows = [list(ids) for ids in texts]
    places, tokens, start = [], [], 0
    for row in rows:
        inside = np.arange(1, len(row) - 1)
        lots = rng.random(len(inside))
        chosen = inside[(lots < share) | (lots == lots.min(initial=1))].tolist()
        kept = rng.random(len(chosen)) < shown if shown else np.zeros(len(chosen), dtype=np.bool_)
        for place, stays in zip(chosen, kept.tolist(), strict=True):
            places.append(start + place)
            tokens.append(row[place])
            row[place] = row[place] if stays else mask
        start += len(row)
    return MaskedWords([tuple(row) for row in rows], places, tokens)


def mask_boxes(
    boxes: LocatedBoxes, share: float, rng: np.random.Generator
) -> tuple[LocatedBoxes, NDArray[np.bool_]]:
    """Boxes of which a share is hidden, with all that overlap them; and which rows are.

    A hidden box keeps its location and has zeros for features; the mean of all, the first row, is that of the
    boxes that are left.
    """
    x0, y0, x1, y1, area = boxes.locations[1:].T
    lots = rng.random(len(area)) < share
    width = np.minimum(x1[:, None], x1) - np.maximum(x0[:, None], x0)
    height = np.minimum(y1[:, None], y1) - np.maximum(y0[:, None], y0)
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    overlap = shared / np.maximum(area[:, None] + area - shared, 1e-9)
    hidden = np.concatenate([[False], lots | (overlap[:, lots] > OVERLAP).any(axis=1)])
    features = np.where(hidden[:, None], 0, boxes.features)
    left = ~hidden
    left[0] = False
    features[0] = boxes.features[left].mean(axis=0) if left.any() else 0
    return LocatedBoxes(features, boxes.locations), hidden


def matching_loss(logits: Tensor, group_size: int) -> Tensor:
    """(n / group_size, group_size) cross entropies: the positive of each group matches, the others do not.

    logits: (n, 2) no match and match, group after group, the positive of each group first.

    >>> matching_loss(torch.tensor([[0.0, 9.0], [0.0, 0.0]]), group_size=2).round(decimals=3)
    tensor([[0.0000, 0.6930]])
    """
    truth = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    truth[::group_size] = 1
    return functional.cross_entropy(logits, truth, reduction="none").view(-1, group_size)


def terms_of(losses: Tensor, kinds: NDArray[Any]) -> Terms:
    """Sum and number of losses of each kind; both arguments have one shape."""
    values = losses.detach().float().cpu().numpy()
    return {
        str(kind): (float(values[kinds == kind].sum()), int((kinds == kind).sum()))
        for kind in np.unique(kinds)
    }


@dataclass(frozen=True)
class Network:
    """A network that is trained.

    metric: the metric of its weights. encoder: its class. prepare, form: those of `RegionStore`.
    """

    metric: str
    encoder: type[RegionTextEncoder]
    prepare: Callable[[BoxFeatures], Any]
    form: Callable[[Any, Any], Any]


class RegionRun:
    """A training's folder, the weights that it starts from, captions and box features."""

    def __init__(
        self,
        training: RegionTraining,
        network: Network,
        captioned: CaptionedImages,
        tagger: Tagger,
        out: Path,
        accelerator: Any,
        report: Report,
    ) -> None:
        self.training, self.network, self.captioned, self.out = training, network, captioned, out
        self.accelerator, self.report = accelerator, report
        self.tagged = tagger.tags(captioned.captions)
        self.start = open_weights(training.start, metric=network.metric, tiny=network.metric)
        named = self.start.config.get("constants", {}).get("regions", FASTER_RCNN_VG.repository)
        self.regions = training.regions or named
        self.source = box_source_opener(self.regions)(
            selection=training.selection, device=str(accelerator.device), dtype="float32"
        )
        self.made_before = store_of(self.regions)
        before = self.made_before.fingerprint if self.made_before is not None else ""
        self.stamp: dict[str, Any] = {
            **training.stamp(),
            "start": network.encoder.fingerprint_of(self.start),
            "captions": captioned.fingerprint,
            "tagger": tagger.fingerprint,
            "regions": f"{self.source.fingerprint} {before}",
            "processes": accelerator.num_processes,
        }

    def stored(self, name: str, images: CaptionedImages) -> RegionStore:
        """Box features of images, in a folder of that name."""
        network, encoder = self.network, self.source.encoder

        def found() -> Iterable[Any]:
            if encoder is None:
                return (FirstBoxes(visual, self.training.selection) for visual in images.visuals())
            return encoder.encode_boxes(images.visuals(), cache=FeatureCache(0))  # type: ignore[arg-type]

        with self.accelerator.main_process_first():
            self.report(f"box features of {len(images.ids):,} images")
            return RegionStore(
                self.out / REGIONS / name,
                f"{self.stamp['regions']} {images.fingerprint}",
                found,
                network.encoder.region_size_of(network.encoder.read_config(self.start)),
                network.prepare,
                network.form,
            )

    def data(self, foils: int = 0) -> CaptionData:
        """The captions with negatives and box features. foils: of `NegativeSampler`."""
        training, captioned = self.training, self.captioned
        store = self.stored("captions", captioned)
        similar = []
        if training.hard in ("both", "features"):
            similar.append(similar_by_features(captioned.ids, store.means()))
        if training.hard in ("both", "captions"):
            similar.append(similar_by_captions(captioned.images, captioned.captions))
        sampler = NegativeSampler(
            captioned.images,
            captioned.captions,
            self.tagged,
            similar=similar,
            random_negatives=training.random_negatives,
            foils=foils,
            seed=training.seed,
        )
        return CaptionData(sampler, captioned, store, training.batch_size, training.seed)

    def train(self, objective: Objective, looks: Looks | None = None) -> Path:
        """Train to the end and write the weights; their folder."""
        training, folder = self.training, self.out / WEIGHTS
        trainer = Trainer(training, objective, looks, self.out, self.stamp, self.accelerator, self.report)
        weights = trainer.run()
        if self.accelerator.is_main_process:
            constants = {}
            if self.made_before is None and not Path(self.regions).exists():
                constants["regions"] = str(self.regions)
            stored = {name: as_stored(tensor, training) for name, tensor in weights.items()}
            encoder = self.network.encoder
            save_trained(folder, encoder, self.start, stored, training, self.stamp, constants)
        self.accelerator.wait_for_everyone()
        return folder
