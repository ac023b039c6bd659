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
    known = {name: f"weights of {name}" for name, own in metric_classes().items() if own.default_weights}
    parts: dict[str, Any] = help_texts()["convert parts"]
    known |= {part: about["purpose"] for part, about in parts.items()}
    name, rest = first_named(arguments, "convert", known)
    encoder = network(parts[name]["network"] if name in parts else str(metric_class(name).network))
    shards = ", or the index of shards" * (name == EVA_CLIP)
    parser = parser_of(f"convert {name}", "convert METRIC", options=[encoder.Conversion], shards=shards)
    flags = parser.read(rest)
    out: Path = flags.out
    if check_folder(out) and not flags.force:
        raise ValueError(f"--out {out} is not empty: choose another folder, or pass --force to replace it")
    check_folder(out, _OURS, "weights")
    release = encoder.convert(flags.checkpoint, **chosen(flags, encoder.Conversion))
    encoder(release.config, release.tensors, device="cpu").save_pretrained(out)
    architecture = encoder.describe(release.config)
    entry = entry_known_as(out.name, flags.checkpoint.name)
    if entry is not None and (difference := entry.is_another(architecture)):
        what = f"{flags.checkpoint} is not the released file, its scores are not comparable"
        complain(f"warning: {difference}: {what}")
    print(f"{out}: {architecture}")
    print(table([["-", note] for note in release.notes], indent="  "))
    part, files = parts.get(name), "--candidates captions.json --images images"
    used = part and f"capeval {part['command'].format(files=files, weights=shlex.quote(str(out)))}"
    print(f"score with it:\n  {used or example_of(metric_class(name), out)}")
    return 0
