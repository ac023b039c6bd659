"""`capeval augment`: generated captions and images, the additional positives that PAC-S is trained with."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING, Any

from capeval_core.commands.common import FILES, add_flags, chosen, tell_reasons
from capeval_core.commands.terminal import Parser, complain, first_named, flag, interruptible, summary
from capeval_core.errors import did_you_mean
from capeval_core.inputs.text_files import FileOptions

if TYPE_CHECKING:
    from capeval_core.training.captioned import CaptionedImages

CAPTIONS, IMAGES = "captions", "images"
_ABOUT = {
    CAPTIONS: "Generate a caption of each image with BLIP.",
    IMAGES: "Generate an image of each caption with a diffusion model. What its safety checker blacks out is "
    "left out and counted.",
}
_NEEDED = {CAPTIONS: "--images FOLDER", IMAGES: "--captions FILE"}


def run(arguments: list[str]) -> int:
    about = "Generate additional positives for `capeval train pacs`: captions of images, images of captions."
    what, rest = first_named(arguments, "augment", "WHAT", "--out FOLDER [options]", about, _ABOUT)
    if what not in _ABOUT:
        raise ValueError(
            f"{what!r} cannot be generated{did_you_mean(what, _ABOUT)} (known: {', '.join(_ABOUT)})"
        )
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation, augment

    settings: Any = CaptionAugmentation if what == CAPTIONS else ImageAugmentation
    flags = _parser(what, settings).read(rest)
    part = re.fullmatch("([0-9]+)/([0-9]+)", flags.shard)
    if part is None or not 1 <= int(part[1]) <= int(part[2]):
        raise ValueError(f"--shard {flags.shard}: expected I/N with I from 1 to N, e.g. 1/4")
    augmentation = settings.of(f"capeval augment {what}", chosen(flags, settings))
    captioned, given = _captioned(what, flags)
    with interruptible(f"what was generated is kept in {flags.out}: run the same command again to go on"):
        counts = augment(augmentation, captioned, given, flags.out, (int(part[1]), int(part[2])))
    dropped = f"{counts.dropped.total():,} dropped"
    if counts.dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.dropped.items()))
        dropped += f" ({reasons})"
    of = f" (part {flags.shard})" if int(part[2]) > 1 else ""
    found = f"{counts.made:,} generated, {counts.found:,} found, {dropped}, {len(counts.failed):,} failed"
    summary([what + of, found], ["folder", str(flags.out)])
    if counts.truncated:
        complain(
            f"warning: {counts.truncated:,} captions are longer than the text encoder reads, and the images "
            "show their beginnings only"
        )
    tell_reasons(counts.failed, counts.total, IMAGES)
    if not counts.made and not counts.found and (counts.failed or counts.dropped):
        return 1
    data = ["--captions", str(flags.captions or "captions.json"), "--images", str(flags.images or "images")]
    if flags.dataset is not None:
        data = ["--dataset", flags.dataset]
        data += ["--id-column", flags.id_column] if flags.id_column is not None else []
    more = [*data, "--positives", str(flags.out), "--start", "WEIGHTS", "--out", "FOLDER"]
    command = shlex.join(["capeval", "train", "pacs", *more])
    print(f"train with them, when there are captions and images:\n  {command}")
    return 0


def _captioned(what: str, flags: argparse.Namespace) -> tuple[CaptionedImages, Any]:
    """What positives are generated of, and its name."""
    from capeval_core.training.captioned import read_captioned

    given = flags.images if what == CAPTIONS else flags.captions
    if (given is None) == (flags.dataset is None):
        raise ValueError(f"pass either {_NEEDED[what]} or --dataset DATASET")
    if flags.dataset is None:
        columns = {"id_column": flags.id_column, "caption_column": flags.caption_column}
        options = FileOptions(**columns, split=flags.split)
        return read_captioned(flags.captions, flags.images, None, options), given
    if flags.captions is not None:
        raise ValueError("--captions FILE goes with --images FOLDER: a dataset has ids of its own")
    return dataset_of(flags, "image" if what == CAPTIONS else "caption"), flags.dataset


def dataset_of(flags: argparse.Namespace, *columns: str) -> CaptionedImages:
    """What `image` and `caption` of a dataset hold."""
    from capeval_core.training.captioned import open_dataset

    return open_dataset(
        flags.dataset,
        split=flags.split or "train",
        image_column=(flags.image_column or "image") if "image" in columns else None,
        caption_column=(flags.caption_column or "caption") if "caption" in columns else None,
        id_column=flags.id_column,
    )


def add_source_flags(group: Any, *columns: str) -> None:
    """Flags of a dataset of Hugging Face, and of the columns of it or of a file."""
    flag(group, "--dataset NAME", "or: a dataset's folder (`save_to_disk`) or Hub id")
    text = "part of it (default: train), or of a file whose rows name theirs, e.g. train,restval"
    flag(group, "--split NAME", text)
    if "image" in columns:
        flag(group, "--image-column NAME", "of the dataset's images (default: image)")
    flag(group, "--caption-column NAME", "of captions, in a file or dataset (default: caption)")
    text = "of image ids in a file; rows of a dataset with equal ids show one image (default: row numbers)"
    flag(group, "--id-column NAME", text)


def _parser(what: str, settings: Any) -> Parser:
    parser = Parser(
        f"augment {what}",
        f"{_NEEDED[what]}{' [--captions FILE]' if what == CAPTIONS else ''} --out FOLDER [options]",
        f"{_ABOUT[what]} The same folder takes captions and images. A run that was stopped goes on with "
        "the same command, and the folder is as if it had never stopped.",
        "Several processes share the work with --shard, e.g. one for each GPU: `for i in 1 2 3 4; do "
        f"capeval augment {what} ... --device cuda:$((i-1)) --shard $i/4 & done; wait`. Their number, "
        "device and batch size change nothing but rounding. " + FILES,
    )
    files = parser.add_argument_group("files")
    if what == CAPTIONS:
        flag(files, "--images FOLDER", "the images to caption")
    text = "the captions to draw" if what == IMAGES else "only the images of these captions, by their ids"
    flag(files, "--captions FILE", text)
    flag(files, "--out FOLDER", "folder to write, or to continue", required=True)
    flag(files, "--shard I/N", "share of the work of this process, e.g. 1/4 (default: 1/1)", default="1/1")
    add_source_flags(parser.add_argument_group("dataset and columns"), *["image"] * (what == CAPTIONS))
    add_flags(parser, settings, title="options of the generation")
    if what == IMAGES:
        parser.set_defaults(images=None)
    return parser
