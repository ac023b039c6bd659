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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from capeval_core.errors import Problem, setting, wrong_option
from capeval_core.limits import LIMITS
from capeval_core.registry import network
from capeval_core.store import cache_home
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
from capeval_core.weights.download import DownloadError, check_room, download_file, is_address
from capeval_core.weights.folder import (
    OPEN_CLIP_TENSORS,
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
    check_repository,
    compare,
    hold,
    note_files,
    noted_digests,
    read_lock,
    refuse_unknown,
    write_lock,
)

FETCH = "CAPEVAL_FETCH"
"""Environment variable: `1` fetches what is missing when it is opened, `0` nothing; else open licences."""
_PATIENCE = 2.0  # seconds after which a process says that it waits for another one


@dataclass(frozen=True)
class Wishes(Checks):
    """How something is fetched. sources: files or addresses to use, by the name of the file that they stand
    for."""

    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """A row of a plan: weights of the catalogue, a model that is used beside them, or a judged set.

    licence: as its authors state it. original: where it comes from. place: the folder where it lies, None
    where it is not here. target: where it will lie; None: in the cache of huggingface_hub. get: fetches it.
    takes_copies: whether `sources` may name copies of its files.
    """

    title: str
    licence: str | None
    original: str
    files: Sequence[ReleaseFile]
    place: Path | None
    target: Path | None
    get: Callable[[Wishes], Path]
    takes_copies: bool = False

    @property
    def terms(self) -> str:
        """The terms that its authors state, word for word where they restrict something."""
        return terms_of(self.licence, self.original)


def plan_of(entries: Sequence[WeightsEntry]) -> list[Item]:
    """The rows of entries and of the models that they are made from, each once."""
    needed: dict[str, WeightsEntry] = {}
    for entry in entries:
        # A base comes first: the conversion reads its tensors.
        base = entry_of(entry.settings.get("base", ""))
        if base is not None:
            needed[base.repository] = base
        needed[entry.repository] = entry
    return list(map(_item, needed.values()))


def _item(entry: WeightsEntry) -> Item:
    place = _place_of(entry)
    about = (entry.title, entry.licence, entry.original)
    if entry.files:
        get = partial(_fetch_release, entry)
        return Item(*about, entry.files, place, _home(entry), get, takes_copies=True)
    # A repository that is taken as it is counts as one file.
    files = [ReleaseFile(entry.repository, [f"{HUB}{entry.repository}"], entry.size)]
    return Item(*about, files, place, None, partial(_fetch_repository, entry))


def _place_of(entry: WeightsEntry) -> Path | None:
    if entry.files:
        return fetched_folder(entry, Checks().lock_file)
    from huggingface_hub import try_to_load_from_cache

    for name in (OPEN_CLIP_TENSORS, TENSORS):
        tensors = try_to_load_from_cache(entry.repository, name)
        if isinstance(tensors, str):
            return Path(tensors).parent
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
    names = replaceable_names(items)
    unknown = sorted(set(wishes.sources) - set(names))
    if unknown:
        raise wrong_option("from", unknown[0], f"is not a file of this plan ({', '.join(names) or 'none'})")
    return [item.get(wishes) for item in items]


def replaceable_names(items: Sequence[Item]) -> list[str]:
    """The names of files of a plan that a copy can stand for; what the Hub has is taken from there."""
    names: list[str] = []
    for item in items:
        if item.takes_copies:
            names += [file.name for file in item.files]
    return names


# repositories of their authors, as they are


def _fetch_repository(entry: WeightsEntry, wishes: Wishes) -> Path:
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
    file = check_repository(entry, commit, tensors, wishes)
    if place_before is None:
        tell(f"fetched {entry.repository} ({entry.licence}) from {file.address}, {file.noted}")
    return path


# original releases, converted


def fetched_folder(entry: WeightsEntry, lock: Path) -> Path | None:
    """The newest folder of weights that were fetched and converted, if their files have the known digests."""
    digests = _known(entry, lock)
    for folder in sorted(_home(entry).glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True):
        files = read_lock(folder / LOCK)
        # Without a lock a kill may have left half of it; with other digests it is of another version.
        if files and all(digests.get(name, file.sha256) == file.sha256 for name, file in files.items()):
            return folder
    return None


def _home(entry: WeightsEntry) -> Path:
    return cache_home() / "weights" / entry.folder


def _stated(entry: WeightsEntry) -> dict[str, str]:
    """Digests of an entry's files that the catalogue has, by their names in a lock."""
    digests: dict[str, str] = {}
    for file in entry.files:
        if file.sha256 is not None:
            digests[_lock_name(entry, file)] = file.sha256
    return digests


def _known(entry: WeightsEntry, lock: Path) -> dict[str, str]:
    """Digests of an entry's files by their names in a lock; those of the catalogue come first."""
    return noted_digests(lock) | _stated(entry)


def _lock_name(entry: WeightsEntry, file: ReleaseFile) -> str:
    return f"{entry.folder}/{file.name}"


def _fetch_release(entry: WeightsEntry, wishes: Wishes) -> Path:
    names = [_lock_name(entry, file) for file in entry.files]
    refuse_unknown(names, _known(entry, wishes.lock_file), wishes)
    renewed = wishes.update or bool(wishes.sources)
    place = None if renewed else fetched_folder(entry, wishes.lock_file)
    if place is None:
        with _alone(entry):
            place = None if renewed else fetched_folder(entry, wishes.lock_file)  # by the other process
            return place or _convert(entry, wishes)
    _note_folder(place, wishes)
    return place


