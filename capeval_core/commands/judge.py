"""`capeval judge`: the tables of the papers, of a data set with human judgements."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.commands import common
from capeval_core.commands.terminal import Parser, complain, first_named, flag, interruptible
from capeval_core.errors import FileError, Problems, did_you_mean, file_problem, naming, which_choice
from capeval_core.inputs.samples import argument_of
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.protocols import STATISTICS, Items, JudgedSet, PoolSet, RatedSet, Scored
from capeval_core.judgements.report import (
    contest_table,
    draw_agreement,
    draw_scores,
    eval_results,
    file_name,
    judged_table,
    long_table,
)
from capeval_core.judgements.resampling import DRAWS
from capeval_core.judgements.scoring import SetScorer, joined_signature, labels_of
from capeval_core.judgements.sets import SETS, SetEntry, find_visuals, load_set, set_entry
from capeval_core.judgements.stored import FORMS, read_scores
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
    name, rest = first_named(arguments, "judge", "SET", usage, about, summaries)
    entry = set_entry(name)
    flags = _parser(entry).read(rest)
    check_intervals(flags)
    if not flags.metrics and not flags.scores:
        raise ValueError("nothing to judge: name --metrics, or a file of --scores")
    metrics = [(class_, _options(class_, flags)) for class_ in _metrics(entry, flags.metrics)]
    if flags.out is not None and flags.out.exists() and not flags.out.is_dir():
        raise FileError(file_problem(flags.out, "is a file: choose a folder for --out"))
    judged = _with_evaluators(_load(entry, flags))
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
    cells = (cell for own in result.cells.values() for cell in own.values())
    return 0 if any(cell.undefined is None for cell in cells) else 1


def _metrics(entry: SetEntry, names: Sequence[str]) -> list[type[CaptionMetric]]:
    """The classes of the metrics, those for videos where the set is about videos."""
    common.refuse_twice(f"--metrics {','.join(names)}", names)
    classes = []
    for name in names:
        media = entry.media if (name, entry.media) in MEDIA_VARIANTS else None
        class_ = metric_class(name, media)
        if class_.media and entry.media not in class_.media:
            about = argument_of(class_.media)
            raise ValueError(f"{name} is about {about}, and {entry.title} about {entry.media}s")
        classes.append(class_)
    return classes


def _options(class_: type[CaptionMetric], flags: argparse.Namespace) -> Any:
    """A metric's options, of --weights and --set; a broken image costs its own captions."""
    keywords: dict[str, Any] = {"on_error": "nan"}
    if flags.weights is not None and class_.default_weights is not None:
        keywords["weights"] = flags.weights
    keywords |= (of_set := common.options_set(flags.set, class_.name, flags.metrics))
    with naming(common.in_set(class_.name, of_set)):
        options = class_.Options.of(class_.name, keywords)
        class_.check_options(options)
    return options


def _load(entry: SetEntry, flags: argparse.Namespace) -> JudgedSet:
    if flags.data is None:
        raise ValueError(f"--data is missing: {entry.advice()}")
    settings = {} if flags.labels is None else {"labels": flags.labels}
    if settings and (labels := entry.settings.get("labels", ())) != ():
        if flags.labels not in labels:
            known = f"{which_choice(flags.labels, labels)} (known: {', '.join(labels)})"
            raise ValueError(f"--labels {flags.labels}: unknown{known}")
    elif settings:
        having = ", ".join(one.name for one in SETS.values() if "labels" in one.settings)
        fault = f"{entry.title} has no choice of labels (there is of {having})"
        raise ValueError(f"--labels {flags.labels}: {fault}")
    judged = load_set(entry.name, flags.data, **settings)
    if flags.statistics is not None:
        check_statistics(flags.statistics)
        if not isinstance(judged, RatedSet) or judged.by_annotator:
            raise ValueError(f"--statistics: {entry.title} has no ratings that another statistic could be of")
        judged = judged.with_statistics(flags.statistics)
    return judged


def _with_evaluators(judged: JudgedSet) -> JudgedSet:
    """Pools with the n-gram metrics that the chosen captions are compared by."""
    if not isinstance(judged, PoolSet):
        return judged

    def evaluator(name: str) -> Any:
        class_ = metric_class(name)
        metric = class_(class_.Options.of(name, {"empty": "score"}))

        def evaluate(items: Items) -> Scored:
            result = metric.score(items.captions, references=items.references)
            corpus = result.mean if result.formula is not None else None
            return Scored(np.asarray(result.scores, dtype=np.float64), corpus=corpus)

        return class_.title, evaluate

    return replace(judged, evaluators=dict(evaluator(name) for name in _EVALUATORS))


