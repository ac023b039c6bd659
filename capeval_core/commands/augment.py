"""`capeval augment`: generated captions and images, the additional positives that PAC-S is trained with."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING

from capeval_core.commands.common import FILES, add_flags, chosen, tell_reasons
from capeval_core.commands.terminal import Parser, complain, first_named, flag, interruptible, summary
from capeval_core.errors import did_you_mean
from capeval_core.inputs.text_files import FileOptions

if TYPE_CHECKING:
    from capeval_core.training.augmentation import Augmentation, Counts, Sources

CAPTIONS, IMAGES = "captions", "images"
_ABOUT = {
    CAPTIONS: "Generate a caption of each image with BLIP.",
    IMAGES: "Generate an image of each caption with a diffusion model. What its safety checker blacks out is "
    "left out and counted.",
}
_USAGE = {CAPTIONS: "--images FOLDER [--captions FILE]", IMAGES: "--captions FILE"}
_PART = re.compile(r"([0-9]+)/([0-9]+)")


def run(arguments: list[str]) -> int:
    about = "Generate additional positives for `capeval train pacs`: captions of images, images of captions."
    what, rest = first_named(arguments, "augment", "WHAT", "--out FOLDER [options]", about, _ABOUT)
    if what not in _ABOUT:
        raise ValueError(
            f"{what!r} cannot be generated{did_you_mean(what, _ABOUT)} (known: {', '.join(_ABOUT)})"
        )
    from capeval_core.training.augmentation import augment

    flags = _parser(what).read(rest)
    part = _part(flags.shard)
    settings_class = _settings(what)
    settings = settings_class.of(f"capeval augment {what}", chosen(flags, settings_class))
    if what == IMAGES:
        from capeval_core.training.generators import require_diffusers

        require_diffusers()
    sources = _sources(what, flags)
    with interruptible(f"what was generated is kept in {flags.out}: run the same command again to go on"):
        counts = augment(settings, sources, flags.out, part)
    of = f" (part {flags.shard})" if part[1] > 1 else ""
    summary([what + of, _text(counts)], ["folder", str(flags.out)])
    if counts.truncated:
        complain(
            f"warning: {counts.truncated:,} captions are longer than the text encoder reads, and the images "
            "show their beginnings only"
        )
    tell_reasons(counts.failed, len(sources.sources), IMAGES)
    if not counts.made and not counts.found and (counts.failed or counts.dropped):
        return 1
    data = ["--captions", str(flags.captions or "captions.json")]
    data += ["--images", str(flags.images or "images")]
    if flags.dataset is not None:
        data = ["--dataset", flags.dataset]
        data += ["--id-column", flags.id_column] if flags.id_column is not None else []
    given = [*data, "--positives", str(flags.out), "--start", "WEIGHTS", "--out", "FOLDER"]
    command = shlex.join(["capeval", "train", "pacs", *given])
    print(f"train with them, when there are captions and images:\n  {command}")
    return 0


def _text(counts: Counts) -> str:
    dropped = f"{counts.dropped.total():,} dropped"
    if counts.dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.dropped.items()))
        dropped += f" ({reasons})"
    return f"{counts.made:,} generated, {counts.found:,} found, {dropped}, {len(counts.failed):,} failed"


def _sources(what: str, flags: argparse.Namespace) -> Sources:
    from capeval_core.training.augmentation import Sources
    from capeval_core.training.captioned import open_dataset, read_captioned

    needed, form, given = ("images", "FOLDER", flags.images)
    if what == IMAGES:
        needed, form, given = ("captions", "FILE", flags.captions)
    if (given is None) == (flags.dataset is None):
        raise ValueError(f"pass either --{needed} {form} or --dataset DATASET")
    if flags.dataset is None:
        options = FileOptions(
            id_column=flags.id_column, caption_column=flags.caption_column, split=flags.split
        )
        return Sources(what, read_captioned(flags.captions, flags.images, None, options), given)
    if flags.captions is not None:
        raise ValueError("--captions FILE goes with --images FOLDER: a dataset has ids of its own")
    captioned = open_dataset(
        flags.dataset,
        split=flags.split or "train",
        image_column=(flags.image_column or "image") if what == CAPTIONS else None,
        caption_column=(flags.caption_column or "caption") if what == IMAGES else None,
        id_column=flags.id_column,
    )
    return Sources(what, captioned, flags.dataset)


def _settings(what: str) -> type[Augmentation]:
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation

    return CaptionAugmentation if what == CAPTIONS else ImageAugmentation


def _part(text: str) -> tuple[int, int]:
    """Number I and count N of `I/N`."""
    match = _PART.fullmatch(text)
    part = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"--shard {text}: expected I/N with I from 1 to N, e.g. 1/4")
    return part


def _parser(what: str) -> Parser:
    parser = Parser(
        f"augment {what}",
        f"{_USAGE[what]} --out FOLDER [options]",
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
    dataset = parser.add_argument_group("or a dataset of Hugging Face, and columns")
    flag(dataset, "--dataset NAME", "a dataset's folder (`save_to_disk`) or Hub id")
    flag(dataset, "--split NAME", "part of it (default: train), or of a file whose rows name theirs")
    if what == CAPTIONS:
        flag(dataset, "--image-column NAME", "of the dataset's images (default: image)")
    flag(dataset, "--caption-column NAME", "of captions, in a file or dataset (default: caption)")
    text = "of image ids in a file; rows of a dataset with equal ids show one image (default: row numbers)"
    flag(dataset, "--id-column NAME", text)
    add_flags(parser, _settings(what), title="options of the generation")
    if what == IMAGES:
        parser.set_defaults(images=None)
    return parser
