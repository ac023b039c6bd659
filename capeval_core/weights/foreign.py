"""Models in transformers' format: a local folder, or a repository on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from capeval_core.values import expanded_path
from capeval_core.weights.folder import (
    CONFIG,
    TENSORS,
    WeightsError,
    WeightsFolder,
    file_checksum,
    open_weights,
    read_config,
)
from capeval_core.weights.hub import download

_CONVERTED_AS = "regions"
"""The name under which `capeval convert` takes original checkpoints of such models."""


def open_foreign(
    model: str,
    what: str,
    files: Sequence[str],
    required: Sequence[Sequence[str]],
    *,
    default: str,
    without: str = "",
    tensors: Callable[[Path], Sequence[str]] = lambda _: [TENSORS],
    error: type[WeightsError] = WeightsError,
) -> tuple[Path, str, str | None]:
    """A model in transformers' format: its folder, its name, and its commit on the Hub (None: it is local).

    Args:
        model: folder, or Hub id (`org/name` or `org/name@revision`), which is downloaded.
        what: what the model is for, in messages.
        files: patterns of the files to download, beside the safetensors.
        required: alternatives of file patterns; of each of them one file must be there.
        default: a repository that fits.
        without: how to work without the model, in messages.
        tensors: the files of tensors to download, by the folder of the other ones.
        error: class of the error that is raised where it could not be loaded, or a file is missing.
    """
    without = without and f" {without}"

    def unavailable(repository: str, why: str | None) -> Exception:
        if why is None:
            return error(f"{what} {model!r} is neither a folder nor a Hub id (org/name[@revision]).{without}")
        other = "" if repository == default else f" The default is {default}."
        return error(
            f"{what} {model!r} could not be loaded ({why}).{other} Check the id and the connection, or "
            f"download it elsewhere (`hf download {repository} --local-dir FOLDER`) and pass the folder."
            f"{without}"
        )

    path, commit = expanded_path(model), None
    name = path.resolve().name
    if not path.is_dir():
        name = model.partition("@")[0]
        if name.count("/") != 1 or name.startswith((".", "~", "/")):
            raise unavailable(name, None)
        path = download(model, f"{what} {model!r}", list(files), tensors, error=unavailable)
        commit = path.name
    for patterns in required:
        if not any(file.is_file() for pattern in patterns for file in path.glob(pattern)):
            raise error(
                f"{what} {name!r} has no {' or '.join(patterns)} in {path}: pass a folder in "
                f"transformers' format with safetensors, such as {default} from the Hub.{without}"
            )
    return path, name, commit


def open_foreign_weights(
    weights: str | os.PathLike[str], what: str, model_type: str, *, default: str, without: str
) -> WeightsFolder:
    """The weights of a model in transformers' format, or those that `capeval convert` made of it.

    `model_type` is transformers' name of its architecture; other arguments are those of `open_foreign`.
    """
    given = os.fspath(weights)
    if expanded_path(given).is_file():
        raise WeightsError(
            f"{what} {given!r} is a file: convert it with `capeval convert {_CONVERTED_AS} {given} "
            "--out FOLDER` and pass the folder"
        )
    path, name, commit = open_foreign(
        given, what, ["*config.json"], [[CONFIG], [TENSORS]], default=default, without=without
    )
    try:
        config = read_config(path / CONFIG)
    except WeightsError as error:
        raise WeightsError(f"{what} {given!r}: {error}") from error
    converted = config.get("format") == 1
    kind = config.get("encoder" if converted else "model_type")
    if kind != model_type:
        raise WeightsError(
            f"{what} {given!r} is a model of type {kind!r}, expected {model_type!r}, such as {default}"
        )
    if converted:  # its config holds the checksum, which `open_weights` checks
        pinned = f"{name}@{commit}" if commit else path
        return open_weights(pinned, metric=_CONVERTED_AS, tiny=_CONVERTED_AS)
    return WeightsFolder(path, name, commit, config, path / TENSORS, file_checksum(path / TENSORS))
