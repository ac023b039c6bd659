"""`capeval augment`: generated captions and images, the additional positives that PAC-S is trained with."""

from __future__ import annotations

import re
from typing import Any

from capeval_core.commands.common import chosen, tell_reasons
from capeval_core.commands.terminal import complain, first_named, interruptible, kinds_of, parser_of, summary


def run(arguments: list[str]) -> int:
    """Generate captions of images, or images of captions; the exit status."""
    kind, flag_arguments = first_named(arguments, "augment", kinds_of("augment", "captions", "images"))
    # Behind the name of the kind: they import torch, and the list of kinds needs none.
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation, augment
    from capeval_core.training.training_data import CaptionSource

    settings: Any = CaptionAugmentation if kind == "captions" else ImageAugmentation
    options = [CaptionSource, settings]
    parser = parser_of(f"augment {kind}", f"augment {kind}", "augment KIND", options=options, kind=kind)
    flags = parser.read(flag_arguments)
    shard = _shard(flags.shard)
    augmentation = settings.of(f"capeval augment {kind}", chosen(flags, settings))
    source = CaptionSource(**chosen(flags, CaptionSource))
    # Captions are generated from images, and images from captions.
    source_kind = "images" if kind == "captions" else "captions"
    source_path = flags.images if kind == "captions" else flags.captions
    if (source_path is None) == (source.dataset is None):
        raise ValueError(f"pass either --{source_kind} or --dataset DATASET")
    if source.dataset is not None and flags.captions is not None:
        raise ValueError("--captions FILE goes with --images FOLDER: a dataset has ids of its own")
    if source.dataset is None:
        captioned = source.read(flags.captions, source_path if kind == "captions" else None)
    else:
        captioned = source.read_dataset(source_kind)
    with interruptible(f"what was generated is kept in {flags.out}: run the same command again to resume"):
        counts = augment(augmentation, captioned, source_path or source.dataset, flags.out, shard)
    # Sorted, since several processes and resumed runs meet the reasons in different orders.
    reasons = []
    for reason, count in sorted(counts.dropped.items()):
        reasons.append(f"{count:,} {reason}")
    dropped = f"{counts.dropped.total():,} dropped"
    if reasons:
        dropped += f" ({', '.join(reasons)})"
    title = kind
    if shard[1] > 1:
        title += f" (part {flags.shard})"
    positives = f"{counts.generated:,} generated, {counts.stored:,} found"
    outcome = f"{positives}, {dropped}, {len(counts.failed):,} failed"
    summary([title, outcome], ["folder", str(flags.out)])
    if counts.truncated:
        complain(
            f"warning: {counts.truncated:,} captions are longer than the text encoder reads, and the images "
            "show their beginnings only"
        )
    tell_reasons(counts.failed, counts.total, "images")
    # With positives of earlier runs in the folder there is something to train with, so that is no failure.
    if not counts.generated and not counts.stored and (counts.failed or counts.dropped):
        return 1
    print(f"train with them, their captions and images: `capeval train pacs ... --positives {flags.out}`")
    return 0


def _shard(text: str) -> tuple[int, int]:
    """I and N of a shard I/N."""
    match = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"--shard {text}: expected I/N with I from 1 to N, e.g. 1/4")
    return int(match[1]), int(match[2])
