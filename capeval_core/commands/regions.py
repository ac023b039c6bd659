"""`capeval regions`: box features of many images, computed once."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from capeval_core.commands.common import check_folder, tell_reasons, write
from capeval_core.commands.terminal import interruptible, parser_of, summary
from capeval_core.errors import FileError, Problems, naming, wrong_option
from capeval_core.inputs.boxes import EXTENSION, MANIFEST, Manifest, is_whole, npz_bytes
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.joining import paths_by_id
from capeval_core.scores.box_metrics import BoxSource, box_source_opener
from capeval_core.weights.catalogue import FASTER_RCNN, FASTER_RCNN_VG, X152, X152_VG

_DETECTORS = {FASTER_RCNN: FASTER_RCNN_VG, X152: X152_VG}


def run(arguments: list[str]) -> int:
    """Write a file of box features for each image that has none; the exit status."""
    flags = parser_of("regions").read(arguments)
    problems = Problems()
    paths = paths_by_id(flags.images, problems)
    problems.raise_if_any()
    # Before the detector is opened, which takes seconds, and again with the settings that it determines.
    _check_folder(flags.out)
    source, selection = _open(flags)
    encoder: Any = source.encoder
    _check_folder(flags.out, Manifest(source.label, selection, flags.dtype, encoder.fingerprint))
    missing: dict[str, InputImage] = {}
    for image_id, path in paths.items():
        image = InputImage.of(path, f"image of {image_id!r}")
        if not _has_file(flags.out, image_id, image):
            missing[image_id] = image
    stored_count = len(paths) - len(missing)
    resumed = f"what is in {flags.out} is kept: run the same command again to resume"
    bar = tqdm(total=len(paths), initial=stored_count, unit="image", disable=None)
    with interruptible(resumed), bar:
        box_counts, errors = _write_missing(flags.out, missing, encoder, selection, bar)
    counts = f"{len(box_counts):,} written, {stored_count:,} found, {len(errors):,} failed"
    if box_counts:
        counts += f" ({sum(box_counts) / len(box_counts):.1f} boxes each)"
    summary(["images", counts], ["encoder", f"{source.label}, {selection}, {flags.dtype}"])
    tell_reasons(errors, len(paths), "images")
    if len(errors) == len(paths):
        return 1
    print(f"score with them: pass --regions {shlex.quote(str(flags.out))} to a metric on regions")
    return 0


def _write_missing(
    out: Path, images: Mapping[str, InputImage], encoder: Any, selection: str, bar: tqdm[Any]
) -> tuple[list[int], list[str]]:
    """Write the box features of images; the number of boxes of each file, and the reasons of failures."""
    box_counts: list[int] = []
    errors: list[str] = []
    visuals = encoder.encode_boxes(images.values())
    for image_id, visual in zip(images, visuals, strict=True):
        if visual.error:
            errors.append(visual.error)
        else:
            features = replace(visual.load(), selection=selection)
            # With the digest of the image, so that another image of the same id is not taken for it.
            write("--out", out / f"{image_id}{EXTENSION}", npz_bytes(features, visual.content))
            box_counts.append(len(features))
        bar.update()
    return box_counts, errors


def _has_file(out: Path, image_id: str, image: InputImage) -> bool:
    """True if the folder has readable box features of exactly this image."""
    path = out / f"{image_id}{EXTENSION}"
    try:
        return path.exists() and is_whole(path, image.key)
    except ImageError:  # the encoder reports it
        return False


def _open(flags: Namespace) -> tuple[BoxSource, str]:
    """The detector that the flags name, and the rule by which it selects boxes."""
    weights = _DETECTORS[flags.detector].name if flags.weights is None else flags.weights
    settings = {"selection": flags.selection, "device": flags.device, "dtype": flags.dtype}
    with naming({"regions": "weights"}):
        source = box_source_opener(weights)(**settings)
    if source.encoder is None:
        fix = "pass weights of a region encoder (a Hub id, a folder, or 'tiny')"
        raise wrong_option("weights", weights, "is box features already, which need no encoder", fix)
    # X-152's release keeps all proposals, by one rule. The flag's default is not a wish for another one.
    selection: str = getattr(source.encoder, "only_selection", flags.selection)
    if selection != flags.selection != "bua10_100":
        problem = "is not a choice of this region encoder, which has one rule"
        raise wrong_option("selection", flags.selection, problem, "leave it out")
    return source, selection


def _check_folder(out: Path, manifest: Manifest | None = None) -> None:
    """Refuse a folder of something else or of other settings; with a manifest, create what is missing."""
    entries = check_folder(out)
    stored = Manifest.read(out)
    if stored is None:
        if entries:
            problem = (
                f"--out {out} is not empty, and `capeval regions` did not fill it (there is no {MANIFEST})"
            )
            raise FileError(f"{problem}: choose another folder")
        if manifest is not None:
            out.mkdir(parents=True, exist_ok=True)
            write("--out", out / MANIFEST, manifest.text())
    elif manifest is not None:
        # A metric would read boxes of both settings as if they were of one.
        differences = []
        # By its fingerprint, as the encoder's name may have changed, like that of a folder.
        if stored.fingerprint != manifest.fingerprint:
            differences.append(f"encoder {stored.encoder}")
        if stored.selection != manifest.selection:
            differences.append(f"selection {stored.selection}")
        if stored.dtype != manifest.dtype:
            differences.append(f"dtype {stored.dtype}")
        if differences:
            problem = f"--out {out} has regions of {', '.join(differences)}"
            raise FileError(f"{problem}: choose another folder, or pass the settings that it was made with")
