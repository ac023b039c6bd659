"""`capeval judge`: the tables of the papers, of a data set with human judgements."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.commands import common
from capeval_core.commands.terminal import Parser, complain, first_named, flag, interruptible
from capeval_core.errors import Problems, did_you_mean, file_error, file_problem
from capeval_core.inputs.samples import argument_of
from capeval_core.judgements.loaders import load_set
from capeval_core.judgements.protocols import STATISTICS, Items, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.resampling import DRAWS
from capeval_core.judgements.scoring import SetScorer, joined_signature, labels_of
from capeval_core.judgements.sets import SETS, SetEntry, find_visuals, set_entry
from capeval_core.judgements.stored import FORMS, read_scores
from capeval_core.judgements.tables import (
    Judged,
    contest_table,
    draw_agreement,
    draw_scores,
    eval_results,
    judged_table,
    long_table,
)
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from capeval_core.reports.tables import Table
from capeval_core.weights.catalogue import NAMESPACE

_Metrics = Sequence[tuple[type[CaptionMetric], Any]]
_EVALUATORS = ("bleu", "rougel", "ciderd")
"""What the captions that a metric chooses of pools are compared with references by."""


def run(arguments: list[str]) -> int:
    about = "Agreement of metrics with people, beside what the papers print."
    usage = "--data FOLDER --metrics NAME,NAME [options]"
    summaries = {name: entry.summary for name, entry in SETS.items()}
    name, rest = first_named(arguments, "judge", "SET", usage, about, summaries, others=True)
    entry = set_entry(name)
    flags = _parser(entry).read(rest)
    check_statistics(flags)
    if not flags.metrics and not flags.scores:
        raise ValueError("nothing to judge: name --metrics, or a file of --scores")
    metrics = _metrics(entry, flags)
    if flags.data is None:
        raise ValueError(f"--data is missing: {entry.advice()}")
    if flags.out is not None and flags.out.exists() and not flags.out.is_dir():
        raise file_error(flags.out, "is a file: choose a folder for --out")
    judged = _load(entry, flags)
    _check_metrics(metrics, judged, flags)
    _check_texts(metrics, judged, flags.data)
    scores: dict[str, list[Scored]] = {}
    signatures: dict[str, str] = {}
    computed = {label for class_, _ in metrics for label in labels_of(class_)}
    for text in flags.scores:  # `FILE`, or `LABEL=FILE` for one that holds one metric
        name, equals, rest = text.partition("=")
        name, path = (name, Path(rest)) if equals and not Path(text).exists() else ("", Path(text))
        found = read_scores(path, judged)
        for label, runs in found.items():
            label = name if name and len(found) == 1 else label
            label = f"{label} ({path.name})" if label in computed or label in scores else label
            scores[label] = runs
            signatures[label] = f"scores:{path.name}"
    _score(metrics, judged, flags, scores, signatures)
    result = Judged(judged, scores, draws=flags.resamples, level=flags.level, seed=flags.seed)
    tiny = [class_.title for class_, options in metrics if options.weights == "tiny"]
    note = f"{', '.join(tiny)}: with weights `tiny`; published values are for the published weights"
    shown = judged_table(result, [note] if tiny else [])
    print(f"{entry.title}: {entry.summary}\n")
    print(shown.text(), flush=True)
    if flags.out is not None:
        _write(flags, entry, result, shown, signatures)
    return status_of(result)


def status_of(result: Judged) -> int:
    """1 where no cell has a value."""
    cells = (cell for own in result.cells.values() for cell in own.values())
    return 0 if any(cell.undefined is None for cell in cells) else 1


def _metrics(entry: SetEntry, flags: argparse.Namespace) -> _Metrics:
    """The classes of the metrics, those for videos where the set is about videos, with their options."""
    common.refuse_twice(f"--metrics {','.join(flags.metrics)}", flags.metrics)
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


def _load(entry: SetEntry, flags: argparse.Namespace) -> JudgedSet:
    settings = {name: getattr(flags, name) for name in entry.settings if getattr(flags, name) is not None}
    judged = load_set(entry.name, flags.data, **settings)
    if isinstance(judged, PoolSet):
        return replace(judged, evaluators=dict(map(_evaluator, _EVALUATORS)))
    if flags.statistics is None:
        return judged
    if not isinstance(judged, RatedSet) or judged.by_annotator:
        raise ValueError(f"--statistics: {entry.title} has no ratings that another statistic could be of")
    return judged.with_statistics(flags.statistics)


def _evaluator(name: str) -> tuple[str, Callable[[Items], Scored]]:
    """The title of an n-gram metric, and how it scores the captions that are chosen of pools."""
    class_ = metric_class(name)
    metric = class_(class_.Options.of(name, {"empty": "score"}))

    def evaluate(items: Items) -> Scored:
        result = metric.score(items.captions, references=items.references)
        corpus = result.mean if result.formula is not None else None
        return Scored(np.asarray(result.scores, dtype=np.float64), corpus=corpus)

    return class_.title, evaluate


def _check_metrics(metrics: _Metrics, judged: JudgedSet, flags: argparse.Namespace) -> None:
    """Refuse metrics that cannot judge this set, before any is opened."""
    rerankers = [class_.name for class_, _ in metrics if issubclass(class_, Reranker)]
    if rerankers and not isinstance(judged, PoolSet):
        raise ValueError(
            f"{rerankers[0]} chooses among the captions of an image, and scores of different images cannot "
            "be compared: judge it by what it chooses, with nice_pools"
        )
    needing = ", ".join(class_.name for class_, _ in metrics if class_.needs_references)
    if needing and any(scoring.items.references is None for scoring in judged.scorings):
        raise ValueError(f"references are needed by {needing}: put references.json beside judgements.jsonl")
    looking = ", ".join(class_.name for class_, own in metrics if class_.media and not own.images_are_ids)
    if looking and flags.visuals is None:
        raise ValueError(
            f"{flags.visuals_flag} is missing: {flags.visuals_flag[2:]} are needed by {looking}; metrics on "
            "texts alone and --scores work without"
        )


def _check_texts(metrics: _Metrics, judged: JudgedSet, data: str) -> None:
    """Refuse empty texts before any metric is opened, of those that do not score them."""
    strict = [class_ for class_, options in metrics if options.empty == "error"]
    comparing = [class_ for class_ in strict if class_.needs_references]
    empty: dict[tuple[str, str], Sequence[type[CaptionMetric]]] = {}
    for scoring in judged.scorings if strict else ():
        items = scoring.items
        texts = (scoring.references() if comparing else None) or [[]] * len(items)
        for row, (caption, image, own) in enumerate(zip(items.captions, items.images, texts, strict=True)):
            name = f"image {image!r}" if items.names is None else items.names[row]
            if not caption.strip():
                empty[name, "caption"] = strict
            if not all(text.strip() for text in own):
                file = "" if items.names is None else "references.json "
                empty[f"{file}image {image!r}", "reference"] = comparing
    problems = Problems()
    for (name, what), refusing in empty.items():
        settings = " ".join(f"--set {class_.name}.empty=score" for class_ in refusing)
        fix = f"write the {what}, or pass {settings}"
        problems.add(file_problem(data, f"an empty {what}", fix, index=name, verb="has"))
    problems.raise_if_any()


def _score(
    metrics: _Metrics,
    judged: JudgedSet,
    flags: argparse.Namespace,
    scores: dict[str, list[Scored]],
    signatures: dict[str, str],
) -> None:
    """Add the scores of metrics, each opened when the one before is done."""
    visuals: dict[str, Path] = {}
    if flags.visuals is not None and any(class_.media for class_, _ in metrics):
        visuals = find_visuals(flags.visuals, judged.image_ids)
        if missing := len(judged.image_ids) - len(visuals):
            complain(
                f"warning: {missing:,} of {len(judged.image_ids):,} {flags.visuals_flag[2:]} are not in "
                f"{flags.visuals}: their captions have no score"
            )
    # Rows of different sets would take each other's place.
    rows = None if flags.out is None else flags.out / "rows" / judged.name
    kept = "with --out FOLDER rows are kept, and a run can be resumed"
    how = kept if rows is None else f"rows are kept in {rows}: run the same command again to resume"
    for class_, options in metrics:
        metric = class_(options)
        with interruptible(how):
            found = SetScorer(judged, visuals, rows=rows, progress=True).score(metric)
        scores |= found
        signatures |= {label: joined_signature(runs) or metric.signature() for label, runs in found.items()}


def _write(
    flags: argparse.Namespace, entry: SetEntry, result: Judged, shown: Table, signatures: Mapping[str, str]
) -> None:
    """Write every file into the folder of `--out`."""
    now, contests = datetime.now(UTC), contest_table(result)
    lines = [f"- {label}: `{signature}`" for label, signature in signatures.items()]
    sections = [shown.markdown(), contests.markdown() if contests.rows else "", "Signatures:\n", *lines]
    dated = f"`capeval judge {entry.name}`, {now:%Y-%m-%d}\n"
    files: dict[str, str | bytes] = {
        f"{entry.name}.md": "\n".join([dated, *filter(None, sections)]) + "\n",
        f"{entry.name}.tex": shown.latex(),
        f"{entry.name}.csv": long_table(result, signatures).csv(),
        f"{entry.name}-differences.csv": contests.csv(),
    }
    try:
        files[f"{entry.name}.png"] = common.png_bytes(draw_agreement(result))
        if (spread := draw_scores(result)) is not None:
            files[f"{entry.name}-scores.png"] = common.png_bytes(spread)
    except ModuleNotFoundError as error:  # the numbers took long, and are there
        warnings.warn(f"there are no charts: {error}", stacklevel=2)
    # Other metrics have no repository that results could stand in, and one's own set may not be on the Hub.
    local = Path(flags.data).exists()
    dataset = f"{NAMESPACE}/{entry.name.replace('_', '-')}" if local else flags.data
    dataset, _, revision = dataset.partition("@")
    about = {"dataset_id": dataset, "date": now.isoformat(timespec="seconds")}
    about |= {"dataset_revision": revision} if revision else {}
    known = entry.name != "own" or not local
    of_weights = {label: text for label, text in signatures.items() if known and "|weights:" in text}
    for label, signature in of_weights.items():
        words = "".join(c if c.isalnum() else " " for c in label.lower()).split()
        name = f"eval_results/{'-'.join(words)}/.eval_results/{entry.name}.yaml"
        files[name] = eval_results(result, label, signature=signature, **about)
    more = ", and .eval_results for the weights" if of_weights else ""
    written = f"\n{flags.out}: {', '.join(name for name in files if '/' not in name)}{more}"
    writing = [partial(_write_file, flags.out / name, own) for name, own in files.items()]
    common.in_turn(*writing, lambda: print(written))


def _write_file(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    common.write("--out", path, content)


def _parser(entry: SetEntry) -> Parser:
    name = f"--{entry.media}s"
    parser = Parser(
        f"judge {entry.name}",
        "--data FOLDER --metrics NAME,NAME [options]",
        f"{entry.title}: {entry.summary}.",
        f"Files: {entry.form}" + (f"\nSource: {entry.source}." if entry.source else ""),
    )
    parser.set_defaults(visuals_flag=name)
    files = parser.add_argument_group("files")
    flag(files, "--data FOLDER", "the set, or a folder of sets; or a Hub data set's id", type=str)
    flag(files, f"{name} FOLDER", f"its {entry.media}s, for metrics that look at them", dest="visuals")
    text = f"scores that were computed elsewhere: {FORMS}; may be given several times"
    flag(files, "--scores [LABEL=]FILE", text, action="append", default=[])
    text = "tables (Markdown, LaTeX, CSV), charts, .eval_results, and rows, from which a run goes on"
    flag(files, "--out FOLDER", text)
    group = parser.add_argument_group("metrics")
    flag(group, "--metrics NAMES", "with commas, e.g. pacs,bleu", type=common.names_of, default=[])
    flag(group, "--weights WEIGHTS", "of all metrics that have any; default: the published ones")
    common.add_set_flag(group, "pacs")
    group = parser.add_argument_group("statistics")
    for setting, values in entry.settings.items():
        flag(group, f"--{setting} NAME", f"{' or '.join(values)} (default: {values[0]})", choices=values)
    add_statistics(group, f"of ratings, of {','.join(STATISTICS)}")
    return parser


# statistics and intervals, which `capeval correlate` has, too


def add_statistics(parser: argparse._ActionsContainer, text: str) -> None:
    """`--statistics`, `--resamples`, `--level` and `--seed`."""
    flag(parser, "--statistics NAMES", text, type=common.names_of)
    text = f"number of bootstrap resamples (default: {DRAWS:,}); 0: no intervals"
    flag(parser, "--resamples N", text, default=DRAWS)
    flag(parser, "--level X", "confidence level of the intervals (default: 0.95)", default=0.95)
    flag(parser, "--seed N", "seed of the resamples (default: 0)", default=0)


def check_statistics(flags: argparse.Namespace) -> None:
    """Refuse unknown statistics and values that no interval can have, before anything is read or scored."""
    known = f"(known: {', '.join(STATISTICS)})"
    if flags.statistics == []:
        raise ValueError(f"--statistics names no statistic {known}")
    for name in flags.statistics or ():
        if name not in STATISTICS:
            raise ValueError(f"--statistics {name!r}: unknown{did_you_mean(name, STATISTICS)} {known}")
    for name, value in (("resamples", flags.resamples), ("seed", flags.seed)):
        if value < 0:
            raise ValueError(f"--{name} {value}: expected 0 or more")
    if not 0 < flags.level < 1:
        raise ValueError(f"--level {flags.level:g}: expected a number between 0 and 1, e.g. 0.95")
