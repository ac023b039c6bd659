"""`capeval judge`: the tables of the papers, of a data set with human judgements."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capeval_core.commands import common, terminal
from capeval_core.errors import Problems, file_error
from capeval_core.inputs.samples import argument_of
from capeval_core.judgements import tables
from capeval_core.judgements.hub_sets import IMAGES, fetched_set
from capeval_core.judgements.protocols import STATISTICS, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.ratings import RatingOptions
from capeval_core.judgements.scoring import SetScorer, labels_of
from capeval_core.judgements.sets import SETS, SetEntry, find_visuals, load_set, set_entry
from capeval_core.judgements.stored import FORMS, read_scores
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from capeval_core.reports.tables import Table
from capeval_core.weights.catalogue import NAMESPACE

_Metrics = Sequence[tuple[type[CaptionMetric], Any]]
_ENDS = (".md", ".tex", ".csv", "-differences.csv", ".png", "-scores.png")
"""Of the names of the files in the folder of `--out`."""


def run(arguments: list[str]) -> int:
    summaries = {name: entry.summary for name, entry in SETS.items()}
    name, rest = terminal.first_named(arguments, "judge", summaries, others=True)
    entry = set_entry(name)
    flags = _parser(entry).read(rest)
    if not flags.metrics and not flags.scores:
        raise ValueError("nothing to judge: name --metrics, or a file of --scores")
    metrics = _metrics(entry, flags)
    if flags.data is None:
        fetched = fetched_set(entry)
        if fetched is None:
            raise ValueError(f"--data is missing: {entry.advice()}")
        flags.data = str(fetched)
        if flags.visuals is None:
            flags.visuals = fetched / IMAGES
    if flags.out is not None and common.check_folder(flags.out):
        for end in _ENDS:
            terminal.check_output("--out", flags.out / f"{entry.name}{end}")
    settings: dict[str, Any] = {
        name: getattr(flags, name) for name in entry.settings if getattr(flags, name) is not None
    }
    if entry.name == "own":
        settings["options"] = RatingOptions(**common.chosen(flags, RatingOptions))
        settings["visuals"] = flags.visuals
    judged = load_set(entry.name, flags.data, **settings)
    for message in judged.notes:
        terminal.note(message)
    if flags.statistics:
        if not isinstance(judged, RatedSet) or judged.by_annotator:
            raise ValueError(f"--statistics: {entry.title} has no ratings that another statistic could be of")
        judged = judged.with_statistics(flags.statistics)
    _check_metrics(metrics, judged, entry, flags.visuals)
    _check_texts(metrics, judged, flags.data)
    scores: dict[str, list[Scored]] = {}
    taken = {label for class_, _ in metrics for label in labels_of(class_)}
    for text in flags.scores:  # `FILE`, or `LABEL=FILE` for one that holds one metric
        name, equals, rest = text.partition("=")
        name, path = (name, Path(rest)) if equals and not Path(text).exists() else ("", Path(text))
        found = read_scores(path, judged)
        for label, runs in found.items():
            label = name if name and len(found) == 1 else label
            scores[f"{label} ({path.name})" if label in taken or label in scores else label] = runs
    rows = None if flags.out is None else flags.out / "rows" / judged.name  # of a set, not those of another
    visuals: dict[str, Path] = {}
    if flags.visuals is not None and any(class_.media for class_, _ in metrics):
        visuals = find_visuals(flags.visuals, judged.image_ids)
        if missing := len(judged.image_ids) - len(visuals):
            count = f"{missing:,} of {len(judged.image_ids):,} {entry.media}s"
            terminal.complain(f"warning: {count} are not in {flags.visuals}: their captions have no score")
    for class_, options in metrics:  # each is opened when the one before is done
        metric = class_(options)
        with terminal.interruptible(terminal.resuming(rows, "--out FOLDER")):
            scores |= SetScorer(judged, visuals, rows=rows, progress=True).score(metric)
    result = tables.Judged(judged, scores, draws=flags.resamples, level=flags.level, seed=flags.seed)
    tiny = ", ".join(class_.title for class_, options in metrics if options.weights == "tiny")
    note = f"{tiny}: with weights `tiny`; published values are for the published weights"
    shown = tables.judged_table(result, [note] if tiny else [])
    print(f"{entry.title}: {entry.summary}\n")
    print(shown.text(), flush=True)
    if flags.out is not None:
        _write(flags, entry, result, shown)
    return 1 if all(entry.undefined for entry in result.entries) else 0


def _metrics(entry: SetEntry, flags: argparse.Namespace) -> _Metrics:
    metrics = []
    for name in flags.metrics:
        class_ = metric_class(name, entry.media if (name, entry.media) in MEDIA_VARIANTS else None)
        if class_.media and entry.media not in class_.media:
            about = argument_of(class_.media)
            raise ValueError(f"{name} is about {about}, and {entry.title} about {entry.media}s")
        keywords: dict[str, Any] = {"on_error": "nan"}  # a broken image costs its own captions
        if flags.weights is not None and class_.default_weights is not None:
            keywords["weights"] = flags.weights
        metrics.append((class_, common.options_of(class_, keywords, flags.set, flags.metrics)))
    return metrics


def _check_metrics(metrics: _Metrics, judged: JudgedSet, entry: SetEntry, visuals: Path | None) -> None:
    """Refuse metrics that cannot judge this set, before any is opened."""
    for class_, own in metrics:
        if issubclass(class_, Reranker) and not isinstance(judged, PoolSet):
            fault = "chooses among captions, and its scores of different images cannot be compared"
            raise ValueError(f"{class_.name} {fault}: judge it by what it chooses, with nice_pools")
        if class_.needs_references and any(one.items.references is None for one in judged.scorings):
            raise ValueError(f"{class_.name} needs references: put references.json beside judgements.jsonl")
        if class_.media and not own.images_are_ids and visuals is None:
            fault = f"--{entry.media}s is missing: {entry.media}s are needed by {class_.name}"
            raise ValueError(f"{fault}; metrics on texts alone and --scores work without")


def _check_texts(metrics: _Metrics, judged: JudgedSet, data: str) -> None:
    """Refuse empty texts before any metric is opened, of those that do not score them."""
    strict, problems = [class_ for class_, options in metrics if options.empty == "error"], Problems()
    for scoring in judged.scorings:
        items = scoring.items
        images = [f"image {image!r}" for image in items.images]
        references = scoring.references() or [[]] * len(items)
        columns = (items.names or images, images, items.captions, references)
        for name, image, caption, own in zip(*columns, strict=True):
            for what, place, texts in (("caption", name, [caption]), ("reference", image, own)):
                whose = [class_.name for class_ in strict if what == "caption" or class_.needs_references]
                if whose and not all(map(str.strip, texts)):
                    fix = f"write the {what}, or pass {' '.join(f'--set {one}.empty=score' for one in whose)}"
                    problems.add(file_error(data, f"has an empty {what}", fix, index=place))
    problems.raise_if_any()


def _write(flags: argparse.Namespace, entry: SetEntry, result: tables.Judged, shown: Table) -> None:
    now, contests = datetime.now(UTC), tables.contest_table(result)
    lines = [f"- {label}: `{signature}`" for label, signature in result.signatures.items()]
    sections = [shown.markdown(), contests.markdown() if contests.rows else "", "Signatures:\n", *lines]
    dated = f"`capeval judge {entry.name}`, {now:%Y-%m-%d}\n"
    text = "\n".join([dated, *filter(None, sections)]) + "\n"
    written: list[Any] = [text, shown.latex(), tables.long_table(result), contests.csv()]
    try:
        written += [tables.draw_agreement(result), tables.draw_scores(result)]
    except ModuleNotFoundError as error:  # the numbers took long, and are there
        warnings.warn(f"there are no charts: {error}", stacklevel=2)
    ends = zip(_ENDS, written, strict=False)
    files = {f"{entry.name}{end}": content for end, content in ends if content is not None}
    # Other metrics have no repository that results could stand in, and one's own set may not be on the Hub.
    local = Path(flags.data).exists()
    dataset = f"{NAMESPACE}/{entry.name.replace('_', '-')}" if local else flags.data
    dataset, _, revision = dataset.partition("@")
    about = {"dataset_id": dataset, "date": now.isoformat(timespec="seconds")}
    about |= {"dataset_revision": revision} if revision else {}
    known = entry.name != "own" or not local
    of_weights = [label for label, text in result.signatures.items() if known and "|weights:" in text]
    for label in of_weights:
        words = "".join(c if c.isalnum() else " " for c in label.lower()).split()
        name = f"eval_results/{'-'.join(words)}/.eval_results/{entry.name}.yaml"
        files[name] = tables.eval_results(result, label, **about)
    more = ", and .eval_results for the weights" if of_weights else ""
    summary = f"\n{flags.out}: {', '.join(name for name in files if '/' not in name)}{more}"
    for name, content in files.items():
        (flags.out / name).parent.mkdir(parents=True, exist_ok=True)
        common.write("--out", flags.out / name, content)
    print(summary)


def _parser(entry: SetEntry) -> terminal.Parser:
    words = {**entry._asdict(), "forms": FORMS, "of": "of ratings, of ", "known": ",".join(STATISTICS)}
    words |= {"source": f"\nSource: {entry.source}." if entry.source else "", "default": ""}
    options = [RatingOptions] if entry.name == "own" else []
    words["data"] = "the set, or a folder of sets; or a Hub data set's id (default: the fetched one)"
    if entry.name == "own":
        words["data"] = "the table of ratings, or its folder; or a Hub data set's id"
    parser = terminal.parser_of(f"judge {entry.name}", "judge SET", "statistics", options=options, **words)
    for setting, values in entry.settings.items():
        text = f"{' or '.join(values)} (default: {values[0]})"
        terminal.flag(parser.group("statistics"), f"--{setting} NAME", text, choices=values)
    return parser
