"""`capeval train`: weights of a metric from captions and images."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from capeval_core.commands.common import add_flags, check_folder, chosen
from capeval_core.commands.terminal import complain, first_named, interruptible, parser_of
from capeval_core.errors import naming
from capeval_core.training.captioned import CaptionedImages, CaptionSource, images_of
from capeval_core.training.pacs import PacsTraining, PairData, train_pacs
from capeval_core.training.regions import RegionTraining, train_on_regions
from capeval_core.training.trainer import CURVES, LOG, REGIONS, STATE, TOWERS, TRACKED, WEIGHTS
from capeval_core.training.umic import UmicObjective, UmicTraining
from capeval_core.training.vilbert import VilbertObjective, VilbertTraining

_TRAINED: dict[str, Any] = {"pacs": PacsTraining, "umic": UmicTraining, "vilbert": VilbertTraining}


def run(arguments: list[str]) -> int:
    from capeval_core.registry import metric_class
    from capeval_core.scores.boxes import box_source_opener, store_of
    from capeval_core.weights.folder import open_unless_on_the_hub

    kinds = {name: settings.about for name, settings in _TRAINED.items()}
    name, rest = first_named(arguments, "train", kinds)
    settings = _TRAINED[name]
    parser = parser_of(f"train {name}", "train METRIC", f"train {name}", about=settings.about, metric=name)
    add_flags(parser, CaptionSource, title="dataset, and columns and splits")
    add_flags(parser, settings, title="options of the training")
    flags = parser.read(rest)
    training = settings.of(f"capeval train {name}", chosen(flags, settings))
    out, metric = flags.out, metric_class(settings.metric)
    if STATE not in check_folder(out):
        check_folder(out, {CURVES, LOG, REGIONS, TOWERS, TRACKED, WEIGHTS}, "a training")
    with naming({"weights": "start"}):
        open_unless_on_the_hub(training.start, metric=metric.name, tiny=metric.name)
    regions = getattr(training, "regions", None)
    if regions is not None:
        box_source_opener(regions)
    store = store_of(regions)
    source = CaptionSource(**chosen(flags, CaptionSource))
    if (flags.captions is None) == (source.dataset is None):
        raise ValueError("pass either --captions FILE or --dataset NAME")
    if flags.captions is not None and flags.images is None and store is None:
        raise ValueError("--images is missing: pass the folder of the images that --captions is about")
    if source.dataset is None:
        captioned = source.read(flags.captions, flags.images, store)
    else:
        captioned = source.read_dataset("images", "captions")
    if name == "pacs":
        train = _pacs(training, captioned, flags, source)
    else:
        train = _on_regions(training, captioned, flags, store)
    out.mkdir(parents=True, exist_ok=True)
    with interruptible(f"the training is kept in {out}: run the same command again to go on"):
        weights = train(out, report=complain)
    from accelerate import PartialState

    if PartialState().is_main_process:
        counts = f"{len(captioned.captions):,} captions of {len(captioned.ids):,} images"
        files = f"--candidates captions.json{' --references references.json' * metric.needs_references}"
        print(f"{weights}: weights of {metric.title}, made of {counts}, those held out among them")
        print(f"{out / CURVES}: losses, learning rate, and what it is judged by")
        print(f"score with it:\n  capeval score {metric.name} {files} --images images --weights {weights}")
    return 0


def _pacs(
    training: PacsTraining, captioned: CaptionedImages, flags: argparse.Namespace, source: CaptionSource
) -> Callable[..., Path]:
    from capeval_core.training.augmentation import Positives

    positives = None if flags.positives is None else Positives(flags.positives)
    file, folder, validation = flags.validation_captions, flags.validation_images or flags.images, None
    if file is not None and folder is None:
        raise ValueError("--validation-images is missing: pass the folder of the images that are held out")
    if file is not None:
        validation = replace(source, split=flags.validation_split).read(file, folder)
    return partial(train_pacs, training, PairData(training, captioned, positives, validation))


def _on_regions(
    training: RegionTraining, captioned: CaptionedImages, flags: argparse.Namespace, store: Any
) -> Callable[..., Path]:
    from capeval_core.judgements.sets import read_judgements
    from capeval_core.training.tags import open_tagger

    judged = None
    if getattr(flags, "judgements", None) is not None:
        judgements = read_judgements(flags.judgements)
        folder = flags.judgement_images or flags.images
        if folder is None and store is None:
            raise ValueError("--judgement-images is missing: pass the folder of the images that were judged")
        judged = judgements, images_of(judgements.images, judgements.captions, folder, store)
    objective = UmicObjective if isinstance(training, UmicTraining) else VilbertObjective
    tagger = open_tagger(training.tagger)
    return partial(train_on_regions, objective, training, captioned, tagger, judged=judged)