def _note_folder(place: Path, checks: Checks) -> None:
    """Note the files of converted weights in a lock that does not have them: of a project, or after a kill.

    A lock that cannot be written costs the note, nothing else.
    """
    with suppress(OSError):
        note_files(list(read_lock(place / LOCK).values()), checks)


@contextmanager
def _alone(entry: WeightsEntry) -> Iterator[None]:
    """Keep other processes from fetching the same meanwhile."""
    home = _home(entry)
    try:
        home.mkdir(parents=True, exist_ok=True)
        guard = FileLock(home / ".guard")
        # Whoever waits without a word for a download of minutes looks as if it hung.
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
    # The converted tensors are about as large as the release; refused before minutes of converting.
    size = paths[0].stat().st_size
    check_room(downloads, 0, size)
    if entry.network:
        tell(f"converting {paths[0].name} ...")
    try:
        compare(files, _stated(entry), wishes)
        staging = _converted(entry, paths[0], files[0].address, settings, downloads)
        write_lock(staging / LOCK, files)
        digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
        target = _home(entry) / digest[:16]
        if target.is_dir():
            # File by file: others may be reading the same weights.
            for path in staging.iterdir():
                path.replace(target / path.name)
        else:
            staging.replace(target)
    except (ValueError, KeyError) as error:
        # What was refused is downloaded again: here or on its way it may have been damaged.
        shutil.rmtree(downloads, ignore_errors=True)
        raise WeightsError(f"{entry.title}: {error}") from error
    except OSError as error:
        problem = f"{entry.title} could not be written to {downloads} ({error.strerror or error})"
        fix = "make room, or set CAPEVAL_CACHE to another folder; what is there stays"
        raise DownloadError(f"{problem}: {fix}") from error
    note_files(files, wishes)
    shutil.rmtree(downloads, ignore_errors=True)
    about = f"{size / 1e6:,.0f} MB, licence: {entry.licence or LICENCE_NOT_STATED}"
    tell(f"fetched {files[0].name} ({about}) from {files[0].address}, {files[0].noted}; it lies in {target}")
    return target


def _converted(
    entry: WeightsEntry, checkpoint: Path, address: str, settings: Mapping[str, Any], downloads: Path
) -> Path:
    """A folder of weights of a release, under a name that is replaced the next time if a kill leaves it; data
    of a metric without a network stay as they are."""
    staging = downloads / entry.folder
    shutil.rmtree(staging, ignore_errors=True)
    if not entry.network:
        staging.mkdir(parents=True)
        shutil.copyfile(checkpoint, staging / entry.files[0].name)
        return staging
    encoder = network(entry.network)
    release = encoder.convert(checkpoint, url=address, **settings)
    difference = entry.is_another(encoder.describe(release.config))
    if difference:
        raise ValueError(f"{address} is another model: {difference}")
    encoder(release.config, release.tensors, device="cpu").save_pretrained(staging)
    return staging


def _get(entry: WeightsEntry, file: ReleaseFile, folder: Path, source: str | None) -> tuple[Path, str]:
    """A file of a release, and where it came from."""
    fix = f"download it elsewhere, and run\n    capeval fetch {entry.folder} --from {file.name}"
    if source is None:
        download = download_file(file, folder, fix=fix)
        return download.path, download.address
    if is_address(source):
        path = download_file(file, folder, addresses=[source], fix=fix).path
        # Locks and configs are handed on, and addresses of one's own may hold a password.
        return path, f"a copy at {urlsplit(source).hostname}"
    path = Path(source).expanduser()
    if not path.is_file():
        raise wrong_option("from", source, "is not a file, nor an address of http or https")
    return path, f"a copy, {path.name}"


def tell(line: str) -> None:
    """Print a line about a download on stderr."""
    print(f"capeval: {line}", file=sys.stderr, flush=True)


# defaults


def may_fetch(entry: WeightsEntry) -> bool:
    """True if weights are fetched without being asked for: by `CAPEVAL_FETCH`, else where they are open and
    not huge."""
    wish = os.environ.get(FETCH, "")
    size = entry.size or 0
    for file in entry.files:
        size += file.size or 0
    return wish == "1" or (wish != "0" and is_open(entry.licence) and size <= LIMITS.unasked_bytes)


def open_listed(weights: str | PathLike[str] | WeightsEntry, *, metric: str, tiny: str) -> WeightsFolder:
    """The folder of an entry of the catalogue, or of whatever `open_weights` takes.

    weights: an entry, the short name of one that is fetched (`pacs-clip-vit-b-32`), a folder, a Hub id, or
    `tiny`.
    """
    entry = weights if isinstance(weights, WeightsEntry) else listed_entry(weights)
    if entry is None:
        return open_weights(cast("str", weights), metric=metric, tiny=tiny)
    place = _place_of(entry)
    if place is None and not may_fetch(entry):
        raise _not_here(entry)
    if not entry.files:
        folder = open_weights(entry.repository, metric=metric, tiny=tiny)
        hold(entry.repository, folder.revision, folder.tensor_file)
        return folder
    if place is None:
        place = fetch_items(plan_of([entry]))[-1]
    _note_folder(place, Checks())
    return read_folder(place, entry.folder, metric)


def listed_file(entry: WeightsEntry, option: str) -> Path:
    """The file of an entry of data; an option of its metric names another file."""
    place = _place_of(entry)
    if place is None and not may_fetch(entry):
        metric = entry.users[0]
        tiny = setting(option, "tiny", "pass ")
        problem = f"{entry.title} are not here yet; {terms_of(entry.licence, entry.original)}"
        fix = f"fetch them once with\n    capeval fetch {metric}\nTo try it without them, {tiny}."
        raise WeightsError(Problem("", problem, fix))
    return (place or fetch_items(plan_of([entry]))[-1]) / entry.files[0].name


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
