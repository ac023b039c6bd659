"""`capeval fetch`: what metrics, weights and judged sets need, from their authors' own addresses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from capeval_core.commands.terminal import complain, parser_of
from capeval_core.errors import wrong_option
from capeval_core.fetching import Item, Wishes, closed_items, fetch_items, refuse_closed
from capeval_core.judgements.fetching import metrics_with_weights, plan, sets_on_the_hub
from capeval_core.weights.download import DownloadError


def run(arguments: list[str]) -> int:
    known = {"metrics": ", ".join(metrics_with_weights()), "sets": ", ".join(sets_on_the_hub())}
    flags = parser_of("fetch", **known).read(arguments)
    items = plan(flags.names, only=flags.only)
    sources = _sources(items, flags.sources)
    for item in items:
        print("\n".join(_lines(item)), flush=True)
    if not items:
        print(f"{', '.join(flags.names)}: nothing is needed")
    if flags.dry_run:
        return 0
    if not flags.accept and not accepted(items):
        return 2
    checks = {name: getattr(flags, name) for name in ("locked", "update", "lock")}
    try:
        folders = fetch_items(items, Wishes(sources=sources, **checks))
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
        size = f", {file.size / 1e6:,.0f} MB" if file.size else ""
        address = file.addresses[0] if file.addresses else "no address, give it by --from"
        lines.append(f"  {file.name}{size}: {address}")
    if item.place is not None:
        return [*lines, f"  is here: {item.place}"]
    return [*lines, f"  goes to {item.target or 'the cache of huggingface_hub'}"]


def accepted(items: Sequence[Item]) -> bool:
    """Whether terms that are not open are accepted: asked once on a terminal, refused elsewhere."""
    if not closed_items(items):
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        refuse_closed(items, "pass --accept, if you accept these terms")
    titles = ", ".join(item.title for item in closed_items(items))
    print(f"Do you accept these terms of {titles}? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    if answer in ("y", "yes"):
        return True
    complain("nothing was fetched")
    return False


def _sources(items: Sequence[Item], given: Sequence[str]) -> dict[str, str]:
    """Files and addresses of --from, by the name of the file that each stands for."""
    wanted = [file.name for item in items for file in item.files]
    missing = [item.files[0].name for item in items if item.place is None and item.files[0].name in wanted]
    sources = {}
    for source in given:
        name = Path(urlsplit(source).path).name
        if name not in wanted:
            # It may have another name, where it can stand for one file only.
            if len(missing) != 1:
                fix = f"it is none of {', '.join(wanted)}: give it one of these names"
                raise wrong_option("from", source, "cannot be told what it stands for", fix)
            name = missing[0]
        sources[name] = source
    return sources
