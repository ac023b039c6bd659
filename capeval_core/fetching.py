"""Weights from their authors' own addresses: planned, downloaded, converted once, and opened by name.

Converted weights lie in the cache, in a folder that is named by the digest of what they were made from, with
a `capeval.lock` of these files. Nothing is hosted again, and no default comes from a namespace whose files
the catalogue has no digest of.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from capeval_core.errors import Problem, setting, wrong_option
from capeval_core.kept import cache_home
from capeval_core.limits import LIMITS
from capeval_core.registry import network
from capeval_core.weights.catalogue import (
    LICENCE_NOT_STATED,
    ReleaseFile,
    WeightsEntry,
    entry_named,
    entry_of,
    is_open,
    part_of,
    restriction_of,
)
from capeval_core.weights.download import DownloadError, check_room, download_file
from capeval_core.weights.folder import (
    TENSORS,
    WeightsError,
    WeightsFolder,
    open_foreign,
    open_weights,
    read_folder,
    sha256_of,
)
from capeval_core.weights.lock import (
    HUB,
    LOCK,
    Checks,
    LockedFile,
    agrees,
    compare,
    compare_and_note,
    hold,
    lock_path,
    locked_repository,
    note_files,
    read_lock,
    refuse_unknown,
    write_lock,
)

FETCH = "CAPEVAL_FETCH"
"""Environment variable: `1` fetches what is missing when it is opened, `0` nothing; else open licences."""
_PATIENCE = 2.0  # seconds after which a process says that it waits for another one


@dataclass(frozen=True)
class Wishes(Checks):
    """The settings of a download. sources: files or addresses to use instead, by the name of a file."""

    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """A row of a plan: weights of the catalogue, a model that is used with them, or a judged set.

    licence: as its authors state it. original: its address. place: its folder, None if it is not here.
    target: its folder once it is fetched; None: in the cache of huggingface_hub. get: fetches it.
    """

    title: str
    licence: str | None
    original: str
    files: Sequence[ReleaseFile]
    place: Path | None
    target: Path | None
    get: Callable[[Wishes], Path]

    @property
    def terms(self) -> str:
        """The licence as its authors state it, word for word where it restricts something."""
        return terms_of(self.licence, self.original)


def plan_of(entries: Sequence[WeightsEntry]) -> list[Item]:
    """The rows of entries and of the models that they are made from, each once."""
    needed: dict[str, WeightsEntry] = {}
    for entry in entries:
        base = entry_of(entry.settings.get("base", ""))
        if base is not None:
            needed[base.repository] = base
        needed[entry.repository] = entry
    return [_item(entry) for entry in needed.values()]


def _item(entry: WeightsEntry) -> Item:
    """The row of an entry."""

    def get(wishes: Wishes) -> Path:
        return _fetch_release(entry, wishes) if entry.files else _fetch_repository(entry, wishes)

    # A repository that is taken as it is counts as one file.
    files = entry.files or [ReleaseFile(entry.repository, [f"{HUB}{entry.repository}"])]
    target = _home(entry) if entry.files else None
    return Item(entry.title, entry.licence, entry.original, files, _place_of(entry), target, get)


def _place_of(entry: WeightsEntry) -> Path | None:
    """The folder of an entry's weights, None if they are not here."""
    if entry.files:
        return fetched_folder(entry)
    from huggingface_hub import try_to_load_from_cache

    for name in ("open_clip_model.safetensors", TENSORS):
        cached = try_to_load_from_cache(entry.repository, name)
        if isinstance(cached, str):  # else None, or a mark that the repository has no such file
            return Path(cached).parent
    return None


def closed_items(items: Sequence[Item]) -> list[Item]:
    """Rows that are not here yet, under a licence that is not open."""
    return [item for item in items if item.place is None and not is_open(item.licence)]


def refuse_closed(items: Sequence[Item], how: str) -> None:
    """Refuse what is not here yet under a licence that is not open; `how` says how it is accepted."""
    lines = [f"  {item.title}: {item.terms}" for item in closed_items(items)]
    if lines:
        raise WeightsError("\n".join(["this is not under an open licence:", *lines, how]))


def terms_of(licence: str | None, original: str) -> str:
    """The terms of a licence, word for word where it restricts something."""
    if licence is None:
        return f"no licence is stated at {original}"
    terms = restriction_of(licence)
    return f'{licence}, "{terms}"' if terms else licence


