"""What trainings over captions and boxes share: options, box features, batches, masks, and their run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.pairs import RegionTextEncoder
from capeval_core.encoders.tokenizers import UNKNOWN, Ids, WordPiece
from capeval_core.encoders.vilbert import LocatedBoxes
from capeval_core.errors import Problem, Problems, counted
from capeval_core.fetching import open_listed
from capeval_core.inputs.images import ImageError
from capeval_core.judgements.sets import Judgements
from capeval_core.options import option
from capeval_core.scores.boxes import FirstBoxes, box_source_opener, store_of
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.negatives import Group, NegativeSampler, similar_by_captions, similar_by_features
from capeval_core.training.stored import StoredArrays
from capeval_core.training.tags import Tagger
from capeval_core.training.trainer import REGIONS, Objective, Report, Terms, Trainer, Training, opened
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.folder import WeightsFolder

MASK = "[MASK]"
OVERLAP = 0.4
"""Intersection over union from which a box is hidden with another one."""


@dataclass(frozen=True, kw_only=True)
class RegionTraining(Training):
    """How a network over captions and boxes is trained."""

    shares: ClassVar[tuple[str, ...]] = ("masked", "dropout")
    free: ClassVar[tuple[str, ...]] = (*Training.free, "regions")

    regions: str | PathLike[str] | None = option(
        None,
        "box features: weights of a region encoder (Hub id, folder, `tiny`), or features that were made "
        "before (a folder of .npz files, UNITER's LMDB, a bottom-up-attention .tsv); None: the region "
        "encoder that the start's config names",
    )
    selection: Literal["bua10_100", "lxmert36"] = option(
        "bua10_100", "boxes of an image: those more confident than 0.2, 10 to 100 of them, or LXMERT's 36"
    )
    tagger: str = option("spacy", "part-of-speech tagger: `spacy`, `spacy:PIPELINE`, `nltk` or `scenes`")
    hard: Literal["both", "features", "captions", "none"] = option(
        "both", "similar images for hard negatives: by region features, by CIDEr of captions, or both"
    )
    random_negatives: int = option(1, "captions of any other image per caption", minimum=0)
    masked: float = option(0.3, "share of the words that are masked", minimum=0)
    dropout: float = option(0.1, "share of the states that are dropped", minimum=0)
    caption_length: int = option(60, "tokens that are read of a caption", minimum=3)


class _RegionStore:
    """What a network takes of the boxes of images, on the disk; features in float16, enough to train on."""

    def __init__(
        self, folder: Path, name: str, images: CaptionedImages, kind: Any, size: int, boxes: Any
    ) -> None:
        self.ids, self.form, self.size, problems = images.ids, kind.form, size, Problems()
        types = np.float16, np.float32  # of features, and of positions
        self._stores = [StoredArrays(folder, f"{name} {images.fingerprint}", dtype) for dtype in types]
        there = set(self.ids).intersection(*(store.get(self.ids) for store in self._stores))
        missing = [image for image, image_id in enumerate(self.ids) if image_id not in there]
        for image, found in zip(missing, boxes(map(images.visual, missing)), strict=True):
            try:
                loaded = found.load()
                loaded.check_width(size)
                for store, array in zip(self._stores, kind.prepare(loaded), strict=True):
                    store.put({self.ids[image]: array})
            except ImageError as error:
                problems.extend(error.problems)
            except ValueError as error:
                problems.add(Problem(found.where, str(error), kind=ImageError))
        for store in self._stores:
            store.flush()
        problems.raise_if_any()

    def __getitem__(self, image: int) -> Any:
        """Of image number `image`."""
        features, positions = (store[self.ids[image]].astype(np.float32) for store in self._stores)
        rows = features.reshape(-1, self.size)
        return self.form(rows, positions.reshape(len(rows), -1))


class RegionObjective(Objective):
    """A network over captions and boxes, and its data: captions by number, with negatives and boxes."""

    encoder: ClassVar[type[RegionTextEncoder]]
    prepare: ClassVar[Any]
    """Makes of boxes what the network takes: two arrays, of which `form` makes it again."""
    form: ClassVar[Any]

    def __init__(
        self, training: Any, start: WeightsFolder, data: CaptionedImages, store: Any, sampler: NegativeSampler
    ) -> None:
        self.training, self.store, self.sampler = training, store, sampler
        self.captions, self.images = data.captions, data.numbers
        self.config = self.encoder.read_config(start)
        words, length = self.config["vocabulary"], min(self.config["context_length"], training.caption_length)
        ways = {"split": self.encoder.splits, "keep_end": self.encoder.keeps_end}
        self.tokenizer = WordPiece(words, length, lowercase=self.config["lowercase"], **ways)
        self.mask = words.index(MASK if MASK in words else UNKNOWN)
        self.order = lru_cache(maxsize=2)(self._shuffled)
        self.model = self.build({name: tensor.float() for name, tensor in start.tensors().items()})

    @abstractmethod
    def build(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The network of `config`, filled with tensors."""

    def _shuffled(self, epoch: int) -> list[int]:
        rng = np.random.default_rng([self.training.seed, 1, epoch])
        order: list[int] = rng.permutation(len(self.captions)).tolist()
        return order

    def chosen(self, number: int, size: int) -> list[tuple[int, int]]:
        """Epoch and caption of each positive of a batch: all captions come once before any comes again."""
        places = (divmod(place, len(self.captions)) for place in range(number * size, (number + 1) * size))
        return [(epoch, self.order(epoch)[place]) for epoch, place in places]

    def groups(self, number: int) -> tuple[list[Group], list[Any]]:
        """A batch of captions with their negatives, and the boxes of each group."""
        chosen = self.chosen(number, self.training.batch_size)
        groups = [self.sampler.group(epoch, index) for epoch, index in chosen]
        return groups, [self.store[self.images[index]] for _, index in chosen]

    def masked(self, number: int, size: int, shown: float = 0.0) -> tuple[MaskedWords, list[Any], Any]:
        """A batch of captions with masked words, the boxes of each, and the stream of further draws."""
        chosen = [index for _, index in self.chosen(number, size)]
        rng = np.random.default_rng([self.training.seed, 2, number])
        texts = self.tokenizer.encode([self.captions[index] for index in chosen]).ids
        words = mask_words(texts, self.training.masked, self.mask, rng, shown=shown)
        return words, [self.store[self.images[index]] for index in chosen], rng


