"""`capeval judge`: the tables of the papers, of a data set with human judgements."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capeval_core.commands import common, terminal
from capeval_core.errors import Problems, file_error
from capeval_core.inputs.samples import argument_of
from capeval_core.judgements import tables
from capeval_core.judgements.external_scores import FORMS, read_scores
from capeval_core.judgements.hub_sets import IMAGES, fetched_set
from capeval_core.judgements.protocols import STATISTICS, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.ratings import RatingOptions
from capeval_core.judgements.scoring import SetScorer, labels_of
from capeval_core.judgements.sets import SetEntry, find_visuals, judged_sets, load_set, set_entry
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from capeval_core.reports.tables import Table
from capeval_core.weights.catalogue import NAMESPACE

_Metrics = Sequence[tuple[type[CaptionMetric], Any]]
_ENDS = (".md", ".tex", ".csv", "-differences.csv", ".png", "-scores.png")
"""Endings of the names of the files in the folder of `--out`."""


def run(arguments: list[str]) -> int:
    summaries = {name: entry.summary for name, entry in judged_sets().items()}
    name, arguments_left = terminal.first_named(arguments, "judge", summaries, open_ended=True)
    entry = set_entry(name)
    flags = _parser(entry).read(arguments_left)
    if not flags.metrics and not flags.scores:
        raise ValueError("nothing to judge: name --metrics, or a file of --scores")
    metrics = _metrics(entry, flags)
    if flags.data is None:
        # What `capeval fetch` brought needs no flag.
        fetched = fetched_set(entry)
        if fetched is None:
            raise ValueError(f"--data is missing: {entry.advice()}")
        flags.data = str(fetched)
        if flags.visuals is None:
            flags.visuals = fetched / IMAGES
    if flags.out is not None and common.check_folder(flags.out):
        for end in _ENDS:
            terminal.check_output("--out", flags.out / f"{entry.name}{end}")
    judged = _load(entry, flags)
    _check_metrics(metrics, judged, entry, flags.visuals)
    _check_texts(metrics, judged, flags.data)
    scores = _read_scores(metrics, judged, flags.scores)
    rows = None if flags.out is None else flags.out / "rows" / judged.name  # of a set, not those of another
    visuals: dict[str, Path] = {}
    if flags.visuals is not None and any(class_.media for class_, _ in metrics):
        visuals = _find_visuals(entry, judged, flags.visuals)
    # One after the other: several large networks would not fit into memory together.
    for class_, options in metrics:
        metric = class_(options)
        with terminal.interruptible(terminal.resuming(rows, "--out FOLDER")):
            scores |= SetScorer(judged, visuals, rows=rows, progress=True).score(metric)
    result = tables.Judged(judged, scores, draws=flags.resamples, level=flags.level, seed=flags.seed)
    table = tables.judged_table(result, _notes_on_tiny(metrics))
    print(f"{entry.title}: {entry.summary}\n")
    print(table.text(), flush=True)
    if flags.out is not None:
        _write(flags, entry, result, table)
    return 1 if all(entry.undefined for entry in result.entries) else 0


def _load(entry: SetEntry, flags: argparse.Namespace) -> JudgedSet:
    """The set of `--data`, with the settings and the statistics that flags name."""
    settings: dict[str, Any] = {}
    for setting in entry.settings:
        value = getattr(flags, setting)
        if value is not None:
            settings[setting] = value
    if entry.name == "own":
        settings["options"] = RatingOptions(**common.chosen(flags, RatingOptions))
        settings["visuals"] = flags.visuals
    judged = load_set(entry.name, flags.data, **settings)
    for message in judged.notes:
        terminal.note(message)
    if not flags.statistics:
        return judged
    # Choices have accuracies, and agreement with each annotator is a statistic of its own.
    if not isinstance(judged, RatedSet) or judged.by_annotator:
        raise ValueError(f"--statistics: {entry.title} has no ratings that another statistic could be of")
    return judged.with_statistics(flags.statistics)


def _find_visuals(entry: SetEntry, judged: JudgedSet, folder: Path) -> dict[str, Path]:
    """The files of a set's images in a folder, by id; says how many are missing."""
    visuals = find_visuals(folder, judged.image_ids)
    missing = len(judged.image_ids) - len(visuals)
    # A warning: some sets are of photographs that have left the web since.
    if missing:
        count = f"{missing:,} of {len(judged.image_ids):,} {entry.media}s"
        terminal.complain(f"warning: {count} are not in {folder}: their captions have no score")
    return visuals


