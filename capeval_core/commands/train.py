"""`capeval train`: weights of a metric from captions and images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from capeval_core.commands.common import FILES, add_flags, chosen
from capeval_core.commands.terminal import Parser, complain, first_named, flag, interruptible
from capeval_core.errors import FileError, file_problem, naming
from capeval_core.inputs.text_files import FileOptions
from capeval_core.training.pacs import PacsTraining
from capeval_core.training.settings import RegionTraining, Training
from capeval_core.training.umic import UmicTraining, train_umic
from capeval_core.training.vilbert import VilbertTraining, train_vilbert

if TYPE_CHECKING:
    from capeval_core.inputs.box_stores import BoxFeatureStore
    from capeval_core.judgements.own import Judgements
    from capeval_core.training.captioned import CaptionedImages

_TRAINED: dict[str, type[Training]] = {
    "pacs": PacsTraining,
    "umic": UmicTraining,
    "vilbert": VilbertTraining,
}
"""What can be trained, and the class of its settings."""
_METRIC_OF = {"pacs": "pacs", "umic": "umic", "vilbert": "vilbertscore"}
"""The metric that opens the weights of a training."""
_ABOUT = {
    "pacs": "Tune the projections of a CLIP on images and captions, with generated ones as extra positives.",
    "umic": "Train UNITER to rank captions of people above negatives made of them.",
    "vilbert": "Pre-train ViLBERT on images and captions: masked words, masked boxes, image-text matching.",
}
_KEPT = "the training is kept in {}: run the same command again to go on"


def run(arguments: list[str]) -> int:
    about = "Train a metric on captions and images."
    name, rest = first_named(arguments, "train", "METRIC", "[options]", about, _ABOUT)
    if name not in _TRAINED:
        raise ValueError(f"{name!r} cannot be trained here (known: {', '.join(_TRAINED)})")
    flags = _parser(name).read(rest)
    settings = _TRAINED[name]
    training = settings.of(f"capeval train {name}", chosen(flags, settings))
    _train(training, flags)
    return 0


def _train(training: Training, flags: argparse.Namespace) -> None:
    from capeval_core.weights.folder import open_unless_on_the_hub

    metric = _METRIC_OF[training.name]
    _check_out(flags.out)
    with naming({"weights": "start"}):
        open_unless_on_the_hub(training.start, metric=metric, tiny=metric)
    if isinstance(training, PacsTraining):
        _train_on_images(training, flags)
    elif isinstance(training, RegionTraining):
        _train_on_regions(training, flags)


def _train_on_images(training: PacsTraining, flags: argparse.Namespace) -> None:
    from capeval_core.training.pacs import PairData, train_pacs
    from capeval_core.training.positives import Positives

    captioned = _captioned(flags, None)
    positives = None if flags.positives is None else Positives(flags.positives)
    validation = None
    if flags.validation_captions is not None:
        folder = flags.validation_images or flags.images
        if folder is None:
            raise ValueError(
                "--validation-images is missing: pass the folder of the images that are held out"
            )
        validation = _captions_of(flags, flags.validation_captions, folder, flags.validation_split)
    data = PairData(training, captioned, positives, validation)
    flags.out.mkdir(parents=True, exist_ok=True)
    with interruptible(_KEPT.format(flags.out)):
        weights = train_pacs(training, data, flags.out, report=complain)
    _conclude(training, captioned, flags.out, weights, "validation loss")


def _train_on_regions(training: RegionTraining, flags: argparse.Namespace) -> None:
    from capeval_core.scores.boxes import box_source_opener, store_of
    from capeval_core.training.tags import open_tagger

    out = flags.out
    if training.regions is not None:
        box_source_opener(training.regions)
    store = store_of(training.regions)
    captioned = _captioned(flags, store)
    judged = _judged(flags, store) if isinstance(training, UmicTraining) else None
    tagger = open_tagger(training.tagger)
    out.mkdir(parents=True, exist_ok=True)
    with interruptible(_KEPT.format(out)):
        if isinstance(training, UmicTraining):
            weights = train_umic(training, captioned, tagger, out, judged=judged, report=complain)
        elif isinstance(training, VilbertTraining):
            weights = train_vilbert(training, captioned, tagger, out, report=complain)
    _conclude(training, captioned, out, weights, "correlations where there are judgements")


def _conclude(
    training: Training, captioned: CaptionedImages, out: Path, weights: Path, judged_by: str
) -> None:
    """Say what came out, and how to use it."""
    from accelerate import PartialState

    from capeval_core.registry import metric_class

    metric = _METRIC_OF[training.name]
    if not PartialState().is_main_process:
        return
    counts = f"{len(captioned.captions):,} captions of {len(captioned.ids):,} images"
    class_ = metric_class(metric)
    print(f"{weights}: weights of {class_.title}, made of {counts}, those held out among them")
    print(f"{out / 'curves.png'}: losses and learning rate, and {judged_by}")
    references = " --references references.json" if class_.needs_references else ""
    files = f"--candidates captions.json{references} --images images"
    print(f"score with it:\n  capeval score {metric} {files} --weights {weights}")


def _captioned(flags: argparse.Namespace, store: BoxFeatureStore | None) -> CaptionedImages:
    from capeval_core.training.captioned import open_dataset

    if (flags.captions is None) == (flags.dataset is None):
        raise ValueError("pass either --captions FILE or --dataset NAME")
    if flags.dataset is not None:
        return open_dataset(
            flags.dataset,
            split=flags.split or "train",
            image_column=flags.image_column or "image",
            caption_column=flags.caption_column or "caption",
            id_column=flags.id_column,
        )
    if flags.images is None and store is None:
        raise ValueError("--images is missing: pass the folder of the images that --captions is about")
    return _captions_of(flags, flags.captions, flags.images, flags.split, store)


def _captions_of(
    flags: argparse.Namespace,
    file: Path,
    images: Path | None,
    split: str | None,
    store: BoxFeatureStore | None = None,
) -> CaptionedImages:
    """The captions of a file, its columns and split those of the flags."""
    from capeval_core.training.captioned import read_captioned

    options = FileOptions(id_column=flags.id_column, caption_column=flags.caption_column, split=split)
    return read_captioned(file, images, store, options)


def _judged(
    flags: argparse.Namespace, store: BoxFeatureStore | None
) -> tuple[Judgements, CaptionedImages] | None:
    from capeval_core.judgements.own import read_judgements
    from capeval_core.training.captioned import images_of

    if flags.judgements is None:
        return None
    judgements = read_judgements(flags.judgements)
    folder = flags.judgement_images or flags.images
    if folder is None and store is None:
        raise ValueError("--judgement-images is missing: pass the folder of the images that were judged")
    return judgements, images_of(judgements.images, judgements.captions, folder, store)


def _check_out(out: Path) -> None:
    """Refuse a file, and a folder that holds anything but a training."""
    from capeval_core.training.trainer import CURVES, LOG, REGIONS, STATE, TOWERS, TRACKED, WEIGHTS

    if out.exists() and not out.is_dir():
        raise FileError(file_problem(out, "is a file: choose a folder for --out"))
    entries = out.iterdir() if out.is_dir() else ()
    names = {entry.name for entry in entries if not entry.name.startswith(".")}  # less unfinished files
    others = sorted(names - {CURVES, LOG, REGIONS, STATE, TOWERS, TRACKED, WEIGHTS})
    if others and STATE not in names:
        found = f"holds more than a training ({others[0]})"
        raise FileError(file_problem(out, found, "choose another folder for --out"))


def _parser(name: str) -> Parser:
    parser = Parser(
        f"train {name}",
        "--captions FILE --images FOLDER --start WEIGHTS --out FOLDER [options]",
        f"{_ABOUT[name]} A training that was stopped goes on, exactly where it was, with the same command. "
        f"On several GPUs: `accelerate launch -m capeval_core train {name} ...`.",
        FILES,
    )
    files = parser.add_argument_group("captions and images")
    flag(files, "--captions FILE", "captions by image id")
    flag(files, "--images FOLDER", "the images that they describe")
    flag(files, "--dataset NAME", "or: a dataset's folder (`save_to_disk`) or Hub id")
    text = "part of it (default: train), or of a file whose rows name theirs, e.g. train,restval"
    flag(files, "--split NAME", text)
    flag(files, "--image-column NAME", "of the dataset's images (default: image)")
    flag(files, "--caption-column NAME", "of captions, in a file or dataset (default: caption)")
    text = "of image ids in a file; rows of a dataset with equal ids show one image (default: row numbers)"
    flag(files, "--id-column NAME", text)
    if name == "umic":
        text = "human judgements that end the training early: JSON, JSON lines or CSV with image_id, caption "
        flag(files, "--judgements FILE", text + "and score")
        flag(files, "--judgement-images FOLDER", "their images (default: --images)")
    if name == "pacs":
        text = "generated captions and images: of `capeval augment`"
        flag(files, "--positives FOLDER", text)
        text = "captions of images that are held out (default: --validation is their share)"
        flag(files, "--validation-captions FILE", text)
        flag(files, "--validation-split NAME", "part of that file")
        flag(files, "--validation-images FOLDER", "their images (default: --images)")
    text = "folder of the training: weights, log.jsonl, curves.png, and its state"
    flag(files, "--out FOLDER", text, required=True)
    add_flags(parser, _TRAINED[name], title="options of the training")
    return parser
