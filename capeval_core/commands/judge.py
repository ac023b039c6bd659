"""`capeval judge`: the tables of the papers, of a data set with human judgements."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capeval_core.commands.arguments import (
    add_set_flag,
    in_words_of_set,
    in_words_of_the_user,
    names_of,
    options_set,
    pair_hint,
)
from capeval_core.commands.interrupts import interruptible
from capeval_core.commands.intervals import add_interval_flags, check_intervals, check_statistics
from capeval_core.commands.judge_checks import check_references, check_rerankers, check_texts, check_visuals
from capeval_core.commands.metrics import refuse_twice
from capeval_core.commands.outputs import Outputs, write
from capeval_core.commands.terminal import Parser, complain, paragraph, table
from capeval_core.errors import FileError, file_problem, which_choice
from capeval_core.judgements.judged_set import Items, JudgedSet, Scored
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.others import PoolSet
from capeval_core.judgements.ratings import STATISTICS, RatedSet
from capeval_core.judgements.report import (
    contest_table,
    draw_agreement,
    draw_scores,
    eval_results,
    file_name,
    judged_table,
    long_table,
)
from capeval_core.judgements.scoring import SetScorer, joined_signature, labels_of
from capeval_core.judgements.sets import SETS, SetEntry, load_set, set_entry
from capeval_core.judgements.stored import FORMS, read_scores
from capeval_core.judgements.visuals import find_visuals
from capeval_core.metric import CaptionMetric
from capeval_core.registry import MEDIA_VARIANTS, metric_class
from capeval_core.weights.catalogue import NAMESPACE

_EVALUATORS = ("bleu", "rougel", "ciderd")
"""What the captions that a metric chooses of pools are compared with references by."""


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _introduce(arguments)
    entry = set_entry(arguments[0])
    flags = _parser(entry).read(arguments[1:])
    check_intervals(flags)
    if not flags.metrics and not flags.scores:
        raise ValueError("nothing to judge: name --metrics, or a file of --scores")
    metrics = [(class_, _options(class_, flags)) for class_ in _metrics(entry, flags.metrics)]
    if flags.out is not None and flags.out.exists() and not flags.out.is_dir():
        raise FileError(file_problem(flags.out, "is a file: choose a folder for --out"))
    judged = _with_evaluators(_load(entry, flags))
    check_rerankers(metrics, judged)
    check_references(metrics, judged)
    check_texts(metrics, judged, flags.data)
    notes = check_visuals(metrics, flags)
    scores: dict[str, list[Scored]] = {}
    signatures: dict[str, str] = {}
    computed = {label for class_, _ in metrics for label in labels_of(class_)}
    for name, path in _score_files(flags.scores):
        found = read_scores(path, judged)
        for label, runs in found.items():
            label = name if name and len(found) == 1 else label
            label = f"{label} ({path.name})" if label in computed or label in scores else label
            scores[label] = runs
            signatures[label] = f"scores:{path.name}"
    _score(metrics, judged, flags, scores, signatures)
    result = Judged(judged, scores, draws=flags.resamples, level=flags.level, seed=flags.seed)
    shown = judged_table(result, notes)
    print(f"{entry.title}: {entry.summary}\n")
    print(shown.text(), flush=True)
    outputs = Outputs()
    if flags.out is not None:
        _write(flags.out, entry, result, shown.markdown(), shown.latex(), signatures, flags, outputs)
    outputs.finish()
    return (
        0 if any(cell.undefined is None for cells in result.cells.values() for cell in cells.values()) else 1
    )


def _metrics(entry: SetEntry, names: Sequence[str]) -> list[type[CaptionMetric]]:
    """The classes of the metrics, those for videos where the set is about videos."""
    refuse_twice(f"--metrics {','.join(names)}", names)
    classes = []
    for name in names:
        media = entry.media if (name, entry.media) in MEDIA_VARIANTS else None
        class_ = metric_class(name, media)
        if class_.media and entry.media not in class_.media:
            raise ValueError(
                f"{name} is about {' or '.join(class_.media)}s, and {entry.title} about {entry.media}s"
            )
        classes.append(class_)
    return classes


def _options(class_: type[CaptionMetric], flags: argparse.Namespace) -> Any:
    """A metric's options, of --weights and --set; a broken image costs its own captions."""
    keywords: dict[str, Any] = {"on_error": "nan"}
    if flags.weights is not None and class_.default_weights is not None:
        if hint := pair_hint("weights", flags.weights, flags.metrics):
            raise ValueError(f"--weights {flags.weights}: {hint}")
        keywords["weights"] = flags.weights
    keywords |= (of_set := options_set(flags.set, class_.name, flags.metrics))
    with in_words_of_the_user(class_.Options), in_words_of_set(class_.name, of_set):
        options = class_.Options.of(class_.name, keywords)
        class_.check_options(options)
    return options


def _load(entry: SetEntry, flags: argparse.Namespace) -> JudgedSet:
    if flags.data is None:
        raise ValueError(f"--data is missing: {entry.advice()}")
    settings = {} if flags.labels is None else {"labels": flags.labels}
    for name, value in settings.items():
        if name not in entry.settings:
            having = ", ".join(one.name for one in SETS.values() if name in one.settings)
            raise ValueError(
                f"--{name} {value}: {entry.title} has no choice of {name} (there is of {having})"
            )
        if value not in entry.settings[name]:
            known = f"{which_choice(value, entry.settings[name])} (known: {', '.join(entry.settings[name])})"
            raise ValueError(f"--{name} {value}: unknown{known}")
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
            return Scored(_array(result.scores), corpus=corpus)

        return class_.title, evaluate

    return replace(judged, evaluators=dict(evaluator(name) for name in _EVALUATORS))


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.asarray(values, dtype=np.float64)


