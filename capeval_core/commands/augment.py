"""`capeval augment`: generated captions and images, the additional positives that PAC-S is trained with."""

from __future__ import annotations

import re
from typing import Any

from capeval_core.commands.common import FILES, add_flags, chosen, tell_reasons
from capeval_core.commands.terminal import Parser, complain, first_named, flag, interruptible, summary

CAPTIONS, IMAGES = "captions", "images"
_ABOUT = {
    CAPTIONS: "Generate a caption of each image with BLIP.",
    IMAGES: "Generate an image of each caption with a diffusion model. What its safety checker blacks out is "
    "left out and counted.",
}
_NEEDED = {CAPTIONS: "--images FOLDER", IMAGES: "--captions FILE"}


def run(arguments: list[str]) -> int:
    about = "Generate additional positives for `capeval train pacs`: captions of images, images of captions."
    what, rest = first_named(arguments, "augment", "KIND", "--out FOLDER [options]", about, _ABOUT)
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation, augment
    from capeval_core.training.captioned import CaptionSource

    settings: Any = CaptionAugmentation if what == CAPTIONS else ImageAugmentation
    flags = _parser(what, settings, CaptionSource).read(rest)
    part = re.fullmatch("([0-9]+)/([0-9]+)", flags.shard)
    if part is None or not 1 <= int(part[1]) <= int(part[2]):
        raise ValueError(f"--shard {flags.shard}: expected I/N with I from 1 to N, e.g. 1/4")
    augmentation = settings.of(f"capeval augment {what}", chosen(flags, settings))
    source = CaptionSource(**chosen(flags, CaptionSource))
    given = flags.images if what == CAPTIONS else flags.captions
    if (given is None) == (source.dataset is None):
        raise ValueError(f"pass either {_NEEDED[what]} or --dataset DATASET")
    if source.dataset is not None and flags.captions is not None:
        raise ValueError("--captions FILE goes with --images FOLDER: a dataset has ids of its own")
    if source.dataset is None:
        captioned = source.read(flags.captions, flags.images)
    else:
        captioned = source.read_dataset("images" if what == CAPTIONS else "captions")
    with interruptible(f"what was generated is kept in {flags.out}: run the same command again to go on"):
        shares = int(part[1]), int(part[2])
        counts = augment(augmentation, captioned, given or source.dataset, flags.out, shares)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.dropped.items()))
    dropped = f"{counts.dropped.total():,} dropped{f' ({reasons})' if reasons else ''}"
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
    print(f"train with them, their captions and images: `capeval train pacs ... --positives {flags.out}`")
    return 0


def _parser(what: str, settings: Any, source: Any) -> Parser:
    parser = Parser(
        f"augment {what}",
        f"{_NEEDED[what]}{' [--captions FILE]' if what == CAPTIONS else ''} --out FOLDER [options]",
        f"{_ABOUT[what]} The same folder takes captions and images. A run that was stopped goes on with "
        "the same command.",
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
    add_flags(parser, source, title="dataset, and columns and splits")
    add_flags(parser, settings, title="options of the generation")
    if what == IMAGES:
        parser.set_defaults(images=None)
    return parser