def fetch_items(items: Sequence[Item], wishes: Wishes = Wishes()) -> list[Path]:
    """The folders of a plan's rows, in order; what is not here is downloaded, converted and noted."""
    names: list[str] = []
    for item in items:
        names += [file.name for file in item.files]
    unknown = sorted(set(wishes.sources) - set(names))
    if unknown:
        raise wrong_option("from", unknown[0], f"is not a file of this plan ({', '.join(names) or 'none'})")
    return [item.get(wishes) for item in items]


# repositories of their authors, as they are


def _fetch_repository(entry: WeightsEntry, wishes: Wishes) -> Path:
    """The folder of a repository at a commit, downloaded if it is not here, its digest compared or noted."""
    place_before = _place_of(entry)
    if part_of(entry.repository):
        patterns = ["*.json", "*.model"]
        path, _, commit = open_foreign(
            entry.repository, entry.title, patterns, [[TENSORS]], default=entry.repository
        )
        tensors = path / TENSORS
    else:
        folder = open_weights(entry.repository, metric=(*entry.metrics, *entry.users, "")[0], tiny="")
        path = folder.path
        commit = folder.revision
        tensors = folder.tensor_file
    file = locked_repository(entry.repository, commit, tensors)
    compare_and_note([file], wishes)
    if place_before is None:
        tell(f"fetched {entry.repository} ({entry.licence}) from {file.address}, {file.noted}")
    return path


# original releases, converted


