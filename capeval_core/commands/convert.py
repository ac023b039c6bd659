"""`capeval convert`: from the checkpoint that the authors released to a folder of weights."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from capeval_core.commands.arguments import add_flags, chosen, in_words_of_the_user
from capeval_core.commands.terminal import Parser, complain, paragraph, table
from capeval_core.description import describe_metric
from capeval_core.errors import did_you_mean
from capeval_core.registry import METRICS, list_metrics, metric_class, network
from capeval_core.weights.catalogue import EVA_CLIP, entry_known_as
from capeval_core.weights.folder import CONFIG, TENSORS, VOCABULARY
from capeval_core.writing import sync

if TYPE_CHECKING:
    from capeval_core.models.model import CheckedModel
    from capeval_core.weights.release import Conversion

_REGIONS = "regions"
_PARTS = {
    _REGIONS: "a SAM that finds the regions of HICE-S",
    EVA_CLIP: "the largest member of ECO's ensemble",
}
"""What is converted beside the weights of metrics."""
_KINDS = {_REGIONS: "sam", EVA_CLIP: "eva_clip"}
_OURS = {CONFIG, TENSORS, VOCABULARY, "README.md"}


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _introduce(arguments)
    encoder = _encoder_of(arguments[0])
    given = _parser(arguments[0], encoder.Conversion).read(arguments[1:])
    out: Path = given.out
    _refuse_to_overwrite(out, given.force)
    with in_words_of_the_user(encoder.Conversion):
        conversion = encoder.Conversion.of("convert", chosen(given, encoder.Conversion))
        release = conversion.read(given.checkpoint)
    with _whole_folder(out) as partial:
        encoder(release.config, release.tensors, device="cpu").save_pretrained(partial)
    described = encoder.describe(release.config)
    entry = entry_known_as(out.name, given.checkpoint.name)
    if entry is not None and (wrong := entry.is_another(described)):
        complain(
            f"warning: {wrong}: {given.checkpoint} is not the released file, its scores are not comparable"
        )
    print(_told(arguments[0], out, described, release.notes))
    return 0


def _encoder_of(name: str) -> type[CheckedModel]:
    if name in _KINDS:
        return network(_KINDS[name])
    if name not in list_metrics():
        known = [*METRICS, *_KINDS]
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
            + " or ".join(f"{name} for {what}" for name, what in _PARTS.items())
            + ". `capeval convert METRIC --help` shows all options."
        ),
    )
    parser.parse_args(arguments[:1] if arguments[:1] in (["-h"], ["--help"]) else [])
    names = ",".join([*METRICS, *_PARTS])
    parser.error(f"the metric comes first: capeval convert {{{names}}} CHECKPOINT --out FOLDER")


def _told(name: str, out: Path, architecture: str, notes: list[str]) -> str:
    files = "--candidates captions.json --images images"
    if name == _REGIONS:
        command = f"capeval score hices {files} --regions {shlex.quote(f'objects:{out}')}"
    elif name == EVA_CLIP:
        members = shlex.quote(f"{out},blip2-itc")
        command = f"capeval rerank {files} --out best.csv --members {members}"
    elif describe_metric(metric_class(name)).command == "rerank":
        command = f"capeval rerank {files} --out best.csv --weights {shlex.quote(str(out))}"
    else:
        files += " --references references.json" if metric_class(name).needs_references else ""
        command = f"capeval score {name} {files} --weights {shlex.quote(str(out))}"
    return "\n".join(
        [
            f"{out}: {architecture}",
            table([["-", note] for note in notes], indent="  "),
            "score with it:",
            f"  {command}",
        ]
    )


def _refuse_to_overwrite(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: choose a folder")
    found = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    if found and not force:
        raise ValueError(f"--out {out} is not empty: choose another folder, or pass --force to replace it")
    if foreign := sorted(found - _OURS):
        raise ValueError(f"--out {out} holds more than weights ({foreign[0]}): choose another folder")


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """A folder whose files become those of `out` when the block ends well, and go when it does not."""
    name = f".partial-{uuid4().hex[:8]}"
    # An existing folder may be a mount or the one that the user is in: its files change, not the folder.
    partial = out / name if out.is_dir() else out.with_name(name)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        if out.is_dir():
            for file in partial.iterdir():
                file.replace(out / file.name)
            sync(out)
        else:
            partial.rename(out)
            sync(out.absolute().parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
