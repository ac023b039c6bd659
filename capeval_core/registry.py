"""Metrics and networks by name, and `load`.

Installed packages add metrics through the entry-point group `capeval.metrics`, such as
`mymetric = mypackage.module:MyMetric`: the name is the class's `name`, and the class is a `CaptionMetric`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from itertools import groupby
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar, cast

from capeval_core.errors import ProblemsError, did_you_mean, warn, wrong_option
from capeval_core.project import entry_points_of
from capeval_core.weights.catalogue import listed
from capeval_core.weights.folder import CONFIG, WeightsError, WeightsFolder
from capeval_core.weights.networks import NETWORKS, kind_of

if TYPE_CHECKING:
    from capeval_core.metric import CaptionMetric
    from capeval_core.models.model import CheckedModel

FACTS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "scores" / "papers.toml").read_text("utf-8"))
"""Facts about the built-in metrics and their papers."""
METRICS: dict[str, str] = {}
"""Name and class of every metric of this package."""
JAVA_METRICS: dict[str, str] = {}
"""Name and class of the metrics that need Java, and so have no module, page or card."""
MEDIA_VARIANTS: dict[tuple[str, str], str] = {}
"""Name, medium and class of the metrics that exist for another medium than images, too."""
for _name, _facts in FACTS["metrics"].items():
    if "media" in _facts:
        MEDIA_VARIANTS[_facts["name"], _facts["media"]] = _facts["class"]
    elif "java" in _facts:
        JAVA_METRICS[_name] = _facts["class"]
    else:
        METRICS[_name] = _facts["class"]

Metric = TypeVar("Metric", bound="type[CaptionMetric]")
_GROUP = "capeval.metrics"  # of entry points
_REQUIRED = ("title", "key", "summary", "paper", "range", "ROW")  # which every class of metrics states


def list_metrics() -> list[str]:
    """Names of all metrics: this package's, then those that other installed packages declare."""
    return [*METRICS, *_entry_points()]


def metric_classes() -> dict[str, type[CaptionMetric]]:
    """Every metric's class by name; one of another package that does not load is left out with a warning."""
    classes = {name: metric_class(name) for name in METRICS}
    for name, entry_point in _entry_points().items():
        try:
            classes[name] = _load_entry_point(entry_point)
        except ValueError as error:
            warn(str(error))
    return classes


def every_class() -> list[type[CaptionMetric]]:
    """The class of every metric on every medium."""
    return [*metric_classes().values(), *map(resolve_name, MEDIA_VARIANTS.values())]


def titles_of_parts() -> dict[str, str]:
    """Titles of the parts of scores: `bleu_1` is BLEU-1; metrics are parts of other metrics."""
    titles: dict[str, str] = {}
    for metric in metric_classes().values():
        titles |= {metric.key: metric.title, **metric.part_titles}
    return titles


def media_of(name: str) -> list[str]:
    """The media that `load(name, media=...)` takes; none for a metric on texts alone."""
    variants = [medium for metric, medium in MEDIA_VARIANTS if metric == name]
    return [*metric_class(name).media, *variants]


def metric_class(name: str, media: str | None = None) -> type[CaptionMetric]:
    """The class of a metric, on another medium than its first, too; a ValueError if there is none."""
    if media is not None and media not in media_of(name):
        raise _wrong_media(name, media)
    path = MEDIA_VARIANTS.get((name, media or "")) or METRICS.get(name) or JAVA_METRICS.get(name)
    if path is not None:
        return cast("type[CaptionMetric]", resolve_name(path))
    # After our own, so that no package changes what `pacs` means; and only then: listing them takes a while.
    outside = _entry_points()
    if name in outside:
        return _load_entry_point(outside[name])
    names = [*METRICS, *JAVA_METRICS, *outside]
    # Names of the field, such as "CLIPScore", which is called clips here.
    advice = FACTS["other_names"].get(re.sub(r"[^a-z]", "", str(name).lower()))
    hint = f": {advice}" if advice else did_you_mean(str(name), names)
    raise ValueError(f"unknown metric {name!r}{hint} (known: {', '.join(names)})")


