"""`capeval verify`: are these the published weights, and do the published numbers come out?"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import Any

from capeval_core.commands.common import options_of, write
from capeval_core.commands.fetch import accepted
from capeval_core.commands.terminal import complain, first_named, parser_of, summary
from capeval_core.fetching import Item, closed_items, fetch_items, plan_of
from capeval_core.judgements.fetching import example_item
from capeval_core.judgements.verification import Check, example_of, verify
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class, metric_classes
from capeval_core.weights.folder import WeightsError


def run(arguments: list[str]) -> int:
    titles = {name: metric.title for name, metric in metric_classes().items()}
    metric_name, flag_arguments = first_named(arguments, "verify", titles, open_ended=True)
    class_ = metric_class(metric_name)
    flags = parser_of(f"verify {class_.name}", "verify METRIC").read(flag_arguments)
    for flag, folder in (("--data", flags.data), ("--images", flags.images)):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{flag} {folder}: there is no such folder")
    settings = {}
    for name in ("weights", "device"):
        if getattr(flags, name) is not None:
            settings[name] = getattr(flags, name)
    options = options_of(class_, settings)
    items = plan_of(class_.entries(options))
    examples = _examples(class_, flags)
    agreed = flags.accept
    # Asked once for both, but the photographs alone are no reason to ask: they are one check of several.
    if not agreed and closed_items(items):
        agreed = accepted([*items, *examples])
        if not agreed:
            return 2
    try:
        fetch_items(items)
        metric = class_(options)
    except WeightsError as error:
        complain(f"{class_.title} cannot be verified, its weights are not at hand or not whole:\n{error}")
        return 1
    if agreed or not closed_items(examples):
        _fetch_examples(examples)
    print(f"{class_.title}, {metric.signature()}\n", flush=True)
    # What papers print is of the catalogue's weights, whatever folder they lie in, or of none at all.
    of_papers = class_.default_weights is None or metric.folder.entry == class_.default_weights
    checks = []
    # Each is printed when it is done: the table of a judged set may take hours.
    for check in verify(metric, flags.data, flags.images, published_weights=of_papers):
        checks.append(check)
        summary([check.verdict.ljust(11), check.what, check.found])
    count = Counter(check.verdict for check in checks)
    print(f"\n{count['ok']} ok, {count['FAIL']} failed, {count['not checked']} not checked", flush=True)
    write("--json", flags.json, flags.json and _content(metric, checks))
    # That nothing failed is not that anything is right.
    if count.keys() == {"not checked"}:
        complain("nothing was checked: name what the lines above ask for")
        return 2
    return 1 if count["FAIL"] else 0


def _examples(class_: type[CaptionMetric], flags: Namespace) -> list[Item]:
    """The photographs that are needed: those of the published weights, where no folder has them."""
    name = example_of(class_)
    needed = name is not None and flags.weights is None and flags.data is None
    return [example_item(name)] if name is not None and needed else []


def _fetch_examples(items: list[Item]) -> None:
    """Fetch photographs; without them one check is left out, and the others go on."""
    missing = [item for item in items if item.place is None]
    try:
        fetch_items(missing)
    except (WeightsError, OSError) as error:
        complain(f"note: {error}")


def _content(metric: CaptionMetric, checks: list[Check]) -> dict[str, Any]:
    """The content of --json: the signature, the digest of the weights, and every check."""
    digest = metric.folder.checksum if metric.default_weights is not None else None
    about = {"metric": metric.name, "title": metric.title, "signature": metric.signature(), "sha256": digest}
    return {**about, "checks": [check._asdict() for check in checks]}
