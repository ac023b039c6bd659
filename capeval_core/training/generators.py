"""Generative models of captions and images: found first, with what is wrong with them, and opened later."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from capeval_core.errors import wrong_option
from capeval_core.values import expanded_path
from capeval_core.weights.folder import WeightsError, file_checksum
from capeval_core.weights.foreign import open_foreign

Content = TypeVar("Content", contravariant=True)
Generated = str | bytes
"""A caption, or the bytes of a PNG."""


class Dropped(str):
    """Why what was generated for a source is not kept."""


class Generator(ABC, Generic[Content]):
    """A generative model that is open."""

    truncated = 0
    """Sources of which it did not read all, so far."""

    @abstractmethod
    def generate(self, contents: Sequence[Content], seeds: Sequence[int]) -> list[Generated | Dropped]:
        """Of each source one positive, which depends on its content and its seed alone."""


@dataclass(frozen=True)
class FoundModel:
    """The files of a generative model, of which only configs have been read.

    path: their folder. name: as messages and records call it, with its commit on the Hub. digest: of all
    files.
    """

    path: Path
    name: str
    digest: str


def find_model(
    model: str,
    revision: str | None,
    what: str,
    *,
    default: str,
    files: Sequence[str],
    needed: Callable[[Path], Sequence[str]],
) -> FoundModel:
    """The files of a generative model, from a folder or from the Hub; only safetensors count as weights.

    Args:
        model: folder, or Hub id (`org/name` or `org/name@revision`).
        revision: commit, branch or tag on the Hub; None: what `model` names.
        what: the model in messages.
        default: a repository that fits.
        files: patterns of configs and vocabularies.
        needed: the files of tensors, by the folder of the other ones; it raises WeightsError where that is no
            model of this kind.

    Raises:
        WeightsError: the model could not be found, or a file is missing.
    """
    if expanded_path(model).is_file():
        raise wrong_option("model", model, "a file", "pass a folder or a Hub id", kind=WeightsError)
    if revision is not None and (expanded_path(model).is_dir() or "@" in model):
        where = "has one already" if "@" in model else "is a folder, which has no revisions"
        raise wrong_option("revision", revision, f"--model {model} {where}", "leave it out", verb="")
    pinned = model if revision is None else f"{model}@{revision}"
    path, name, commit = open_foreign(pinned, what, files, (), default=default, tensors=needed)
    tensors = needed(path)
    if missing := [file for file in tensors if not (path / file).is_file()]:
        raise WeightsError(
            f"{what} {name!r} has no {missing[0]} in {path}, and pickled weights are not opened: pass a "
            f"model with safetensors, such as {default} from the Hub"
        )
    configs = [file for file in sorted(path.rglob("*")) if file.is_file() and _matches(file, files)]
    digest = _digest(path, [*configs, *(path / file for file in tensors)])
    return FoundModel(path, f"{name}@{commit}" if commit else name, digest)


def _matches(file: Path, patterns: Iterable[str]) -> bool:
    return any(file.match(pattern) for pattern in patterns)


def _digest(folder: Path, files: Sequence[Path]) -> str:
    content = "".join(f"{file.relative_to(folder).as_posix()} {file_checksum(file)}\n" for file in files)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def refuse_incomplete(what: str, info: dict[str, Any]) -> None:
    """Raise WeightsError for tensors that are missing or misshaped, where a library would draw random ones.

    info: `output_loading_info` of `from_pretrained`.
    """
    for key, found in (("missing_keys", "missing"), ("mismatched_keys", "of another shape")):
        if names := sorted(map(str, info.get(key) or ())):
            raise WeightsError(f"{what}: {len(names):,} tensors are {found}, such as {names[0]}")


@contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """Keep to errors what diffusers and transformers print: bars beside ours, and each truncated caption."""
    loggings: list[Any] = [import_module(f"{library}.utils.logging") for library in libraries]
    before = [(logging, logging.get_verbosity(), logging.is_progress_bar_enabled()) for logging in loggings]
    for logging in loggings:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    try:
        yield
    finally:
        for logging, level, bars in before:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def failure(what: str, error: Exception) -> WeightsError:
    """What a library raised while it opened a model, in a line."""
    if isinstance(error, WeightsError):
        return error
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return WeightsError(f"{what} could not be opened ({reason})")
