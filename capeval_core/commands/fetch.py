"""`capeval fetch`: what metrics, weights and judged sets need, from their authors' own addresses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from capeval_core.commands.terminal import complain, parser_of
from capeval_core.errors import wrong_option
from capeval_core.fetching import Item, Wishes, closed_items, fetch_items, refuse_closed, replaceable_names
from capeval_core.judgements.fetching import metrics_with_weights, plan, sets_on_the_hub
from capeval_core.weights.download import DownloadError, is_address


def run(arguments: list[str]) -> int:
    metrics = ", ".join(metrics_with_weights())
    sets = ", ".join(sets_on_the_hub())
    flags = parser_of("fetch", metrics=metrics, sets=sets).read(arguments)
    items = plan(flags.names, only=flags.only)
    sources = _sources(items, flags.sources)
    for item in items:
        print("\n".join(_lines(item)), flush=True)
    if not items:
        print(f"{', '.join(flags.names)}: nothing is needed")
    if flags.dry_run:
        return 0
    if not flags.accept and not accepted(items):  # before anything is fetched, and for all items together
        return 2
    wishes = Wishes(sources=sources, locked=flags.locked, update=flags.update, lock=flags.lock)
    try:
        folders = fetch_items(items, wishes)
    except DownloadError as error:
        complain(str(error))
        return 1
    for item, folder in zip(items, folders, strict=True):
        print(f"{item.title}: {folder}")
    return 0


def _lines(item: Item) -> list[str]:
    """A row of the plan: what it is, its files with their addresses, and where it lies."""
    lines = [f"{item.title}; {item.terms}"]
    for file in item.files:
        size = "size not stated" if file.size is None else f"{file.size / 1e6:,.0f} MB"
        address = file.addresses[0] if file.addresses else "no address, give it by --from"
        lines.append(f"  {file.name}, {size}: {address}")
    if item.place is not None:
        return [*lines, f"  is here: {item.place}"]
    return [*lines, f"  goes to {item.target or 'the cache of huggingface_hub'}"]


def accepted(items: Sequence[Item]) -> bool:
    """True if terms that are not open are accepted: asked once on a terminal, refused elsewhere."""
    closed = closed_items(items)
    if not closed:
        return True
    # A script cannot accept terms by an answer that happens to be in its input.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        refuse_closed(items, "pass --accept, if you accept these terms")
    titles = ", ".join(item.title for item in closed)
    print(f"Do you accept these terms of {titles}? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    if answer in ("y", "yes"):
        return True
    complain("nothing was fetched")
    return False


def _sources(items: Sequence[Item], sources: Sequence[str]) -> dict[str, str]:
    """Files and addresses of --from, by the name of the file that each stands for."""
    names = replaceable_names(items)
    missing_names = []
    for item in items:
        if item.takes_copies and item.place is None:
            missing_names.append(item.files[0].name)
    by_name = {}
    for source in sources:
        path = urlsplit(source).path if is_address(source) else source  # without a `?download=1`
        name = Path(path).name
        if name in names:
            by_name[name] = source
            continue
        # It may have another name, where it can stand for one file only.
        if len(missing_names) != 1:
            fix = f"it is none of {', '.join(names)}: give it one of these names"
            if not names:
                fix = "all of this comes from the Hub as it is: copy the cache of huggingface_hub instead"
            raise wrong_option("from", source, "cannot be told what it stands for", fix)
        by_name[missing_names[0]] = source
    return by_name
