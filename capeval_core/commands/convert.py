"""`capeval convert`: from the checkpoint that the authors released to a folder of weights."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from capeval_core.commands.parser import Parser
from capeval_core.commands.tables import paragraph, table
from capeval_core.metric import METRICS, CaptionMetric, metric_class
from capeval_core.weights.folder import CONFIG, TENSORS

_OURS = {CONFIG, TENSORS, "README.md"}


def run(arguments: list[str]) -> int:
    given = _parser().read(arguments)
    metric = metric_class(given.metric)
    out: Path = given.out
    _refuse_to_overwrite(out, given.force)

    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.weights.convert import read_release

    release = read_release(
        given.checkpoint,
        activation=given.activation,
        head_width=given.head_width,
        text_heads=given.text_heads,
        adapters=given.adapters,
        source_name=given.source,
        url=given.url,
        licence=given.licence,
    )
    with _whole_folder(out) as partial:
        ClipEncoder(release.config, release.tensors, device="cpu").save_pretrained(partial)
    print(_told(metric, out, release.config, release.notes))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="capeval convert",
        usage="capeval convert METRIC CHECKPOINT --out FOLDER [options]",
        description=paragraph("Make a folder of weights of an original checkpoint. Nothing in it is run."),
    )
    parser.add_argument("metric", metavar="METRIC", help=", ".join(METRICS))
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help=".pth, .pt, .bin or .safetensors")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="folder to make")
    parser.add_argument("--force", action="store_true", help="replace the weights that FOLDER holds")
    model = parser.add_argument_group("what the checkpoint's tensors may not show")
    model.add_argument("--activation", choices=("quick_gelu", "gelu"), help="of the transformer blocks")
    model.add_argument(
        "--adapters",
        choices=("released", "all", "none"),
        default="released",
        help="which low-rank adapters to merge: those that the released PAC-S++ script applies (default), "
        "all, or none",
    )
    model.add_argument(
        "--head-width", metavar="N", type=int, help="of the vision tower's heads (default: 64)"
    )
    model.add_argument(
        "--text-heads", metavar="N", type=int, help="of the text tower (default: its width / 64)"
    )
    source = parser.add_argument_group("what is recorded with the weights")
    source.add_argument("--source", metavar="NAME", help="name of the original (default: the file's)")
    source.add_argument("--url", help="where it was downloaded")
    source.add_argument("--licence", help="as its authors state it")
    return parser


def _told(metric: type[CaptionMetric], out: Path, config: dict[str, Any], notes: list[str]) -> str:
    command = f"capeval score {metric.name} --candidates captions.json --images pictures"
    command += " --references references.json" if metric.needs_references else ""
    return "\n".join(
        [
            f"{out}: {_architecture(config)}",
            table([["-", note] for note in notes], indent="  "),
            "score with it:",
            f"  {command} --weights {shlex.quote(str(out))}",
        ]
    )


def _architecture(config: dict[str, Any]) -> str:
    """
    >>> vision = {"layers": 12, "width": 768, "patch_size": 32, "image_size": 224}
    >>> text = {"layers": 12, "width": 512}
    >>> shape = {"embed_dim": 512, "vision": vision, "text": text}
    >>> _architecture({"architecture": shape, "activation": "quick_gelu"})
    'ViT/32 12x768, 224 pixels; text 12x512; 512 dimensions; quick_gelu'
    """
    vision, text = config["architecture"]["vision"], config["architecture"]["text"]
    if isinstance(vision["layers"], list):
        tower = f"ResNet {'-'.join(map(str, vision['layers']))}, width {vision['width']}"
    else:
        tower = f"ViT/{vision['patch_size']} {vision['layers']}x{vision['width']}"
    return (
        f"{tower}, {vision['image_size']} pixels; text {text['layers']}x{text['width']}; "
        f"{config['architecture']['embed_dim']} dimensions; {config['activation']}"
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
        # safetensors lets only the owner read its file; a folder of weights is shared as others are.
        (partial / TENSORS).chmod((partial / CONFIG).stat().st_mode)
        if out.is_dir():
            for file in partial.iterdir():
                file.replace(out / file.name)
        else:
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
