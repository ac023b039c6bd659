"""`capeval regions`, and `convert box-features`: box features of many images, computed or converted once."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from capeval_core.commands.common import add_flags, chosen, tell_reasons, visual_of, write
from capeval_core.commands.terminal import Parser, flag, interruptible, summary
from capeval_core.errors import FileError, Problems, naming, wrong_option
from capeval_core.inputs.box_stores import (
    MANIFEST,
    BoxPickles,
    Manifest,
    file_of,
    is_whole,
    npz_bytes,
)
from capeval_core.inputs.folder import paths_by_id
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.kept import PARTIAL
from capeval_core.options import Settings, option
from capeval_core.regions.features import RegionEncoder, Selection
from capeval_core.scores.boxes import box_source_opener
from capeval_core.weights.catalogue import FASTER_RCNN, FASTER_RCNN_VG, X152, X152_VG

BOX_FEATURES = "box-features"
"""What `capeval convert` makes of features that 12-in-1 released."""
_ALL = "all"
"""The name of the rule that chose the boxes of that release, which keeps 100."""
_DETECTORS = {FASTER_RCNN: FASTER_RCNN_VG, X152: X152_VG}
_RESUMED = "what is in {} stays: run the same command again to resume"


@dataclass(frozen=True, kw_only=True)
class _RegionOptions(Settings):
    """What regions are found with."""

    detector: Literal["faster-rcnn", "x152"] = option(
        FASTER_RCNN,
        "where `weights` names none: bottom-up attention's detector, which UMIC takes, or that of 12-in-1, "
        "which ViLBERTScore takes",
    )
    weights: str | PathLike[str] | None = option(
        None,
        "region encoder: Hub repository id (`@revision` pins it), folder, or `tiny`; None: the published "
        "weights of the detector",
    )
    selection: Selection = option(
        "bua10_100",
        "boxes of an image: those more confident than 0.2, 10 to 100 of them, or LXMERT's 36",
    )
    device: str | None = option(None, "torch device, e.g. `cpu`, `cuda:1`; None: CUDA where there is a GPU")
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "numeric type of the encoder; files are in float32"
    )


@dataclass
class _Counts:
    """What became of the images: files that are written and those that were there, boxes, and errors."""

    written: int = 0
    found: int = 0
    boxes: int = 0
    errors: list[str] = field(default_factory=list)

    def text(self) -> str:
        share = f" ({self.boxes / self.written:.1f} boxes each)" if self.boxes else ""
        return f"{self.written:,} written{share}, {self.found:,} found, {len(self.errors):,} failed"


def run(arguments: list[str]) -> int:
    parser = Parser(
        "regions",
        "--images FOLDER --out FOLDER [options]",
        "Find the regions of images (boxes, their features and confidences) once, and keep them for all "
        "metrics on regions, which then open no image.",
        "Each image gets an .npz file of its id, which is its name without the extension. Its arrays are "
        "boxes (n, 4: left, top, right, bottom in pixels), features (n, d) and scores (n), in float32, "
        "best box first, and size (width, height). Images that have their file already are skipped, so "
        "the same command resumes a run.",
    )
    files = parser.add_argument_group("files")
    flag(files, "--images FOLDER", "the images", required=True)
    flag(files, "--out FOLDER", "folder to write, or to continue", required=True)
    add_flags(parser, _RegionOptions, title="options of the regions")
    flags = parser.read(arguments)
    options = _RegionOptions.of("regions", chosen(flags, _RegionOptions))
    images = _images_in(flags.images)
    _refuse_something_else(flags.out)
    label, encoder, selection = _open(options)
    _make(flags.out, Manifest(label, selection, options.dtype, encoder.fingerprint))
    with interruptible(_RESUMED.format(flags.out)):
        counts = _write_all(images, flags.out, encoder, selection)
    summary(["images", counts.text()], ["encoder", f"{label}, {selection}, {options.dtype}"])
    tell_reasons(counts.errors, len(images), "images")
    if len(counts.errors) == len(images):
        return 1
    command = ["capeval", "score", "umic", "--candidates", "captions.json", "--images", str(flags.images)]
    command += ["--regions", str(flags.out)]
    if options.weights == "tiny":  # whose features only the tiny network reads
        command += ["--weights", "tiny"]
    if options.selection != _RegionOptions().selection:
        command += ["--selection", options.selection]
    print(f"score with them:\n  {shlex.join(command)}")
    return 0


def convert_box_features(arguments: list[str]) -> int:
    """`capeval convert box-features`: released pickles as a folder of `.npz` files; the exit status."""
    parser = Parser(
        f"convert {BOX_FEATURES}",
        "RELEASED --out FOLDER",
        "Make a folder of .npz files, one per image, of box features that 12-in-1 released in pickles. "
        "They are read as plain data: nothing in them is run, and one that names anything but NumPy's "
        "arrays is refused.",
        "Images that have their file already are skipped, so the same command resumes a run.",
    )
    forms = "the release's LMDB (folder or data.mdb), an .npy file, or a folder of .npy files"
    flag(parser, "released RELEASED", forms, type=Path)
    flag(parser, "--out FOLDER", "folder to write, or to continue", required=True)
    flags = parser.read(arguments)
    _refuse_something_else(flags.out)
    released = BoxPickles(flags.released)
    _make(flags.out, Manifest(f"released:{released.path.name}", _ALL, "float32", released.fingerprint))
    counts = _Counts()
    with interruptible(_RESUMED.format(flags.out)):
        for image_id in tqdm(released, "box features", unit="image", disable=None):
            try:
                features = released[image_id].decode()
            except ImageError as error:
                counts.errors.append(str(error))
                continue
            path = file_of(flags.out, image_id)
            if path.exists() and is_whole(path, features.key):
                counts.found += 1
            else:
                write("--out", path, npz_bytes(replace(features, selection=_ALL), features.key))
                counts.written += 1
    summary(["images", counts.text()], ["box features", str(flags.out)])
    tell_reasons(counts.errors, len(released), "images")
    if len(counts.errors) == len(released):
        return 1
    print(f"score with them:\n  pass --regions {shlex.quote(str(flags.out))} to a metric on regions")
    return 0


def _write_all(
    images: Mapping[str, InputImage], out: Path, encoder: RegionEncoder, selection: str
) -> _Counts:
    """Write the file of every image that has none yet."""
    counts = _Counts()
    read_ahead: deque[Path] = deque()
    with tqdm(total=len(images), desc="regions", unit="image", disable=None) as bar:

        def missing() -> Iterator[InputImage]:
            for image_id, image in images.items():
                path = file_of(out, image_id)
                if _is_there(path, image):
                    counts.found += 1
                    bar.update()
                else:
                    read_ahead.append(path)
                    yield image

        for visual in encoder.encode_boxes(missing()):
            path = read_ahead.popleft()
            if visual.error is None:
                found = replace(visual.load(), selection=selection)
                write("--out", path, npz_bytes(found, visual.content))
                counts.written += 1
                counts.boxes += len(found)
            else:
                counts.errors.append(visual.error)
            bar.update()
    return counts


def _is_there(path: Path, image: InputImage) -> bool:
    try:
        return path.exists() and is_whole(path, image.key)
    except ImageError:  # the encoder reports it
        return False


def _open(options: _RegionOptions) -> tuple[str, RegionEncoder, str]:
    """Name, region encoder and selection of the options."""
    weights = _DETECTORS[options.detector].repository if options.weights is None else options.weights
    with naming({"regions": "weights"}):
        source = box_source_opener(weights)(
            selection=options.selection, device=options.device, dtype=options.dtype
        )
    if source.encoder is None:
        fix = "pass weights of a region encoder (a Hub id, a folder, or 'tiny')"
        raise wrong_option("weights", weights, "box features already, which need no encoder", fix)
    selection: str = getattr(source.encoder, "only_selection", options.selection)
    if selection != options.selection != _RegionOptions().selection:
        found, fix = "no choice of this region encoder, which has one rule", "leave it out"
        raise wrong_option("selection", options.selection, found, fix)
    return source.label, source.encoder, selection


def _images_in(folder: Path) -> dict[str, InputImage]:
    """The images of a folder by their ids, which name the files of their box features."""
    problems = Problems()
    paths = paths_by_id(folder, problems, ".npz")
    problems.raise_if_any()
    return {image_id: InputImage.of(path, visual_of(image_id, "images")) for image_id, path in paths.items()}


def _refuse_something_else(out: Path) -> None:
    """Refuse a file, and a folder of something else, before any encoder is opened."""
    if not out.exists():
        return
    if not out.is_dir():
        raise FileError(f"--out {out} is a file: choose a folder")
    if Manifest.read(out) is None and any(not entry.name.endswith(PARTIAL) for entry in out.iterdir()):
        found = f"--out {out} is not empty, and `capeval regions` did not fill it (there is no {MANIFEST})"
        raise FileError(f"{found}: choose another folder")


def _make(out: Path, manifest: Manifest) -> None:
    """Make a folder of box features, or refuse one that other settings filled."""
    if out.is_dir() and (kept := Manifest.read(out)) is not None:
        old, new = vars(kept), vars(manifest)
        other = [f"{name} {old[name]}" for name in ("selection", "dtype") if old[name] != new[name]]
        if kept.fingerprint != manifest.fingerprint:  # its name may have changed, as that of a folder does
            other.insert(0, f"encoder {kept.encoder}")
        if other:
            found = f"--out {out} has regions of {', '.join(other)}"
            raise FileError(f"{found}: choose another folder, or pass the settings that it was made with")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"--out {out} cannot be made ({error.strerror})") from error
    write("--out", out / MANIFEST, manifest.text())