def _score_files(given: Sequence[str]) -> list[tuple[str | None, Path]]:
    """Label and path of each file of `--scores`: `FILE`, or `LABEL=FILE` for one that holds one metric."""
    files: list[tuple[str | None, Path]] = []
    for text in given:
        name, equals, path = text.partition("=")
        files.append((name, Path(path)) if equals and not Path(text).exists() else (None, Path(text)))
    return files


def _score(
    metrics: Sequence[tuple[type[CaptionMetric], Any]],
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
        with interruptible(how):
            metric = class_(options)
            scorer = SetScorer(judged, visuals, rows=rows, progress=True)
            found = scorer.score(metric)
        scores |= found
        signatures |= {label: joined_signature(runs) or metric.signature() for label, runs in found.items()}


def _write(
    out: Path,
    entry: SetEntry,
    result: Judged,
    markdown: str,
    latex: str,
    signatures: Mapping[str, str],
    flags: argparse.Namespace,
    outputs: Outputs,
) -> None:
    """Write every file into the folder of `--out`."""
    now = datetime.now(UTC)
    contests = contest_table(result)
    lines = [f"- {label}: `{signature}`" for label, signature in signatures.items()]
    sections = [markdown, contests.markdown() if contests.rows else "", "Signatures:\n", *lines]
    dated = f"`capeval judge {entry.name}`, {now:%Y-%m-%d}\n"
    files: dict[str, str | bytes] = {
        f"{entry.name}.md": "\n".join([dated, *filter(None, sections)]) + "\n",
        f"{entry.name}.tex": latex,
        f"{entry.name}.csv": long_table(result, signatures).csv(),
        f"{entry.name}-differences.csv": contests.csv(),
        f"{entry.name}.png": _png(draw_agreement(result)),
    }
    spread = draw_scores(result)
    if spread is not None:
        files[f"{entry.name}-scores.png"] = _png(spread)
    dataset = flags.data if not Path(flags.data).exists() else f"{NAMESPACE}/{entry.name.replace('_', '-')}"
    dataset, _, revision = dataset.partition("@")
    # Other metrics have no repository that results could stand in, and one's own set may not be on the Hub.
    known = entry.name != "own" or not Path(flags.data).exists()
    of_weights = {label: text for label, text in signatures.items() if known and "|weights:" in text}
    for label, signature in of_weights.items():
        text = eval_results(
            result, label, dataset=dataset, date=now.isoformat(timespec="seconds"), signature=signature,
            revision=revision or None,
        )  # fmt: skip
        files[f"eval_results/{file_name(label)}/.eval_results/{entry.name}.yaml"] = text
    for name, content in files.items():
        with outputs.next():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write("--out", out / name, content)
    more = ", and .eval_results for the weights" if of_weights else ""
    print(f"\n{out}: {', '.join(name for name in files if '/' not in name)}{more}")


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _parser(entry: SetEntry) -> Parser:
    flag = f"--{entry.media}s"
    source = [f"Source: {entry.source}."] if entry.source else []
    parser = Parser(
        prog=f"capeval judge {entry.name}",
        usage=f"capeval judge {entry.name} --data FOLDER --metrics NAME,NAME [options]",
        description=paragraph(f"{entry.title}: {entry.summary}."),
        epilog="\n\n".join(map(paragraph, [f"Files: {entry.form}", *source])),
    )
    parser.set_defaults(visuals_flag=flag)
    files = parser.add_argument_group("files")
    files.add_argument(
        "--data", metavar="FOLDER", help="the set, or a folder of sets; or a Hub data set's id"
    )
    files.add_argument(
        flag,
        dest="visuals",
        metavar="FOLDER",
        type=Path,
        help=f"its {entry.media}s, for metrics that look at them",
    )
    files.add_argument(
        "--scores",
        metavar="[LABEL=]FILE",
        action="append",
        default=[],
        help=f"scores that were computed elsewhere: {FORMS}; may be given several times",
    )
    files.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        help="tables (Markdown, LaTeX, CSV), charts, .eval_results, and rows, from which a run goes on",
    )
    group = parser.add_argument_group("metrics")
    group.add_argument(
        "--metrics", metavar="NAMES", type=names_of, default=[], help="with commas, e.g. pacs,bleu"
    )
    group.add_argument("--weights", help="of all metrics that have any; default: the published ones")
    add_set_flag(group, "pacs")
    group = parser.add_argument_group("statistics")
    group.add_argument(
        "--statistics", metavar="NAMES", type=names_of, help=f"of ratings, of {','.join(STATISTICS)}"
    )
    group.add_argument("--labels", metavar="NAME", help="of Pascal-50S: label or label_fleur_run")
    add_interval_flags(group)
    return parser


def _introduce(arguments: list[str]) -> int:
    parser = Parser(
        prog="capeval judge",
        usage="capeval judge SET --data FOLDER --metrics NAME,NAME [options]",
        description="Agreement of metrics with people, beside what the papers print.",
        epilog="sets:\n"
        + table([[entry.name, entry.summary] for entry in SETS.values()], indent="  ")
        + "\n\n`capeval judge SET --help` shows all options.",
    )
    parser.introduce(arguments, f"the set comes first: capeval judge {{{','.join(SETS)}}} ...")