def _wrong_media(name: str, media: str) -> ProblemsError:
    """The error about a medium that a metric does not score."""
    media_of_metric = media_of(name)
    metrics_on_it = [metric for metric, medium in MEDIA_VARIANTS if medium == media]
    hint = did_you_mean(str(media), media_of_metric)
    if not hint and metrics_on_it:
        hint = f"; {' and '.join(metrics_on_it)} have it"
    listed = ", ".join(media_of_metric) or "none, it compares texts alone"
    return wrong_option(
        "media", media, f"{name} does not support this medium{hint} (known: {listed})", sentence=True
    )


def facts(name: str) -> Callable[[Metric], Metric]:
    """Give a metric's class the facts under `metrics.<name>` of `papers.toml`.

    There is what is said of a metric: title, paper, range, weights, advice, published values. The class
    states how it computes: options, rows, what it takes.
    """
    stated = FACTS["metrics"][name]
    paper = FACTS["papers"][stated["paper"]]
    values: dict[str, Any] = {
        "name": stated.get("name", name),
        "title": stated["title"],
        "key": stated["key"],
        "summary": stated["summary"],
        "paper": paper["cite"],
        "bibtex": paper["bibtex"],
        "range": tuple(stated["range"]),
        "relative": stated.get("relative"),
        "network": stated.get("network"),
        "tiny": stated.get("tiny"),
        "part_titles": stated.get("part_titles", {}),
        "advice": stated.get("advice", {}),
        "published": stated.get("published", {}),
        "default_weights": listed(stated["weights"]) if "weights" in stated else None,
    }

    def give(metric: Metric) -> Metric:
        for fact, value in values.items():
            setattr(metric, fact, value)
        return metric

    return give


def tokens_read(name: str) -> int:
    """Number of tokens of a caption that a metric of this package usually reads; 0: all, or unknown."""
    reads = FACTS["metrics"].get(name, {}).get("advice", {}).get("reads", "")  # such as "77 a phrase"
    number, _, _ = reads.partition(" ")
    return int(number) if number.isdigit() else 0


def next_longer_reader(tokens: int) -> tuple[str, int] | None:
    """The metric that reads the next larger number of tokens of a caption, and this number, if any does."""
    longer = []
    for name in METRICS:
        if tokens_read(name) > tokens:
            longer.append((tokens_read(name), name))
    if not longer:
        return None
    number, name = min(longer)
    return name, number


def metric_of(signature: str) -> type[CaptionMetric]:
    """The class of the metric that a signature is of; ValueError where a package is missing."""
    fields = {}
    for field in signature.split("|")[:2]:  # such as "capeval:pacs" and "media:video"
        name, _, value = field.partition(":")
        fields[name] = value
    return metric_class(fields.get("capeval", signature), fields.get("media"))


def current_signature(signature: str) -> str:
    """A signature without the options at their defaults, which earlier ones stated.

    That of a metric whose package is not installed is given back as it is.

    >>> current_signature("capeval:clips|weights:tiny@1|dtype:float32|w:2.5|prompt:''|v:0.1.0")
    "capeval:clips|weights:tiny@1|prompt:''|v:0.1.0"
    """
    try:
        options = metric_of(signature).Options
    except ValueError:
        return signature
    return "|".join(options.without_defaults(signature.split("|")))


def package_of(metric: type[CaptionMetric]) -> str | None:
    """`name@version` of the installed package that declares a metric by an entry point, if one does."""
    if metric.__module__.startswith("capeval_core."):
        return None
    entry = _entry_points().get(metric.name)
    if entry is None or entry.dist is None or not issubclass(metric, entry.load()):
        return None
    return f"{entry.dist.name}@{entry.dist.version}"


def load(name: str, *, media: str | None = None, fetch: bool = False, **options: Any) -> CaptionMetric:
    """Open a metric with its weights.

    Args:
        name: one of `list_metrics()`.
        media: "image" or "video", for metrics on both; None: the metric's first.
        fetch: download whatever is missing first, as `capeval fetch NAME --accept` does: you accept the terms
            of its authors. False: only weights under an open licence are downloaded.
        **options: see `metric_class(name, media).Options`: `weights`, `device`, `dtype`, ...

    Raises:
        ValueError: unknown metric, medium or device, or weights that could not be loaded.
        TypeError: unknown option, or a value of the wrong type.

    >>> metric = load("pacs", weights="tiny")
    >>> metric.signature()
    'capeval:pacs|weights:tiny@...|v:0.1.0'
    """
    class_ = metric_class(name, media)
    # Before `Options.of` says that there is no such option: the user may have forgotten `media`.
    unknown = options.keys() - class_.Options.describe().keys()
    if unknown:
        _refuse_options_of_other_media(name, {option: options[option] for option in sorted(unknown)})
    checked_options = class_.Options.of(name, options)
    if fetch:
        from capeval_core.fetching import fetch_items, plan_of

        fetch_items(plan_of(class_.entries(checked_options)))
    return class_(checked_options)


