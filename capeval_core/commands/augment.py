"""`capeval augment`: generated captions and images, the additional positives that PAC-S is trained with."""

from __future__ import annotations

import re
from typing import Any

from capeval_core.commands.common import chosen, tell_reasons
from capeval_core.commands.terminal import complain, first_named, interruptible, kinds_of, parser_of, summary


def run(arguments: list[str]) -> int:
    what, rest = first_named(arguments, "augment", kinds_of("augment", "captions", "images"))
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation, augment
    from capeval_core.training.captioned import CaptionSource

    settings: Any = CaptionAugmentation if what == "captions" else ImageAugmentation
    options = [CaptionSource, settings]
    parser = parser_of(f"augment {what}", f"augment {what}", "augment KIND", options=options, kind=what)
    flags = parser.read(rest)
    part = re.fullmatch("([0-9]+)/([0-9]+)", flags.shard)
    if part is None or not 1 <= int(part[1]) <= int(part[2]):
        raise ValueError(f"--shard {flags.shard}: expected I/N with I from 1 to N, e.g. 1/4")
    augmentation = settings.of(f"capeval augment {what}", chosen(flags, settings))
    source = CaptionSource(**chosen(flags, CaptionSource))
    given, other = (flags.images, "images") if what == "captions" else (flags.captions, "captions")
    if (given is None) == (source.dataset is None):
        raise ValueError(f"pass either --{other} or --dataset DATASET")
    if source.dataset is not None and flags.captions is not None:
        raise ValueError("--captions FILE goes with --images FOLDER: a dataset has ids of its own")
    if source.dataset is None:
        captioned = source.read(flags.captions, given if what == "captions" else None)
    else:
        captioned = source.read_dataset(other)
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
    tell_reasons(counts.failed, counts.total, "images")
    if not counts.made and not counts.found and (counts.failed or counts.dropped):
        return 1
    print(f"train with them, their captions and images: `capeval train pacs ... --positives {flags.out}`")
    return 0