def _notes_on_tiny(metrics: _Metrics) -> list[str]:
    """A note that metrics with weights `tiny` do not reproduce the published values beside theirs."""
    titles = [class_.title for class_, options in metrics if options.weights == "tiny"]
    if not titles:
        return []
    return [f"{', '.join(titles)}: with weights `tiny`; published values are for the published weights"]


def _read_scores(metrics: _Metrics, judged: JudgedSet, files: Sequence[str]) -> dict[str, list[Scored]]:
    """By label, the scores of files: `FILE`, or `LABEL=FILE` for one that holds one metric."""
    labels_of_metrics: set[str] = set()
    for class_, _ in metrics:
        labels_of_metrics.update(labels_of(class_))
    scores: dict[str, list[Scored]] = {}
    for text in files:
        path = Path(text)
        label_of_flag = ""
        if "=" in text and not path.exists():  # a file's name may have a `=` of its own
            label_of_flag, _, name = text.partition("=")
            path = Path(name)
        by_label = read_scores(path, judged)
        for label, runs in by_label.items():
            # A file of several metrics names each, and one label could not be all of theirs.
            if label_of_flag and len(by_label) == 1:
                label = label_of_flag
            # The same metric, computed elsewhere: a row of its own, to compare them.
            if label in labels_of_metrics or label in scores:
                label = f"{label} ({path.name})"
            scores[label] = runs
    return scores


def _metrics(entry: SetEntry, flags: argparse.Namespace) -> _Metrics:
    """The metrics of `--metrics`, for the set's medium, with their checked options."""
    metrics = []
    for name in flags.metrics:
        # Only metrics with a variant have to be told the medium: the others refuse one that is not theirs.
        class_ = metric_class(name, entry.media if (name, entry.media) in MEDIA_VARIANTS else None)
        if class_.media and entry.media not in class_.media:
            about = argument_of(class_.media)
            raise ValueError(f"{name} scores {about}, and {entry.title} is about {entry.media}s")
        keywords: dict[str, Any] = {"on_error": "nan"}  # a broken image costs its own captions
        # --weights tiny is meant for all, and baselines such as BLEU have none.
        if flags.weights is not None and class_.default_weights is not None:
            keywords["weights"] = flags.weights
        metrics.append((class_, common.options_of(class_, keywords, flags.set, flags.metrics)))
    return metrics


def _check_metrics(metrics: _Metrics, judged: JudgedSet, entry: SetEntry, visuals: Path | None) -> None:
    """Refuse metrics that cannot judge this set, before any is opened."""
    for class_, options in metrics:
        if issubclass(class_, Reranker) and not isinstance(judged, PoolSet):
            problem = "chooses among captions, and its scores of different images cannot be compared"
            raise ValueError(f"{class_.name} {problem}: judge it by what it chooses, with nice_pools")
        if class_.needs_references and any(scoring.items.references is None for scoring in judged.scorings):
            raise ValueError(f"{class_.name} needs references: put references.json next to judgements.jsonl")
        if class_.media and not options.images_are_ids and visuals is None:
            problem = f"--{entry.media}s is missing: {entry.media}s are needed by {class_.name}"
            raise ValueError(f"{problem}; metrics on texts alone and --scores work without")


