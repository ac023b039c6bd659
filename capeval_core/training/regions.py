"""Training over captions and boxes: options, box features on the disk, batches and the run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.pairs import RegionTextEncoder
from capeval_core.encoders.tokenizers import UNKNOWN, WordPiece
from capeval_core.errors import Problem, Problems, counted
from capeval_core.fetching import open_listed
from capeval_core.inputs.images import ImageError, Visual
from capeval_core.judgements.sets import Judgements
from capeval_core.options import option
from capeval_core.scores.box_metrics import FirstBoxes, box_source_opener, store_of
from capeval_core.training.array_store import StoredArrays
from capeval_core.training.negatives import (
    Group,
    NegativeSampler,
    Similar,
    similar_by_captions,
    similar_by_features,
)
from capeval_core.training.tags import Tagger
from capeval_core.training.trainer import REGIONS, Objective, Report, Terms, Trainer, Training, opened
from capeval_core.training.training_data import CaptionedImages
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.folder import WeightsFolder

MASK = "[MASK]"


@dataclass(frozen=True, kw_only=True)
class RegionTraining(Training):
    """Options of the training of a network over captions and boxes."""

    shares: ClassVar[tuple[str, ...]] = ("dropout",)
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
    dropout: float = option(0.1, "share of the states that are dropped", minimum=0)
    caption_length: int = option(60, "tokens that are read of a caption", minimum=3)


class RegionStore:
    """A network's arrays of the boxes of images, on the disk; features in float16, enough to train on."""

    def __init__(
        self,
        folder: Path,
        stamp: str,
        images: CaptionedImages,
        objective: type[RegionObjective],
        feature_size: int,
        encode_boxes: Callable[[Iterable[Visual[Any]]], Iterable[Any]],
    ) -> None:
        self.ids = images.ids
        self.objective = objective
        self.feature_size = feature_size
        store_name = f"{stamp} {images.fingerprint}"
        self._features = StoredArrays(folder, store_name, np.float16)
        # Positions in float32: UNITER's areas are products, which float16 would round once more.
        self._positions = StoredArrays(folder, store_name, np.float32)
        # A kill may come between the two stores.
        stored_ids = self._features.get(self.ids).keys() & self._positions.get(self.ids).keys()
        missing = [number for number, image_id in enumerate(self.ids) if image_id not in stored_ids]
        problems = Problems()
        visuals = encode_boxes(map(images.visual, missing))
        for number, visual in zip(missing, visuals, strict=True):
            # All images are tried, so that everything that is wrong with them is told at once.
            try:
                boxes = visual.load()
                boxes.check_width(feature_size)
                features, positions = objective.prepare(boxes)
                self._features.put({self.ids[number]: features})
                self._positions.put({self.ids[number]: positions})
            except ImageError as error:
                problems.extend(error.problems)
            except ValueError as error:
                problems.add(Problem(visual.where, str(error), kind=ImageError, sentence=True))
        self._features.flush()
        self._positions.flush()
        problems.raise_if_any()

    def __getitem__(self, number: int) -> Any:
        """The boxes of an image, in the network's form, by the image's number."""
        image_id = self.ids[number]
        features = self._features[image_id].astype(np.float32).reshape(-1, self.feature_size)
        positions = self._positions[image_id].astype(np.float32).reshape(len(features), -1)
        return self.objective.form(features, positions)


