"""`capeval train`: weights of a metric from captions and images."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capeval_core.commands.common import check_folder, chosen, example_of
from capeval_core.commands.terminal import complain, first_named, interruptible, kinds_of, parser_of
from capeval_core.errors import counted, naming
from capeval_core.inputs.boxes import BoxFeatureStore
from capeval_core.inputs.joining import Folder
from capeval_core.judgements.sets import read_judgements
from capeval_core.registry import metric_class
from capeval_core.scores.box_metrics import box_source_opener, store_of
from capeval_core.training.training_data import CaptionedImages, CaptionSource, images_of
from capeval_core.weights.folder import open_unless_on_the_hub

if TYPE_CHECKING:
    from capeval_core.training.regions import RegionObjective
    from capeval_core.training.trainer import Training


def run(arguments: list[str]) -> int:
    """Train a metric's network, or resume the training in --out; the exit status."""
    name, flag_arguments = first_named(arguments, "train", kinds_of("train", "pacs", "umic", "vilbert"))
    # They import torch, and the list of trainings needs none.
    from capeval_core.training import pacs, trainer, umic, vilbert

    settings: type[Training]
    objective: type[RegionObjective] | None = None
    if name == "pacs":
        settings = pacs.PacsTraining
    elif name == "umic":
        settings = umic.UmicTraining
        objective = umic.UmicObjective
    else:
        settings = vilbert.VilbertTraining
        objective = vilbert.VilbertObjective
    parser = parser_of(
        f"train {name}", "train METRIC", f"train {name}", options=[CaptionSource, settings], metric=name
    )
    flags = parser.read(flag_arguments)
    training = settings.of(f"capeval train {name}", chosen(flags, settings))
    out: Path = flags.out
    metric = metric_class(settings.metric)
    # Without a state nothing says that the folder is a training's: so nothing else may lie in it.
    if trainer.STATE not in check_folder(out):
        own_files = {trainer.CURVES, trainer.LOG, trainer.REGIONS, trainer.TOWERS, trainer.TRACKED}
        check_folder(out, {*own_files, trainer.WEIGHTS}, "a training")
    # Wrong weights are refused now, and not after the data are read. Those on the Hub are left to the
    # training: they may have to be fetched.
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
    if objective is None:
        train = _pacs(training, captioned, flags, source)
    else:
        train = _on_regions(objective, training, captioned, flags, store)
    # Made only now, so that refused input leaves no empty folder behind.
    out.mkdir(parents=True, exist_ok=True)
    with interruptible(f"the training is kept in {out}: run the same command again to resume"):
        weights = train(out, report=complain)
    from accelerate import PartialState

    # `accelerate launch` runs the whole command in every process.
    if PartialState().is_main_process:
        counts = f"{counted(len(captioned.captions), 'caption')} of {counted(len(captioned.ids), 'image')}"
        print(f"{weights}: weights of {metric.title}, made of {counts}, including those held out")
        print(f"{out / trainer.CURVES}: losses, learning rate and the validation measure")
        print(f"score with it:\n  {example_of(metric, weights)}")
    return 0


def _pacs(
    training: Any, captioned: CaptionedImages, flags: argparse.Namespace, source: CaptionSource
) -> Callable[..., Path]:
    """The training of PAC-S on checked data."""
    from capeval_core.training.augmentation import Positives
    from capeval_core.training.pacs import PairData, train_pacs

    positives = None if flags.positives is None else Positives(flags.positives)
    validation = None
    if flags.validation_captions is not None:
        folder = flags.validation_images or flags.images
        if folder is None:
            raise ValueError(
                "--validation-images is missing: pass the folder of the images that are held out"
            )
        held_out = replace(source, split=flags.validation_split)  # Karpathy's file holds all splits
        validation = held_out.read(flags.validation_captions, folder)
    return partial(train_pacs, training, PairData(training, captioned, positives, validation))


def _on_regions(
    objective: type[RegionObjective],
    training: Any,
    captioned: CaptionedImages,
    flags: argparse.Namespace,
    store: BoxFeatureStore | None,
) -> Callable[..., Path]:
    """The training of a network on box features, on checked data."""
    from capeval_core.training.regions import train_on_regions
    from capeval_core.training.tags import open_tagger

    judged = None
    if getattr(flags, "judgements", None) is not None:
        judgements = read_judgements(flags.judgements)
        path = flags.judgement_images or flags.images
        if path is None and store is None:
            raise ValueError("--judgement-images is missing: pass the folder of the images that were judged")
        # Stored box features are of the judged images, too.
        folder = Folder(path) if path is not None and store is None else None
        judged = judgements, images_of(judgements.images, judgements.captions, folder, store)
    tagger = open_tagger(training.tagger)  # needs its data, so it is tried before the training begins
    return partial(train_on_regions, objective, training, captioned, tagger, judged=judged)
