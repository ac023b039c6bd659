"""`capeval convert`: from the checkpoint that the authors released to a folder of weights."""

from __future__ import annotations

import shlex
from pathlib import Path

from capeval_core.commands.common import add_flags, check_folder, chosen
from capeval_core.commands.regions import BOX_FEATURES, convert_box_features
from capeval_core.commands.terminal import complain, first_named, parser_of, table
from capeval_core.metric import Reranker
from capeval_core.registry import metric_class, metric_classes, network
from capeval_core.weights.catalogue import EVA_CLIP, FASTER_RCNN, X152, entry_known_as
from capeval_core.weights.folder import CONFIG, TENSORS, TOKENIZER, VOCABULARY

_PARTS = {
    "regions": ("sam", "a SAM that finds the regions of HICE-S", "score hices {} --regions objects:{}"),
    EVA_CLIP: (
        "eva_clip",
        "the largest member of ECO's ensemble",
        "rerank {} --out best.csv --members {},blip2-itc",
    ),
    FASTER_RCNN: ("faster_rcnn", "the detector of UMIC's boxes", "score umic {} --regions {}"),
    X152: (
        "x152",
        "the detector of ViLBERTScore's boxes",
        "score vilbertscore {} --references references.json --regions {}",
    ),
}
"""What is converted beside the weights of metrics: name -> network, purpose, and a command that uses it."""
_OURS = {CONFIG, TENSORS, VOCABULARY, TOKENIZER, "README.md"}


def run(arguments: list[str]) -> int:
    released = {BOX_FEATURES: "features that 12-in-1 released, for ViLBERTScore"}
    known = {name: f"weights of {name}" for name, own in metric_classes().items() if own.default_weights}
    known |= {part: purpose for part, (_, purpose, _) in _PARTS.items()} | released
    name, rest = first_named(arguments, "convert", known)
    if name == BOX_FEATURES:
        return convert_box_features(rest)
    encoder = network(_PARTS[name][0] if name in _PARTS else str(metric_class(name).network))
    shards = ", or the index of shards" * (name == EVA_CLIP)
    parser = parser_of(f"convert {name}", "convert METRIC", shards=shards)
    add_flags(parser, encoder.Conversion, "what the tensors may not show, and what is recorded with them")
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
    print(f"score with it:\n  {_score_command(name, out)}")
    return 0


def _score_command(name: str, out: Path) -> str:
    """A command that uses the converted weights."""
    files, place = "--candidates captions.json --images images", shlex.quote(str(out))
    if name in _PARTS:
        return f"capeval {_PARTS[name][2].format(files, place)}"
    metric = metric_class(name)
    if issubclass(metric, Reranker):
        return f"capeval rerank {files} --out best.csv --weights {place}"
    files += " --references references.json" * metric.needs_references
    return f"capeval score {name} {files} --weights {place}"