class RegionObjective(Objective):
    """A network over captions and boxes, and its data: captions by number, with negatives and boxes."""

    encoder: ClassVar[type[RegionTextEncoder]]
    prepare: ClassVar[Any]
    """Turns box features into the network's two arrays, from which `form` builds its input again."""
    form: ClassVar[Any]

    def __init__(
        self,
        training: Any,
        start: WeightsFolder,
        data: CaptionedImages,
        store: RegionStore,
        sampler: NegativeSampler,
    ) -> None:
        self.training = training
        self.store = store
        self.sampler = sampler
        self.captions = data.captions
        self.images = data.numbers  # the number of each caption's image
        self.config = self.encoder.read_config(start)
        vocabulary = self.config["vocabulary"]
        self.tokenizer = WordPiece(
            vocabulary,
            min(self.config["context_length"], training.caption_length),
            lowercase=self.config["lowercase"],
            split=self.encoder.splits,
            keep_end=self.encoder.keeps_end,
        )
        # The vocabulary of the tiny models has no token that no caption holds.
        self.mask = vocabulary.index(MASK if MASK in vocabulary else UNKNOWN)
        # Two: a batch may begin in one epoch and end in the next.
        self.order = lru_cache(maxsize=2)(self._shuffled)
        # In float32, whatever the weights are stored in: steps of 1e-5 vanish in float16.
        tensors = {name: tensor.float() for name, tensor in start.tensors().items()}
        self.model = self.build(tensors)

    @abstractmethod
    def build(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The network of `config`, filled with tensors."""

    def _shuffled(self, epoch: int) -> list[int]:
        """The captions in the order of an epoch."""
        rng = np.random.default_rng([self.training.seed, 1, epoch])
        order: list[int] = rng.permutation(len(self.captions)).tolist()
        return order

    def positives(self, number: int, size: int) -> list[tuple[int, int]]:
        """Epoch and caption of each positive of a batch: all captions come once before any comes again."""
        positives = []
        for place in range(number * size, (number + 1) * size):
            epoch, place_in_epoch = divmod(place, len(self.captions))
            positives.append((epoch, self.order(epoch)[place_in_epoch]))
        return positives

    def groups(self, number: int) -> tuple[list[Group], list[Any]]:
        """A batch of captions with their negatives, and the boxes of each group."""
        positives = self.positives(number, self.training.batch_size)
        groups = [self.sampler.group(epoch, caption) for epoch, caption in positives]
        return groups, [self.store[self.images[caption]] for _, caption in positives]


def matching_loss(logits: Tensor, group_size: int) -> Tensor:
    """Return the (groups, size) cross entropies of (n, 2) logits of no match and match.

    The first of each group matches, the negatives behind it do not.
    """
    truth = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    truth[::group_size] = 1
    return functional.cross_entropy(logits, truth, reduction="none").view(-1, group_size)


def terms_of(losses: Tensor, kinds: NDArray[Any]) -> Terms:
    """Sum and number of losses of each kind; both arguments have one shape."""
    values = losses.detach().float().cpu().numpy()  # NumPy has no bfloat16
    terms = {}
    for kind in np.unique(kinds):
        values_of_kind = values[kinds == kind]
        terms[str(kind)] = (float(values_of_kind.sum()), values_of_kind.size)
    return terms


def _similar_images(
    training: RegionTraining, captioned: CaptionedImages, store: RegionStore
) -> list[Similar]:
    """The lists of similar images of which hard negatives are drawn."""
    similar = []
    if training.hard in ("both", "features"):
        # An image by the mean of its boxes: one vector each, of which all pairs can be compared.
        means = [store[number].features.mean(axis=0) for number in range(len(captioned.ids))]
        similar.append(similar_by_features(captioned.ids, np.stack(means)))
    if training.hard in ("both", "captions"):
        similar.append(similar_by_captions(captioned.images, captioned.captions))
    return similar


def train_on_regions(
    objective: type[RegionObjective],
    training: RegionTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    judged: tuple[Judgements, CaptionedImages] | None = None,
    report: Report,
) -> Path:
    """Train a network, or resume what `out` holds; the folder of weights. judged: what ends it early."""
    with opened(training, out) as accelerator:
        tagged = tagger.tags(captioned.captions)
        start = open_listed(training.start, metric=training.metric, tiny=training.metric)
        encoder_of_start = start.config.get("constants", {}).get("regions", FASTER_RCNN_VG.name)
        regions = training.regions or encoder_of_start
        device = str(accelerator.device)
        selection = training.selection
        source = box_source_opener(regions)(selection=selection, device=device, dtype="float32")
        # Of features that were made before a source knows the settings, and their store the content.
        precomputed = store_of(regions)
        precomputed_fingerprint = "" if precomputed is None else precomputed.fingerprint
        stamp: dict[str, Any] = {
            **training.stamp(),
            "start": objective.encoder.fingerprint_of(start),
            "captions": captioned.fingerprint,
            "tagger": tagger.fingerprint,
            "regions": f"{source.fingerprint} {precomputed_fingerprint}",
            "judgements": None if judged is None else judged[1].fingerprint,
            "processes": accelerator.num_processes,
        }

        def encode_boxes(visuals: Iterable[Visual[Any]]) -> Iterable[Any]:
            if source.encoder is None:
                return (FirstBoxes(visual, selection) for visual in visuals)
            # Without a cache: what is computed goes into the training's own store.
            return source.encoder.encode_boxes(visuals, cache=FeatureCache(0))

        def region_store(images: CaptionedImages) -> RegionStore:
            feature_size = objective.encoder.region_size_of(objective.encoder.read_config(start))
            # The main process computes what is missing, the others then find it on the disk.
            with accelerator.main_process_first():
                report(f"box features of {counted(len(images.ids), 'image')}")
                folder = out / REGIONS
                return RegionStore(folder, stamp["regions"], images, objective, feature_size, encode_boxes)

        store = region_store(captioned)
        sampler = NegativeSampler(
            captioned.images,
            captioned.captions,
            tagged,
            similar=_similar_images(training, captioned, store),
            random_negatives=training.random_negatives,
            foils=getattr(training, "foils", 0),
            seed=training.seed,
        )
        trained: Any = objective(training, start, captioned, store, sampler)
        if judged is not None:
            judgements, judged_images = judged
            trained.looks = trained.judged(judgements, region_store(judged_images), judged_images.numbers)
        trainer = Trainer(trained, out, stamp, accelerator, report)
        weights = trainer.run()
        # A local folder means nothing to whoever opens the weights elsewhere.
        is_local = precomputed is not None or Path(regions).exists()
        constants = {} if is_local else {"regions": str(regions)}
        return trainer.write(objective.encoder, start, weights, constants)
