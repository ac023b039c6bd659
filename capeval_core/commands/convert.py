"""`capeval convert`: from the checkpoint that the authors released to a folder of weights."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from capeval_core.commands.common import check_folder, chosen, example_of
from capeval_core.commands.terminal import complain, first_named, help_texts, parser_of, table
from capeval_core.registry import metric_class, metric_classes, network
from capeval_core.weights.catalogue import EVA_CLIP, entry_known_as
from capeval_core.weights.folder import CONFIG, TENSORS, TOKENIZER, VOCABULARY

_OURS = {CONFIG, TENSORS, VOCABULARY, TOKENIZER, "README.md"}


def run(arguments: list[str]) -> int:
    """Write a folder of weights from a released checkpoint; the exit status."""
    parts: dict[str, Any] = help_texts()["convert parts"]
    purposes = {
        name: f"weights of {name}" for name, metric in metric_classes().items() if metric.default_weights
    }
    for part_name, about in parts.items():
        purposes[part_name] = about["purpose"]
    name, flag_arguments = first_named(arguments, "convert", purposes)
    part = parts.get(name)
    encoder = network(part["network"] if part else str(metric_class(name).network))
    shards = ", or the index of shards" if name == EVA_CLIP else ""
    parser = parser_of(f"convert {name}", "convert METRIC", options=[encoder.Conversion], shards=shards)
    flags = parser.read(flag_arguments)
    out: Path = flags.out
    if check_folder(out) and not flags.force:
        raise ValueError(f"--out {out} is not empty: choose another folder, or pass --force to replace it")
    check_folder(out, _OURS, "weights")
    release = encoder.convert(flags.checkpoint, **chosen(flags, encoder.Conversion))
    encoder(release.config, release.tensors, device="cpu").save_pretrained(out)
    architecture = encoder.describe(release.config)
    entry = entry_known_as(out.name, flags.checkpoint.name)
    difference = None if entry is None else entry.is_another(architecture)
    if difference:
        problem = f"{flags.checkpoint} is not the released file, its scores are not comparable"
        complain(f"warning: {difference}: {problem}")
    print(f"{out}: {architecture}")
    print(table([["-", note] for note in release.notes], indent="  "))
    if part:
        files = "--candidates captions.json --images images"
        command = part["command"].format(files=files, weights=shlex.quote(str(out)))
        print(f"score with it:\n  capeval {command}")
    else:
        print(f"score with it:\n  {example_of(metric_class(name), out)}")
    return 0