def _refuse_options_of_other_media(name: str, options: dict[str, Any]) -> None:
    """Refuse options that the metric has on another medium than the one that is opened."""
    for medium in media_of(name):
        names = metric_class(name, medium).Options.describe().keys()
        for option, value in options.items():
            if option in names:
                problem = f"is an option of {name} for {medium}s"
                fix = f"open load({name!r}, media={medium!r})"
                raise wrong_option(option, value, problem, fix, kind=TypeError)


def network(kind: str) -> type[CheckedModel]:
    """The class of a kind of network."""
    return cast("type[CheckedModel]", resolve_name(NETWORKS[kind].class_))


def network_of(folder: WeightsFolder) -> type[CheckedModel]:
    """The class that opens a folder of weights, by the folder's config; WeightsError if it names none."""
    kind = kind_of(folder.config)
    if kind not in NETWORKS:
        hint = f"{did_you_mean(kind, NETWORKS)} (known: {', '.join(NETWORKS)})"
        raise WeightsError(f"weights {folder.name!r}: {CONFIG} has encoder {kind!r}, no network here{hint}")
    return network(kind)


def _entry_points() -> dict[str, EntryPoint]:
    """Metrics of other packages by name; a name with two owners is left out with a warning."""
    try:
        declared = sorted(entry_points_of(_GROUP), key=lambda entry: (entry.name, _package(entry)))
    except Exception as error:  # one damaged installation must not disable every metric
        warn(f"the entry points of installed packages could not be read: {error}")
        return {}
    by_name: dict[str, EntryPoint] = {}
    for name, group in groupby(declared, key=lambda entry: entry.name):
        entries = list(group)
        packages = [_package(entry) for entry in entries]
        if name in METRICS:
            packages.insert(0, "capeval")
        if len(packages) == 1:
            by_name[name] = entries[0]
        else:
            choice = "capeval's is used" if name in METRICS else "none is used"
            warn(f"metric {name!r} is declared by {' and by '.join(packages)}: {choice}; uninstall one")
    return by_name


def _load_entry_point(entry: EntryPoint) -> type[CaptionMetric]:
    declared = f"metric {entry.name!r} ({_GROUP}: {entry.value}) of {_package(entry)}"
    try:
        class_: Any = entry.load()
    except (Exception, SystemExit) as error:  # whatever the other package raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{declared} could not be imported ({reason}): update or uninstall it") from error
    # By name: importing CaptionMetric here would cost every list of metrics its imports.
    if "CaptionMetric" not in {base.__name__ for base in getattr(class_, "__mro__", ())}:
        raise ValueError(f"{declared} is not a subclass of capeval_core.metric.CaptionMetric")
    lacking = [name for name in _REQUIRED if not hasattr(class_, name)]
    lacking += sorted(class_.__abstractmethods__)
    if lacking:
        raise ValueError(f"{declared} lacks {', '.join(lacking)}")
    if class_.name != entry.name:
        raise ValueError(f"{declared} has another name in its class: {class_.name!r}")
    return cast("type[CaptionMetric]", class_)


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def module_path(name: str) -> str:
    """The folder of the `evaluate` module of one of `list_metrics()` in this installation or checkout.

    A ValueError if there is no such metric, or another package declares it, which has no module here.

    >>> import evaluate
    >>> metric = evaluate.load(module_path("pacs"), weights="tiny")
    >>> metric.name
    'pacs'
    """
    package = metric_class(name).__module__.partition(".")[0]
    if name not in METRICS:
        problem = f"{name} has no folder of a module, {package} declares it"
        raise ValueError(f"{problem}: open its evaluate module by capeval_core.module({name!r})")
    return str(shipped("hub_metrics", "metrics") / name)


def shipped(package: str, folder: str) -> Path:
    """A folder that is inside an installed package, and next to the package in a checkout."""
    root = Path(__file__).parent
    installed = root / package
    return installed if installed.is_dir() else root.parent / folder
