"""A training of UMIC from captions and images to a folder of weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.tokenizers import WordPiece
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.scores.box_source import BoxSource, FirstBoxes, box_source_opener, store_of
from capeval_core.training.batches import Batches
from capeval_core.training.captioned import CaptionedImages, numbers_of
from capeval_core.training.groups import NegativeSampler
from capeval_core.training.judgements import Judgements
from capeval_core.training.region_store import FoundBoxes, RegionStore
from capeval_core.training.similar_images import similar_by_captions, similar_by_features
from capeval_core.training.state import REGIONS, WEIGHTS
from capeval_core.training.tags import TaggedCaption, Tagger
from capeval_core.training.trainer import Judged, Trainer, open_accelerator
from capeval_core.training.umic import UmicTraining
from capeval_core.weights.catalogue import FASTER_RCNN_VG
from capeval_core.weights.folder import WeightsFolder, open_weights

METRIC = "umic"


def train_umic(
    training: UmicTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    judged: tuple[Judgements, CaptionedImages] | None = None,
    report: Callable[[str], None] = lambda line: None,
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
    accelerator = open_accelerator(training)
    tagged = tagger.tags(captioned.captions)
    start = open_weights(training.start, metric=METRIC, tiny=METRIC)
    regions = training.regions or start.config.get("constants", {}).get("regions", FASTER_RCNN_VG.repository)
    device = str(accelerator.device)
    source: BoxSource = box_source_opener(regions)(
        selection=training.selection, device=device, dtype="float32"
    )
    size = int(UniterEncoder.read_config(start)["architecture"]["region_size"])
    made_before = store_of(regions)
    stamp = {
        **training.stamp(),
        "start": UniterEncoder.fingerprint_of(start),
        "captions": captioned.fingerprint,
        "tagger": tagger.fingerprint,
        "regions": f"{source.fingerprint} {made_before.fingerprint if made_before is not None else ''}",
        "processes": accelerator.num_processes,
        "judgements": judged[1].fingerprint if judged is not None else None,
    }

    def stored(name: str, images: CaptionedImages) -> RegionStore:
        folder, key = out / REGIONS / name, f"{stamp['regions']} {images.fingerprint}"
        with accelerator.main_process_first():
            report(f"box features of {len(images.ids):,} images")
            return RegionStore.write(folder, _found(source, training, images), key, size)

    store = stored("captions", captioned)
    numbers = numbers_of(captioned.ids, captioned.images)

    def make_batches(tokenizer: WordPiece, mask: int) -> Batches:
        sampler = _sampler(training, captioned, tagged, store)
        return Batches(
            sampler, captioned.captions, store, numbers, tokenizer, mask, training.batch_size, training.seed
        )

    looked_at = None
    if judged is not None:
        judgements, images = judged
        looked_at = Judged(
            judgements, stored("judgements", images), numbers_of(images.ids, judgements.images)
        )
    trainer = Trainer(training, start, make_batches, looked_at, out, stamp, accelerator)
    weights = trainer.run(report if accelerator.is_main_process else lambda line: None)
    if accelerator.is_main_process:
        named = str(regions) if made_before is None and not Path(regions).exists() else None
        _save(out / WEIGHTS, weights, start, training, stamp, named)
    accelerator.wait_for_everyone()
    return out / WEIGHTS


def _found(source: BoxSource, training: UmicTraining, images: CaptionedImages) -> Iterable[FoundBoxes]:
    """Box features of images, in order, by a region encoder or as they were made before."""
    if source.encoder is None:
        return (FirstBoxes(visual, training.selection) for visual in images.visuals())
    return source.encoder.encode_boxes(images.visuals(), cache=FeatureCache(0))  # type: ignore[arg-type]


def _sampler(
    training: UmicTraining, captioned: CaptionedImages, tagged: list[TaggedCaption], store: RegionStore
) -> NegativeSampler:
    similar = []
    if training.hard in ("both", "features"):
        similar.append(similar_by_features(captioned.ids, store.means()))
    if training.hard in ("both", "captions"):
        similar.append(similar_by_captions(captioned.images, captioned.captions))
    return NegativeSampler(
        captioned.images,
        captioned.captions,
        tagged,
        similar=similar,
        random_negatives=training.random_negatives,
        seed=training.seed,
    )


def _save(
    folder: Path,
    weights: dict[str, Tensor],
    start: WeightsFolder,
    training: UmicTraining,
    stamp: dict[str, Any],
    regions: str | None,
) -> None:
    """Write the folder of weights, whose config records data and settings."""
    config = {
        name: value
        for name, value in UniterEncoder.read_config(start).items()
        if name not in ("canary", "checksum")
    }
    source = dict(config.get("source") or {})
    source["notes"] = [*source.get("notes", []), f"Trained by `capeval train {METRIC}`; see `training`."]
    config |= {"source": source, "training": json.loads(json.dumps(stamp))}
    if regions is not None:
        config["constants"] = {**config.get("constants", {}), "regions": regions}
    stored = {
        name: tensor.half() if training.stored == "float16" else tensor.float()
        for name, tensor in weights.items()
    }
    UniterEncoder(config, stored, device="cpu").save_pretrained(folder)
