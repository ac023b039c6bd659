"""`capeval verify`: are these the published weights, and do the published numbers come out?"""

from __future__ import annotations

from collections import Counter

from capeval_core.commands.common import options_of
from capeval_core.commands.terminal import complain, first_named, parser_of, summary
from capeval_core.judgements.verification import verify
from capeval_core.registry import metric_class, metric_classes
from capeval_core.weights.folder import WeightsError


def run(arguments: list[str]) -> int:
    titles = {name: metric.title for name, metric in metric_classes().items()}
    name, rest = first_named(arguments, "verify", titles, others=True)
    class_ = metric_class(name)
    flags = parser_of(f"verify {class_.name}", "verify METRIC").read(rest)
    for name, folder in (("--data", flags.data), ("--images", flags.images)):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{name} {folder}: there is no such folder")
    given = {name: getattr(flags, name) for name in ("weights", "device")}
    options = options_of(class_, {name: value for name, value in given.items() if value is not None})
    try:
        metric = class_(options)
    except WeightsError as error:
        complain(f"{class_.title} cannot be verified, its weights are not at hand or not whole:\n{error}")
        return 1
    print(f"{class_.title}, {metric.signature()}\n", flush=True)
    # No weights, or those of the catalogue under their own name: what papers print is of these.
    entry = metric.folder.entry if class_.default_weights is not None else None
    of_papers = class_.default_weights is None or (entry is not None and entry == class_.default_weights)
    count: Counter[str] = Counter()
    for check in verify(metric, flags.data, flags.images, published_weights=of_papers):
        count[check.verdict] += 1
        summary([check.verdict.ljust(11), check.what, check.found])
    print(f"\n{count['ok']} ok, {count['FAIL']} failed, {count['not checked']} not checked", flush=True)
    if count.keys() == {"not checked"}:
        complain("nothing was checked: name what the lines above ask for")
        return 2
    return 1 if count["FAIL"] else 0
