"""`capeval regions`, and `convert box-features`: box features of many images, computed or converted once."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from capeval_core.commands.common import check_folder, tell_reasons, write
from capeval_core.commands.terminal import interruptible, parser_of, summary
from capeval_core.errors import FileError, Problems, naming, wrong_option
from capeval_core.inputs.boxes import EXTENSION, MANIFEST, BoxFeatureStore, Manifest, is_whole, npz_bytes
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.joining import paths_by_id
from capeval_core.scores.boxes import BoxSource, box_source_opener
from capeval_core.weights.catalogue import FASTER_RCNN, FASTER_RCNN_VG, X152, X152_VG

_DETECTORS = {FASTER_RCNN: FASTER_RCNN_VG, X152: X152_VG}
_Found = tuple[str, Any, str]  # id, box features or an error or None where its file is there, key


def run(arguments: list[str]) -> int:
    flags = parser_of("regions").read(arguments)
    problems = Problems()
    paths = paths_by_id(flags.images, problems)
    problems.raise_if_any()
    images = {name: InputImage.of(path, f"image of {name!r}") for name, path in paths.items()}
    _check_folder(flags.out)
    source, selection = _open(flags)
    encoder: Any = source.encoder
    _check_folder(flags.out, Manifest(source.label, selection, flags.dtype, encoder.fingerprint))
    missing = {name: image for name, image in images.items() if not _is_there(flags.out, name, image)}
    found = (
        (name, visual.error or replace(visual.load(), selection=selection), visual.content)
        for name, visual in zip(missing, encoder.encode_boxes(missing.values()), strict=True)
    )
    about = ["encoder", f"{source.label}, {selection}, {flags.dtype}"]
    return _write_all(flags.out, found, len(images), len(images) - len(missing), about)


def convert_box_features(arguments: list[str]) -> int:
    """`capeval convert box-features`: released pickles as a folder of `.npz` files; the exit status."""
    flags = parser_of("convert box-features").read(arguments)
    _check_folder(flags.out)
    released = BoxFeatureStore.open(flags.released, released=True)
    # That release keeps 100 boxes of each image, by a rule without a name.
    manifest = Manifest(f"released:{released.path.name}", "all", "float32", released.fingerprint)
    _check_folder(flags.out, manifest)

    def read() -> Iterator[_Found]:
        for name in sorted(released.entries):
            try:
                features = released.source(name).decode()
            except ImageError as error:
                yield name, str(error), ""
                continue
            there = _is_there(flags.out, name, features)
            yield name, None if there else replace(features, selection=manifest.selection), features.key

    return _write_all(flags.out, read(), len(released.entries), 0, ["box features", str(flags.out)])


def _write_all(out: Path, features: Iterable[_Found], total: int, there: int, about: list[str]) -> int:
    """Write the box features of each id; the exit status, 1 where there are none."""
    written, boxes, errors = 0, 0, list[str]()
    resumed = f"what is in {out} stays: run the same command again to resume"
    with interruptible(resumed), tqdm(total=total, initial=there, unit="image", disable=None) as bar:
        for name, found, key in features:
            if isinstance(found, str):
                errors.append(found)
            elif found is None:
                there += 1
            else:
                write("--out", out / f"{name}{EXTENSION}", npz_bytes(found, key))
                written, boxes = written + 1, boxes + len(found)
            bar.update()
    share = f" ({boxes / written:.1f} boxes each)" if written else ""
    summary(["images", f"{written:,} written, {there:,} found, {len(errors):,} failed{share}"], about)
    tell_reasons(errors, total, "images")
    if len(errors) == total:
        return 1
    print(f"score with them: pass --regions {shlex.quote(str(out))} to a metric on regions")
    return 0


def _is_there(out: Path, name: str, source: Any) -> bool:
    path = out / f"{name}{EXTENSION}"
    try:
        return path.exists() and is_whole(path, source.key)
    except ImageError:  # the encoder reports it
        return False


def _open(flags: Namespace) -> tuple[BoxSource, str]:
    weights = _DETECTORS[flags.detector].name if flags.weights is None else flags.weights
    settings = {"selection": flags.selection, "device": flags.device, "dtype": flags.dtype}
    with naming({"regions": "weights"}):
        source = box_source_opener(weights)(**settings)
    if source.encoder is None:
        fix = "pass weights of a region encoder (a Hub id, a folder, or 'tiny')"
        raise wrong_option("weights", weights, "is box features already, which need no encoder", fix)
    selection: str = getattr(source.encoder, "only_selection", flags.selection)
    if selection != flags.selection != "bua10_100":
        found, fix = "is no choice of this region encoder, which has one rule", "leave it out"
        raise wrong_option("selection", flags.selection, found, fix)
    return source, selection


def _check_folder(out: Path, manifest: Manifest | None = None) -> None:
    """Refuse a file, a folder of something else, and one that other settings filled; else have the folder."""
    there, kept = check_folder(out), Manifest.read(out)
    if kept is None and there:
        found = f"--out {out} is not empty, and `capeval regions` did not fill it (there is no {MANIFEST})"
        raise FileError(f"{found}: choose another folder")
    if manifest is not None and kept is None:
        out.mkdir(parents=True, exist_ok=True)
        write("--out", out / MANIFEST, manifest.text())
    elif manifest is not None:
        old, new = vars(kept), vars(manifest)
        # The encoder's name may have changed, as that of a folder does.
        keys = {"encoder": "fingerprint", "selection": "selection", "dtype": "dtype"}
        if other := [f"{name} {old[name]}" for name, key in keys.items() if old[key] != new[key]]:
            found = f"--out {out} has regions of {', '.join(other)}"
            raise FileError(f"{found}: choose another folder, or pass the settings that it was made with")