def _check_texts(metrics: _Metrics, judged: JudgedSet, data: str) -> None:
    """Refuse empty texts before any metric is opened, of those that do not score them."""
    readers: dict[str, list[str]] = {"caption": [], "reference": []}
    for class_, options in metrics:
        if options.empty == "error":
            readers["caption"].append(class_.name)
            if class_.needs_references:
                readers["reference"].append(class_.name)
    problems = Problems()

    def check(noun: str, place: str, texts: Sequence[str]) -> None:
        """Refuse empty texts of captions, or of references, if a metric reads them."""
        if readers[noun] and not all(map(str.strip, texts)):
            flags = " ".join(f"--set {name}.empty=score" for name in readers[noun])
            fix = f"write the {noun}, or pass {flags}"
            problems.add(file_error(data, f"has an empty {noun}", fix, index=place))

    for scoring in judged.scorings:
        items = scoring.items
        references = scoring.references() or [[]] * len(items)
        for row, image in enumerate(items.images):
            place = f"image {image!r}"
            check("caption", items.names[row] if items.names else place, [items.captions[row]])
            check("reference", place, references[row])
    problems.raise_if_any()


def _write(flags: argparse.Namespace, entry: SetEntry, result: tables.Judged, table: Table) -> None:
    """Write every file of `--out`, and print their names."""
    now = datetime.now(UTC)
    contests = tables.contest_table(result)
    sections = [f"`capeval judge {entry.name}`, {now:%Y-%m-%d}\n", table.markdown()]
    if contests.rows:
        sections.append(contests.markdown())
    sections.append("Signatures:\n")
    for label, signature in result.signatures.items():
        sections.append(f"- {label}: `{signature}`")
    text = "\n".join(sections) + "\n"
    contents: list[Any] = [text, table.latex(), tables.long_table(result), contests.csv()]
    try:
        contents += [tables.draw_agreement(result), tables.draw_scores(result)]
    except ModuleNotFoundError as error:  # the numbers took long, and are there
        warnings.warn(f"there are no charts: {error}", stacklevel=2)
    files: dict[str, Any] = {}
    # Not strict: without matplotlib the last two are missing. Choices have no ratings to chart.
    for end, content in zip(_ENDS, contents, strict=False):
        if content is not None:
            files[f"{entry.name}{end}"] = content
    is_local = Path(flags.data).exists()
    dataset = f"{NAMESPACE}/{entry.name.replace('_', '-')}" if is_local else flags.data
    dataset, _, revision = dataset.partition("@")
    facts = {"dataset_id": dataset, "date": now.isoformat(timespec="seconds")}
    if revision:
        facts["dataset_revision"] = revision
    summary = f"\n{flags.out}: {', '.join(files)}"
    # The Hub shows results with the weights that they are of, and by the id of a set that is there: metrics
    # without weights have no such repository, and one's own set has no such id.
    weighted_labels = []
    if entry.name != "own" or not is_local:
        for label, signature in result.signatures.items():
            if "|weights:" in signature:
                weighted_labels.append(label)
    for label in weighted_labels:
        words = re.findall(r"[^\W_]+", label.lower())
        name = f"eval_results/{'-'.join(words)}/.eval_results/{entry.name}.yaml"
        files[name] = tables.eval_results(result, label, **facts)
    if weighted_labels:
        summary += ", and .eval_results for the weights"
    for name, content in files.items():
        (flags.out / name).parent.mkdir(parents=True, exist_ok=True)
        common.write("--out", flags.out / name, content)
    print(summary)


def _parser(entry: SetEntry) -> terminal.Parser:
    """The parser of `capeval judge SET`, whose flags depend on the set."""
    words = {**entry._asdict(), "forms": FORMS, "of": "of ratings, of ", "known": ",".join(STATISTICS)}
    words["source"] = f"\nSource: {entry.source}." if entry.source else ""
    words["default"] = ""
    options = [RatingOptions] if entry.name == "own" else []
    words["data"] = "the set, or a folder of sets; or a Hub data set's id (default: the fetched one)"
    if entry.name == "own":
        words["data"] = "the table of ratings, or its folder; or a Hub data set's id"
    parser = terminal.parser_of(f"judge {entry.name}", "judge SET", "statistics", options=options, **words)
    for setting, values in entry.settings.items():
        text = f"{' or '.join(values)} (default: {values[0]})"
        terminal.flag(parser.group("statistics"), f"--{setting} NAME", text, choices=values)
    return parser