def _check_metrics(metrics: _Metrics, judged: JudgedSet, flags: argparse.Namespace) -> None:
    """Refuse metrics that cannot judge this set, before any is opened."""
    rerankers = [class_.name for class_, _ in metrics if issubclass(class_, Reranker)]
    if rerankers and not isinstance(judged, PoolSet):
        raise ValueError(
            f"{rerankers[0]} chooses among the captions of an image, and scores of different images cannot "
            "be compared: judge it by what it chooses, with nice_pools"
        )
    needing = [class_.name for class_, _ in metrics if class_.needs_references]
    if needing and any(scoring.items.references is None for scoring in judged.scorings):
        raise ValueError(f"{_need(needing)} references: put references.json beside judgements.jsonl")
    needing = [class_.name for class_, own in metrics if class_.media and not own.images_are_ids]
    if needing and flags.visuals is None:
        raise ValueError(
            f"{flags.visuals_flag} is missing: {_need(needing)} the {flags.visuals_flag[2:]} of the set; "
            "metrics on texts alone and --scores work without"
        )


def _need(names: Sequence[str]) -> str:
    return f"{', '.join(names)} need{'s' if len(names) == 1 else ''}"


def _check_texts(metrics: _Metrics, judged: JudgedSet, data: str) -> None:
    """Refuse empty texts before any metric is opened, of those that do not score them."""
    strict = [class_ for class_, options in metrics if options.empty == "error"]
    comparing = [class_ for class_ in strict if class_.needs_references]
    captions: dict[str, None] = {}
    references: dict[str, None] = {}
    for scoring in judged.scorings if strict else ():
        items = scoring.items
        texts = (scoring.references() if comparing else None) or [[]] * len(items)
        for row, (caption, image, own) in enumerate(zip(items.captions, items.images, texts, strict=True)):
            if not caption.strip():
                captions[f"image {image!r}" if items.names is None else items.names[row]] = None
            if not all(text.strip() for text in own):
                file = "" if items.names is None else "references.json "
                references[f"{file}image {image!r}"] = None
    problems = Problems()
    for names, what, refusing in ((captions, "caption", strict), (references, "reference", comparing)):
        flags = " ".join(f"--set {class_.name}.empty=score" for class_ in refusing)
        for name in names:
            fix = f"write the {what}, or pass {flags}"
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
    visuals = None
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
    out, now, outputs = flags.out, datetime.now(UTC), common.Outputs()
    contests = contest_table(result)
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
    about: dict[str, Any] = {
        "dataset": dataset,
        "date": now.isoformat(timespec="seconds"),
        "revision": revision or None,
    }
    known = entry.name != "own" or not local
    of_weights = {label: text for label, text in signatures.items() if known and "|weights:" in text}
    for label, signature in of_weights.items():
        name = f"eval_results/{file_name(label)}/.eval_results/{entry.name}.yaml"
        files[name] = eval_results(result, label, signature=signature, **about)
    for name, content in files.items():
        with outputs.next():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            common.write("--out", out / name, content)
    more = ", and .eval_results for the weights" if of_weights else ""
    print(f"\n{out}: {', '.join(name for name in files if '/' not in name)}{more}")
    outputs.finish()


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
    flag(group, "--statistics NAMES", f"of ratings, of {','.join(STATISTICS)}", type=common.names_of)
    flag(group, "--labels NAME", "of Pascal-50S: label or label_fleur_run")
    add_interval_flags(group)
    return parser


# intervals, which `capeval correlate` has, too


def add_interval_flags(parser: argparse._ActionsContainer) -> None:
    """`--resamples`, `--level` and `--seed`."""
    text = f"number of bootstrap resamples (default: {DRAWS:,}); 0: no intervals"
    flag(parser, "--resamples N", text, default=DRAWS)
    flag(parser, "--level X", "confidence level of the intervals (default: 0.95)", default=0.95)
    flag(parser, "--seed N", "seed of the resamples (default: 0)", default=0)


def check_intervals(flags: argparse.Namespace) -> None:
    """Refuse values that no interval can have, before anything is read or scored."""
    if flags.resamples < 0:
        raise ValueError(f"--resamples {flags.resamples}: expected 0 (no intervals) or more")
    if not 0 < flags.level < 1:
        raise ValueError(f"--level {flags.level:g}: expected a number between 0 and 1, e.g. 0.95")
    if flags.seed < 0:
        raise ValueError(f"--seed {flags.seed}: expected 0 or more")


def check_statistics(names: list[str]) -> None:
    """Refuse names of `--statistics` that are no statistic of ratings, and none at all."""
    known = f"(known: {', '.join(STATISTICS)})"
    if not names:
        raise ValueError(f"--statistics names no statistic {known}")
    for name in names:
        if name not in STATISTICS:
            raise ValueError(f"--statistics {name!r}: unknown{did_you_mean(name, STATISTICS)} {known}")
