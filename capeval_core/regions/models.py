"""Models that find regions, from the Hub, from a folder in transformers' format, or from a converted one."""

from __future__ import annotations

import os
from pathlib import Path

from capeval_core.weights.folder import (
    CONFIG,
    TENSORS,
    WeightsError,
    WeightsFolder,
    file_checksum,
    open_weights,
    read_json,
)
from capeval_core.weights.hub import download_model

SEGMENTER = "Zigeng/SlimSAM-uniform-77"
"""SAM pruned to a tenth of ViT-B, 39 MB, Apache 2.0: light as the paper's MobileSAMv2, whose weights have to
be converted first."""
DETECTOR = "google/owlv2-base-patch16-ensemble"
"""OWLv2, Apache 2.0, 0.6 GB: its objectness knows no classes."""
WITHOUT = (
    'To run without it: regions="colours" (drawn scenes only), or masks of your own, regions="masks.json" '
    "(COCO run lengths by image id)."
)


def open_model(weights: str | os.PathLike[str], *, what: str, model_type: str, default: str) -> WeightsFolder:
    """The folder that `weights` means, in transformers' format or made by `capeval convert`.

    Args:
        weights: folder, or Hub id (`org/name` or `org/name@revision`).
        what: what it is for, in messages: `segmenter`, `detector`.
        model_type: what transformers calls its architecture.
        default: a repository that would do.

    Raises:
        WeightsError: unknown name, no such repository, no network, files missing or damaged, another
            architecture. Says how to do without.
    """
    name = os.fspath(weights)
    path = Path(name).expanduser()
    if path.is_file():
        raise WeightsError(
            f"{what} {name!r} is a file: convert it with `capeval convert regions {name} --out FOLDER` and "
            "pass the folder"
        )
    if path.is_dir():
        folder = _read(path, path.resolve().name, None, what, default)
    else:
        found = download_model(
            name, what, ["*config.json"], TENSORS, default=default, without=WITHOUT, error=WeightsError
        )
        folder = _read(found.path, name.partition("@")[0], found.commit, what, default)
    kind = folder.config.get("encoder" if folder.config.get("format") == 1 else "model_type")
    if kind != model_type:
        raise WeightsError(
            f"{what} {name!r} is a model of type {kind!r}, expected {model_type!r}, such as {default}"
        )
    return folder


def _read(path: Path, name: str, revision: str | None, what: str, default: str) -> WeightsFolder:
    for file in (CONFIG, TENSORS):
        if not (path / file).is_file():
            raise WeightsError(
                f"{what} {name!r}: {path} has no {file}: pass a folder made by `capeval convert regions`, or "
                f"one in transformers' format with safetensors, such as {default}. {WITHOUT}"
            )
    try:
        config = read_json(path / CONFIG)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{what} {name!r}: {CONFIG} cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{what} {name!r}: {CONFIG} holds a {type(config).__name__}, expected an object")
    if config.get("format") == 1:  # made by us: it holds its own checksum, which is looked at there
        again = f"{name}@{revision}" if revision else path
        return open_weights(again, metric="regions", tiny="regions")
    return WeightsFolder(path, name, revision, config, path / TENSORS, file_checksum(path / TENSORS))


def needs_transformers(what: str, error: ImportError) -> WeightsError:
    """What to install where transformers, or what it needs, is missing."""
    return WeightsError(f"the {what} needs transformers ({error}): pip install transformers. {WITHOUT}")
