"""Models in transformers' format: a local folder, or a repository on the Hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ForeignFolder:
    """A model in transformers' format.

    name: how messages and signatures call it. commit: its commit on the Hub, None for a local folder.
    """

    path: Path
    name: str
    commit: str | None


def open_foreign(
    model: str,
    what: str,
    files: Sequence[str],
    required: Sequence[Sequence[str]],
    *,
    default: str,
    without: str,
    error: type[WeightsError] = WeightsError,
) -> ForeignFolder:
    """The folder of a model in transformers' format, downloaded where it is not local.

    Args:
        model: folder, or Hub id (`org/name` or `org/name@revision`).
        what: what the model is for, in messages.
        files: patterns of the files to download, beside the safetensors.
        required: alternatives of file patterns; of each of them one file must be there.
        default: a repository that fits.
        without: how to work without the model, in messages.
        error: class of the error that is raised.

    Raises:
        error: the model could not be loaded, or a file is missing.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        folder = ForeignFolder(path, path.resolve().name, None)
    else:
        snapshot = download_model(
            model, what, list(files), TENSORS, default=default, without=without, error=error
        )
        folder = ForeignFolder(snapshot.path, model.partition("@")[0], snapshot.commit)
    for patterns in required:
        if not any(file.is_file() for pattern in patterns for file in folder.path.glob(pattern)):
            raise error(
                f"{what} {folder.name!r} has no {' or '.join(patterns)} in {folder.path}: pass a folder in "
                f"transformers' format with safetensors, such as {default} from the Hub. {without}"
            )
    return folder


def open_foreign_weights(
    weights: str | os.PathLike[str], what: str, model_type: str, *, default: str, without: str, convert: str
) -> WeightsFolder:
    """The weights of a model in transformers' format, or those that `capeval convert` made of it.

    Args:
        weights: folder, or Hub id (`org/name` or `org/name@revision`).
        what, default, without: as for `open_foreign`.
        model_type: transformers' name of its architecture.
        convert: the name under which `capeval convert` takes the original checkpoint.

    Raises:
        WeightsError: the weights could not be loaded, are damaged, or are of another architecture.
    """
    name = os.fspath(weights)
    path = Path(name).expanduser()
    if path.is_file():
        raise WeightsError(
            f"{what} {name!r} is a file: convert it with `capeval convert {convert} {name} --out FOLDER` and "
            "pass the folder"
        )
    found = open_foreign(
        name, what, ["*config.json"], [[CONFIG], [TENSORS]], default=default, without=without
    )
    try:
        config = read_json(found.path / CONFIG)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{what} {name!r}: {CONFIG} cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{what} {name!r}: {CONFIG} holds a {type(config).__name__}, expected an object")
    converted = config.get("format") == 1
    kind = config.get("encoder" if converted else "model_type")
    if kind != model_type:
        raise WeightsError(
            f"{what} {name!r} is a model of type {kind!r}, expected {model_type!r}, such as {default}"
        )
    if converted:  # its config holds the checksum, which `open_weights` checks
        pinned = f"{found.name}@{found.commit}" if found.commit else found.path
        return open_weights(pinned, metric=convert, tiny=convert)
    tensors = found.path / TENSORS
    return WeightsFolder(found.path, found.name, found.commit, config, tensors, file_checksum(tensors))


def needs_transformers(
    what: str, missing: ImportError, without: str, error: type[WeightsError] = WeightsError
) -> WeightsError:
    """The error that says what to install where transformers, or a package that it needs, is missing."""
    return error(f"{what} needs transformers ({missing}): pip install transformers sentencepiece. {without}")