def fetched_folder(entry: WeightsEntry, lock: Path | None = None) -> Path | None:
    """The folder of weights that were fetched and converted, if their files have the known digests."""
    digests = _digests(entry, lock or lock_path())
    newest_first = sorted(_home(entry).glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in newest_first:
        files = read_lock(folder / LOCK)
        if files and agrees(files, digests):
            return folder
    return None


def _home(entry: WeightsEntry) -> Path:
    return cache_home() / "weights" / entry.folder


def _digests(entry: WeightsEntry, lock: Path) -> dict[str, str]:
    """Digests of an entry's files by their names in a lock; the catalogue's come before noted ones."""
    digests = {name: file.sha256 for name, file in read_lock(lock).items()}
    for file in entry.files:
        if file.sha256:
            digests[_lock_name(entry, file)] = file.sha256
    return digests


def _lock_name(entry: WeightsEntry, file: ReleaseFile) -> str:
    return f"{entry.folder}/{file.name}"


def _fetch_release(entry: WeightsEntry, wishes: Wishes) -> Path:
    """The folder of a converted release, made by one process at a time if it is not here."""
    renewed = wishes.update or bool(wishes.sources)
    place = fetched_folder(entry, wishes.lock_file)
    if place is not None and not renewed:  # a cache that cannot be written serves, too
        return place
    with _alone(entry):
        place = fetched_folder(entry, wishes.lock_file)
        if place is not None and not renewed:
            return place
        names = [_lock_name(entry, file) for file in entry.files]
        refuse_unknown(names, _digests(entry, wishes.lock_file), wishes)
        return _convert(entry, wishes)


@contextmanager
def _alone(entry: WeightsEntry) -> Iterator[None]:
    """Keep other processes from fetching the same meanwhile."""
    home = _home(entry)
    try:
        home.mkdir(parents=True, exist_ok=True)
        guard = FileLock(home / ".guard")
        try:
            guard.acquire(timeout=_PATIENCE)
        except Timeout:
            tell(f"another process is fetching {entry.folder}: waiting for it")
            guard.acquire()
    except OSError as error:
        problem = f"{home} cannot be written ({error.strerror or error})"
        raise DownloadError(f"{problem}: set CAPEVAL_CACHE to a folder that can") from error
    try:
        yield
    finally:
        guard.release()


def _convert(entry: WeightsEntry, wishes: Wishes) -> Path:
    """Download the files of a release, compare their digests, convert them, and move the result in place."""
    downloads = _home(entry) / ".downloads"
    settings: dict[str, Any] = dict(entry.settings)
    base = entry_of(settings.get("base", ""))
    if base is not None:
        settings["base"] = f"{base.repository}@{_fetch_repository(base, wishes).name}"
    files = []
    paths = []
    for file in entry.files:
        path, address = _get(entry, file, downloads, wishes.sources.get(file.name))
        paths.append(path)
        files.append(LockedFile(_lock_name(entry, file), address, sha256_of(path)))
        if file.setting is not None:
            settings[file.setting] = str(path)
    compare(files, _digests(entry, wishes.lock_file), wishes)
    digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
    target = _home(entry) / digest[:16]
    check_room(downloads, 0, paths[0].stat().st_size)
    tell(f"converting {paths[0].name} ...")
    encoder = network(entry.network)
    try:
        release = encoder.convert(paths[0], url=files[0].address, **settings)
        difference = entry.is_another(encoder.describe(release.config))
        if difference:
            raise ValueError(f"{files[0].address} is another model: {difference}")
        # A kill leaves the folder under this name, which is no weights' and is replaced the next time.
        staging = downloads / entry.folder
        shutil.rmtree(staging, ignore_errors=True)
        encoder(release.config, release.tensors, device="cpu").save_pretrained(staging)
    except (ValueError, KeyError) as error:
        if paths[0].parent == downloads:
            paths[0].unlink(missing_ok=True)  # the next time another one may come
        raise WeightsError(f"{entry.title}: {error}") from error
    except OSError as error:
        problem = f"{entry.title} could not be written to {downloads} ({error.strerror or error})"
        fix = "make room, or set CAPEVAL_CACHE to another folder; what is there stays"
        raise DownloadError(f"{problem}: {fix}") from error
    write_lock(staging / LOCK, files)
    shutil.rmtree(target, ignore_errors=True)
    staging.replace(target)
    note_files(wishes.lock_file, files, forget=[file.name for file in files] if wishes.update else ())
    shutil.rmtree(downloads, ignore_errors=True)
    size = paths[0].stat().st_size if paths[0].is_file() else release.config["source"]["size"]
    about = f"{size / 1e6:,.0f} MB, licence: {entry.licence or LICENCE_NOT_STATED}"
    tell(f"fetched {files[0].name} ({about}) from {files[0].address}, {files[0].noted}; it lies in {target}")
    return target


def _get(entry: WeightsEntry, file: ReleaseFile, folder: Path, source: str | None) -> tuple[Path, str]:
    """A file of a release, and where it came from."""
    fix = f"download it elsewhere, and run\n    capeval fetch {entry.folder} --from {file.name}"
    if source is None:
        download = download_file(file, folder, fix=fix)
        return download.path, download.address
    if urlsplit(source).scheme in ("http", "https"):
        download = download_file(file, folder, addresses=[source], fix=fix)
        return download.path, download.address
    path = Path(source).expanduser()
    if not path.is_file():
        raise wrong_option("from", source, "is not a file, nor an address of http or https")
    return path, f"a copy, {path.name}"


def tell(line: str) -> None:
    """Print a line about a download on stderr."""
    print(f"capeval: {line}", file=sys.stderr, flush=True)


# defaults


def may_fetch(entry: WeightsEntry) -> bool:
    """Return whether weights are fetched unasked: as `CAPEVAL_FETCH` says, else if open and not huge."""
    wish = os.environ.get(FETCH, "")
    size = sum(file.size or 0 for file in entry.files)
    return wish == "1" or (wish != "0" and is_open(entry.licence) and size <= LIMITS.unasked_bytes)


def open_listed(weights: str | PathLike[str] | WeightsEntry, *, metric: str, tiny: str) -> WeightsFolder:
    """The folder of an entry of the catalogue, or of whatever `open_weights` takes.

    weights: an entry, the short name of one that is fetched (`pacs-clip-vit-b-32`), a folder, a Hub id, or
    `tiny`.
    """
    entry = weights if isinstance(weights, WeightsEntry) else listed_entry(weights)
    if entry is None:
        return open_weights(cast("str", weights), metric=metric, tiny=tiny)
    if _place_of(entry) is None and not may_fetch(entry):
        raise _not_here(entry)
    if not entry.files:
        folder = open_weights(entry.repository, metric=metric, tiny=tiny)
        hold(entry.repository, folder.revision, folder.tensor_file)
        return folder
    place = _place_of(entry) or fetch_items(plan_of([entry]))[-1]
    return read_folder(place, entry.folder, metric)


def listed_entry(weights: str | PathLike[str]) -> WeightsEntry | None:
    """The entry that a short name means, None where a file or folder has this name."""
    entry = entry_named(os.fspath(weights))
    return None if entry is None or Path(weights).exists() else entry


def _not_here(entry: WeightsEntry) -> WeightsError:
    tiny = setting("weights", "tiny", "pass ")
    lines = [
        f"fetch them once with\n    capeval fetch {entry.folder}",
        f"To try the library without real weights, {tiny} (trained on synthetic scenes only).",
    ]
    problem = f"weights {entry.name!r} ({entry.title}) are not here yet"
    terms = terms_of(entry.licence, entry.original)
    return WeightsError(Problem("", f"{problem}; {terms}", "\n".join(lines)))
