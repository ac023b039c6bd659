"""A training from captions and images to a folder of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.region_text import RegionTextEncoder
from capeval_core.encoders.uniter import RegionInput, UniterEncoder, region_input
from capeval_core.encoders.vilbert import LocatedBoxes, VilbertEncoder, located
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.judgements.captions import Judgements
from capeval_core.scores.box_source import BoxSource, FirstBoxes, box_source_opener, store_of
from capeval_core.training.captioned import CaptionedImages, numbers_of
from capeval_core.training.groups import NegativeSampler, similar_by_captions, similar_by_features
from capeval_core.training.objective import Looks, Objective
from capeval_core.training.order import CaptionData
from capeval_core.training.region_store import Form, FoundBoxes, RegionStore
from capeval_core.training.settings import RegionTraining, as_stored, save_trained
from capeval_core.training.state import REGIONS, WEIGHTS, locked
from capeval_core.training.tags import Tagger
from capeval_core.training.trainer import Trainer, open_accelerator
from capeval_core.training.umic import UmicTraining
from capeval_core.training.umic_objective import Judged, UmicObjective
from capeval_core.training.vilbert import VilbertTraining
from capeval_core.training.vilbert_objective import VilbertObjective
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.folder import open_weights

Regions = TypeVar("Regions")
Report = Callable[[str], None]


def _silent(line: str) -> None:
    """Report nothing."""


def train_umic(
    training: UmicTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    judged: tuple[Judgements, CaptionedImages] | None = None,
    report: Report = _silent,
) -> Path:
    """Train UMIC; a training that `out` holds goes on where it was stopped.

    Args:
        training: the settings.
        captioned: captions and images.
        tagger: as `training.tagger` names it.
        out: folder of the training: `weights`, `log.jsonl`, `curves.png`, its state and its box features.
        judged: human judgements, and their captions with images in the same order.
        report: takes a line for the user now and then.

    Returns:
        The folder of weights.

    Raises:
        ValueError: weights that could not be loaded; captions without negatives; images without features;
            the folder of another training.
    """
    network = Network("umic", UniterEncoder, region_input, RegionInput)
    run = Run(training, network, captioned, tagger, out, report)
    run.stamp["judgements"] = judged[1].fingerprint if judged is not None else None
    with locked(out, run.accelerator):
        objective = UmicObjective(training, run.start, run.data())
        looks = None
        if judged is not None:
            judgements, images = judged
            numbers = numbers_of(images.ids, judgements.images)
            looks = objective.looks(Judged(judgements, run.stored("judgements", images), numbers))
        return run.train(objective, looks)


def train_vilbert(
    training: VilbertTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    report: Report = _silent,
) -> Path:
    """Pre-train ViLBERT; arguments, result and errors are those of `train_umic`."""
    network = Network("vilbertscore", VilbertEncoder, located, LocatedBoxes)
    run = Run(training, network, captioned, tagger, out, report)
    with locked(out, run.accelerator):
        return run.train(VilbertObjective(training, run.start, run.data(training.foils)), None)


@dataclass(frozen=True)
class Network(Generic[Regions]):
    """A network that is trained.

    metric: the metric of its weights. encoder: its class. prepare: what it takes of boxes. form: makes that
    of features and positions.
    """

    metric: str
    encoder: type[RegionTextEncoder]
    prepare: Callable[[BoxFeatures], Regions]
    form: Form[Regions]


class Run(Generic[Regions]):
    """A training's folder, the weights that it starts from, captions and box features.

    Arguments and errors are those of `train_umic`. The folder is to be locked before it is written to.
    """

    def __init__(
        self,
        training: RegionTraining,
        network: Network[Regions],
        captioned: CaptionedImages,
        tagger: Tagger,
        out: Path,
        report: Report,
    ) -> None:
        self.training, self.network, self.captioned = training, network, captioned
        self.out, self.report = out, report
        self.accelerator = open_accelerator(training, out)
        self.tagged = tagger.tags(captioned.captions)
        self.start = open_weights(training.start, metric=network.metric, tiny=network.metric)
        named = self.start.config.get("constants", {}).get("regions", FASTER_RCNN_VG.repository)
        self.regions = training.regions or named
        self.source: BoxSource = box_source_opener(self.regions)(
            selection=training.selection, device=str(self.accelerator.device), dtype="float32"
        )
        self.made_before = store_of(self.regions)
        before = self.made_before.fingerprint if self.made_before is not None else ""
        self.stamp: dict[str, Any] = {
            **training.stamp(),
            "start": network.encoder.fingerprint_of(self.start),
            "captions": captioned.fingerprint,
            "tagger": tagger.fingerprint,
            "regions": f"{self.source.fingerprint} {before}",
            "processes": self.accelerator.num_processes,
        }

    def stored(self, name: str, images: CaptionedImages) -> RegionStore[Regions]:
        """Box features of images, in a folder of that name."""
        folder, key = self.out / REGIONS / name, f"{self.stamp['regions']} {images.fingerprint}"
        size = self.network.encoder.region_size_of(self.network.encoder.read_config(self.start))
        with self.accelerator.main_process_first():
            self.report(f"box features of {len(images.ids):,} images")
            found = _found(self.source, self.training, images)
            return RegionStore.write(folder, found, key, size, self.network.prepare, self.network.form)

    def data(self, foils: int = 0) -> CaptionData[Regions]:
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
        numbers = numbers_of(captioned.ids, captioned.images)
        return CaptionData(sampler, captioned.captions, store, numbers, training.batch_size, training.seed)

    def train(self, objective: Objective, looks: Looks | None) -> Path:
        """Train to the end and write the weights; their folder."""
        main = self.accelerator.is_main_process
        trainer = Trainer(self.training, objective, looks, self.out, self.stamp, self.accelerator)
        weights = trainer.run(self.report if main else _silent)
        if main:
            self._save(self.out / WEIGHTS, weights)
        self.accelerator.wait_for_everyone()
        return self.out / WEIGHTS

    def _save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        constants = {}
        if self.made_before is None and not Path(self.regions).exists():
            constants["regions"] = str(self.regions)
        stored = {name: as_stored(tensor, self.training) for name, tensor in weights.items()}
        save_trained(folder, self.network.encoder, self.start, stored, self.training, self.stamp, constants)


def _found(source: BoxSource, training: RegionTraining, images: CaptionedImages) -> Iterable[FoundBoxes]:
    """Box features of images, in order, by a region encoder or as they were made before."""
    if source.encoder is None:
        return (FirstBoxes(visual, training.selection) for visual in images.visuals())
    return source.encoder.encode_boxes(images.visuals(), cache=FeatureCache(0))  # type: ignore[arg-type]
