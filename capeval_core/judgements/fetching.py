"""Files that metrics, weights and judged sets need, by name: a plan first, then their authors' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from capeval_core.errors import did_you_mean
from capeval_core.fetching import Item, Wishes, fetch_items, plan_of, refuse_closed
from capeval_core.judgements.hub_sets import set_item
from capeval_core.judgements.sets import SETS
from capeval_core.judgements.tables import PUBLISHED
from capeval_core.judgements.verification import example_place
from capeval_core.registry import METRICS, list_metrics, metric_class
from capeval_core.store import PARTIAL, whole_folder
from capeval_core.weights.catalogue import DATA, PARTS, WEIGHTS, ReleaseFile, WeightsEntry
from capeval_core.weights.download import DownloadError, download_file
from capeval_core.weights.folder import sha256_of


def metrics_with_weights() -> list[str]:
    """The metrics that something is fetched for."""
    names = []
    for name in METRICS:
        class_ = metric_class(name)
        if class_.entries(class_.Options()):
            names.append(class_.name)
    return names


def sets_on_the_hub() -> list[str]:
    """The judged sets that are fetched."""
    return [name for name, entry in SETS.items() if entry.hub]


def plan(names: Sequence[str], *, only: str | Sequence[str] | None = None) -> list[Item]:
    """The rows of a plan: what the names need, each once, and what of it is here.

    Args:
        names: metrics, weights (their short names or Hub ids) and judged sets.
        only: members of ECO's ensemble, instead of the paper's.

    Raises:
        ValueError: a name is unknown, or nothing of that name can be fetched.
    """
    entries: list[WeightsEntry] = []
    sets = []
    for name in names:
        entry = _entry(name)
        judged_set = SETS.get(name.lower().replace("-", "_"))
        # A metric's name first: its weights may be in a folder of the same name, and it may need more.
        if name in list_metrics():
            entries += _entries_of(name, only)
        elif entry is not None:
            entries.append(entry)
        elif judged_set is not None and judged_set.hub:
            sets.append(set_item(judged_set))
        elif judged_set is not None:
            raise ValueError(f"{name}: {judged_set.advice()}")
        else:
            names_here = [*metrics_with_weights(), *sets_on_the_hub()]
            for entry in (*WEIGHTS, *PARTS, *DATA):
                names_here.append(entry.folder)
            raise ValueError(
                f"unknown name {name!r}{did_you_mean(name, names_here)} (known: {', '.join(names_here)})"
            )
    return [*plan_of(entries), *sets]


def _entries_of(name: str, only: str | Sequence[str] | None) -> list[WeightsEntry]:
    class_ = metric_class(name)
    keywords: dict[str, Any] = {} if only is None else {"members": only}
    if only is not None and "members" not in class_.Options.describe():
        raise ValueError(f"only: {name} has no members, it is for eco")
    return class_.entries(class_.Options(**keywords))


def _entry(name: str) -> WeightsEntry | None:
    for entry in (*WEIGHTS, *PARTS, *DATA):
        if name in (entry.folder, entry.repository, entry.member):
            return entry
    return None


def example_item(name: str) -> Item:
    """The row of a plan of two photographs with captions, which lie in the repository of a paper."""
    example = PUBLISHED["example_dogs"][name]
    address = example["address"]
    files = []
    for path, sha256 in example["files"].items():
        files.append(ReleaseFile(Path(path).name, [f"{address}/{path}"], sha256=sha256))
    folder = example_place(name)

    def get(wishes: Wishes) -> Path:
        with whole_folder(folder) as partial:
            for file in files:
                path = download_file(file, partial).path
                # The published values are of these very photographs and captions.
                if sha256_of(path) != file.sha256:
                    problem = f"{file.addresses[0]} has another digest than was published of it"
                    raise DownloadError(f"{problem}: report it, and name a copy by --data")
            for state in partial.glob(f"*{PARTIAL}*"):  # of interrupted downloads, which were resumed
                state.unlink()
        return folder

    title = f"two photographs of {example['source']} repository"
    place = folder if folder.is_dir() else None
    return Item(title, example.get("licence"), address, files, place, folder, get)


def fetch(
    *wanted: str,
    accept: bool = False,
    sources: Mapping[str, str | PathLike[str]] | None = None,
    only: str | Sequence[str] | None = None,
    locked: bool = False,
    update: bool = False,
    lock: str | PathLike[str] | None = None,
) -> list[Path]:
    """Download what metrics, weights or judged sets need from their authors, once, and convert it.

    Args:
        *wanted: names of metrics (`pacs`), weights (`pacs-openclip-vit-l-14`) or judged sets (`composite`).
        accept: whether you accept the terms of what has no open licence.
        sources: files or addresses to use, by the name of the file that they stand for.
        only: members of ECO's ensemble, instead of the paper's.
        locked: take only files whose digest is known.
        update: take files as they are now, and note their digests anew.
        lock: the file of digests; None: `capeval.lock` here, else the one in the cache.

    Returns:
        A folder for each row of the plan; those of a metric begin with its weights.

    Raises:
        ValueError: an unknown name; a licence that is not accepted; a file that could not be downloaded, has
            another digest than is known of it, or is another model.

    >>> import capeval_core
    >>> capeval_core.fetch("bleu")  # which needs nothing
    []
    """
    items = plan(wanted, only=only)
    # Before the first byte: a refusal after hours of downloads would come too late.
    if not accept:
        refuse_closed(items, "pass accept=True, if you accept these terms")
    copies = {name: fspath(source) for name, source in (sources or {}).items()}
    wishes = Wishes(sources=copies, locked=locked, update=update, lock=None if lock is None else Path(lock))
    return fetch_items(items, wishes)