class MaskedWords(NamedTuple):
    """Texts with masked tokens. places: of these, in the texts laid end to end. tokens: what was there."""

    texts: list[Ids]
    places: list[int]
    tokens: list[int]


def mask_words(
    texts: Sequence[Ids], share: float, mask: int, rng: np.random.Generator, *, shown: float = 0.0
) -> MaskedWords:
    """Mask a share of each text, at least one token, not its marks; of these, a share is still `shown`."""
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
    """Hide a share of the boxes, with all that overlap them, also from the mean (row 0); which rows are."""
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
    """(groups, size) cross entropies of (n, 2) no match and match: the first of each group matches."""
    truth = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    truth[::group_size] = 1
    return functional.cross_entropy(logits, truth, reduction="none").view(-1, group_size)


def terms_of(losses: Tensor, kinds: NDArray[Any]) -> Terms:
    """Sum and number of losses of each kind; both arguments have one shape."""
    values = losses.detach().float().cpu().numpy()
    places = {str(kind): kinds == kind for kind in np.unique(kinds)}
    return {kind: (float(values[here].sum()), int(here.sum())) for kind, here in places.items()}


def train_on_regions(
    kind: type[RegionObjective],
    training: RegionTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    judged: tuple[Judgements, CaptionedImages] | None = None,
    report: Report,
) -> Path:
    """Train a network, or go on where `out` stands; the folder of weights. judged: what ends it early."""
    with opened(training, out) as accelerator:
        tagged = tagger.tags(captioned.captions)
        start = open_listed(training.start, metric=training.metric, tiny=training.metric)
        named = start.config.get("constants", {}).get("regions", FASTER_RCNN_VG.name)
        regions = training.regions or named
        device, selection = str(accelerator.device), training.selection
        source = box_source_opener(regions)(selection=selection, device=device, dtype="float32")
        made_before = store_of(regions)
        stamp: dict[str, Any] = {
            **training.stamp(),
            "start": kind.encoder.fingerprint_of(start),
            "captions": captioned.fingerprint,
            "tagger": tagger.fingerprint,
            "regions": f"{source.fingerprint} {made_before.fingerprint if made_before is not None else ''}",
            "judgements": None if judged is None else judged[1].fingerprint,
            "processes": accelerator.num_processes,
        }

        def boxes(visuals: Iterable[Any]) -> Iterable[Any]:
            if source.encoder is None:
                return (FirstBoxes(visual, selection) for visual in visuals)
            return source.encoder.encode_boxes(visuals, cache=FeatureCache(0))

        def stored(images: CaptionedImages) -> _RegionStore:
            size = kind.encoder.region_size_of(kind.encoder.read_config(start))
            with accelerator.main_process_first():
                report(f"box features of {counted(len(images.ids), 'image')}")
                return _RegionStore(out / REGIONS, stamp["regions"], images, kind, size, boxes)

        store, similar = stored(captioned), []
        if training.hard in ("both", "features"):
            means = np.stack([store[image].features.mean(axis=0) for image in range(len(captioned.ids))])
            similar.append(similar_by_features(captioned.ids, means))
        if training.hard in ("both", "captions"):
            similar.append(similar_by_captions(captioned.images, captioned.captions))
        names = ("random_negatives", "foils", "seed")
        own = {name: getattr(training, name) for name in names if hasattr(training, name)}
        sampler = NegativeSampler(captioned.images, captioned.captions, tagged, similar=similar, **own)
        objective: Any = kind(training, start, captioned, store, sampler)
        if judged is not None:
            objective.looks = objective.judged(judged[0], stored(judged[1]), judged[1].numbers)
        trainer = Trainer(objective, out, stamp, accelerator, report)
        weights = trainer.run()
        here = made_before is not None or Path(regions).exists()
        return trainer.write(kind.encoder, start, weights, {} if here else {"regions": str(regions)})
