"""`capeval convert`: from the checkpoint that the authors released to a folder of weights."""

from __future__ import annotations

import shlex
from pathlib import Path

from capeval_core.commands.common import check_folder, chosen, example_of
from capeval_core.commands.terminal import complain, first_named, parser_of, table
from capeval_core.registry import metric_class, metric_classes, network
from capeval_core.weights.catalogue import EVA_CLIP, entry_known_as
from capeval_core.weights.folder import CONFIG, TENSORS, TOKENIZER, VOCABULARY
from capeval_core.weights.networks import NETWORKS, PARTS

_OURS = {CONFIG, TENSORS, VOCABULARY, TOKENIZER, "README.md"}


def run(arguments: list[str]) -> int:
    """Write a folder of weights from a released checkpoint; the exit status."""
    purposes: dict[str, str] = {}
    for metric_name, metric in metric_classes().items():
        if metric.default_weights:
            purposes[metric_name] = f"weights of {metric_name}"
    for part_name, part_kind in PARTS.items():
        purposes[part_name] = str(NETWORKS[part_kind].purpose)
    name, flag_arguments = first_named(arguments, "convert", purposes)
    kind = PARTS.get(name) or str(metric_class(name).network)
    encoder = network(kind)
    # EVA-CLIP-18B, which ECO may use, is too large for one file.
    shards = ", or the index of shards" if name == EVA_CLIP else ""
    parser = parser_of(f"convert {name}", "convert METRIC", options=[encoder.Conversion], shards=shards)
    flags = parser.read(flag_arguments)
    out: Path = flags.out
    if check_folder(out) and not flags.force:
        raise ValueError(f"--out {out} is not empty: choose another folder, or pass --force to replace it")
    check_folder(out, _OURS, "weights")  # --force replaces weights, not what else lies there
    release = encoder.convert(flags.checkpoint, **chosen(flags, encoder.Conversion))
    # Through the network itself: its strict filling finds a missing tensor now, not when it is opened.
    encoder(release.config, release.tensors, device="cpu").save_pretrained(out)
    architecture = encoder.describe(release.config)
    # A file of the released name with another architecture may be a mix-up, or one's own training: a warning.
    entry = entry_known_as(out.name, flags.checkpoint.name)
    difference = None if entry is None else entry.is_another(architecture)
    if difference:
        problem = f"{flags.checkpoint} is not the released file, its scores are not comparable"
        complain(f"warning: {difference}: {problem}")
    print(f"{out}: {architecture}")
    print(table([["-", note] for note in release.notes], indent="  "))
    command = NETWORKS[kind].command  # of weights that a metric uses next to its own
    if command is None:
        example = example_of(metric_class(name), out)
    else:
        files = "--candidates captions.json --images images"
        example = f"capeval {command.format(files=files, weights=shlex.quote(str(out)))}"
    print(f"score with it:\n  {example}")
    return 0
