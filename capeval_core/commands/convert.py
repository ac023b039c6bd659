"""`capeval convert`: from the checkpoint that the authors released to a folder of weights."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from capeval_core.commands.arguments import add_flags, chosen, in_words_of_the_user
from capeval_core.commands.box_features import BOX_FEATURES, convert_box_features
from capeval_core.commands.terminal import Parser, complain, paragraph, table
from capeval_core.description import describe_metric
from capeval_core.errors import did_you_mean
from capeval_core.registry import METRICS, list_metrics, metric_class, network
from capeval_core.weights.catalogue import EVA_CLIP, FASTER_RCNN, X152, entry_known_as
from capeval_core.weights.folder import CONFIG, TENSORS, TOKENIZER, VOCABULARY

if TYPE_CHECKING:
    from capeval_core.models.model import CheckedModel
    from capeval_core.weights.conversion import Conversion

_PARTS = {
    "regions": ("sam", "a SAM that finds the regions of HICE-S"),
    EVA_CLIP: ("eva_clip", "the largest member of ECO's ensemble"),
    FASTER_RCNN: ("faster_rcnn", "the detector of UMIC's boxes"),
    X152: ("x152", "the detector of ViLBERTScore's boxes"),
}
"""What is converted beside the weights of metrics: name -> network and purpose."""
_OURS = {CONFIG, TENSORS, VOCABULARY, TOKENIZER, "README.md"}


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _introduce(arguments)
    name, *rest = arguments
    if name == BOX_FEATURES:
        return convert_box_features(rest)
    encoder = _encoder_of(name)
    flags = _parser(name, encoder.Conversion).read(rest)
    out: Path = flags.out
    _refuse_to_overwrite(out, flags.force)
    with in_words_of_the_user(encoder.Conversion):
        release = encoder.convert(flags.checkpoint, **chosen(flags, encoder.Conversion))
    encoder(release.config, release.tensors, device="cpu").save_pretrained(out)
    architecture = encoder.describe(release.config)
    entry = entry_known_as(out.name, flags.checkpoint.name)
    if entry is not None and (difference := entry.is_another(architecture)):
        complain(
            f"warning: {difference}: {flags.checkpoint} is not the released file, its scores are not "
            "comparable"
        )
    print(f"{out}: {architecture}")
    print(table([["-", note] for note in release.notes], indent="  "))
    print(f"score with it:\n  {_score_command(name, out)}")
    return 0


def _encoder_of(name: str) -> type[CheckedModel]:
    if name in _PARTS:
        return network(_PARTS[name][0])
    if name not in list_metrics():
        known = [*METRICS, *_PARTS, BOX_FEATURES]
        raise ValueError(f"unknown metric {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return metric_class(name).encoder_class()


def _parser(name: str, conversion: type[Conversion]) -> Parser:
    parser = Parser(
        prog=f"capeval convert {name}",
        usage=f"capeval convert {name} CHECKPOINT --out FOLDER [options]",
        description=paragraph("Make a folder of weights of an original checkpoint. Nothing in it is run."),
    )
    kinds = ".pth, .pt, .bin or .safetensors" + (", or the index of shards" if name == EVA_CLIP else "")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help=kinds)
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="folder to make")
    parser.add_argument("--force", action="store_true", help="replace the weights that FOLDER holds")
    add_flags(parser, conversion, title="what the tensors may not show, and what is recorded with them")
    return parser


def _introduce(arguments: list[str]) -> int:
    parser = Parser(
        prog="capeval convert",
        usage="capeval convert METRIC CHECKPOINT --out FOLDER [options]",
        description=paragraph("Make a folder of weights of an original checkpoint. Nothing in it is run."),
        epilog=paragraph(
            f"METRIC is one of {', '.join(METRICS)}, or "
            + " or ".join(f"{name} for {purpose}" for name, (_, purpose) in _PARTS.items())
            + f"; {BOX_FEATURES} converts features that 12-in-1 released. "
            "`capeval convert METRIC --help` shows all options."
        ),
    )
    names = ",".join([*METRICS, *_PARTS, BOX_FEATURES])
    parser.introduce(
        arguments, f"the metric comes first: capeval convert {{{names}}} CHECKPOINT --out FOLDER"
    )


def _score_command(name: str, out: Path) -> str:
    files = "--candidates captions.json --images images"
    if name == "regions":
        return f"capeval score hices {files} --regions {shlex.quote(f'objects:{out}')}"
    if name == FASTER_RCNN:
        return f"capeval score umic {files} --regions {shlex.quote(str(out))}"
    if name == X152:
        files += " --references references.json"
        return f"capeval score vilbertscore {files} --regions {shlex.quote(str(out))}"
    if name == EVA_CLIP:
        members = shlex.quote(f"{out},blip2-itc")
        return f"capeval rerank {files} --out best.csv --members {members}"
    weights = f"--weights {shlex.quote(str(out))}"
    if describe_metric(metric_class(name)).command == "rerank":
        return f"capeval rerank {files} --out best.csv {weights}"
    references = " --references references.json" if metric_class(name).needs_references else ""
    return f"capeval score {name} {files}{references} {weights}"


def _refuse_to_overwrite(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: choose a folder")
    files = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    if files and not force:
        raise ValueError(f"--out {out} is not empty: choose another folder, or pass --force to replace it")
    if others := sorted(files - _OURS):
        raise ValueError(f"--out {out} holds more than weights ({others[0]}): choose another folder")
