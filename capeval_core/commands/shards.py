"""`capeval shards`: a collection of captioned images, one file of scores per shard."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Self

from tqdm import tqdm

from capeval_core.commands import common, terminal
from capeval_core.errors import counted, naming
from capeval_core.inputs.notes import tell_of_images
from capeval_core.inputs.samples import argument_of
from capeval_core.project import install_command
from capeval_core.registry import metric_classes
from capeval_core.reports.figures import draw_histogram

# What imports torch is imported where it is used, so that `capeval shards --help` does not wait.
_NOT_FOR_SHARDS = {"rows", "on_error", "evidence"}
"""Options that mean nothing here: a target is kept or written anew, and a broken image costs its row."""
_MOST_NAMES = 12  # columns that were not read and are named


def run(arguments: list[str]) -> int:
    outputs = {"filter": _filter, "merge": _merge, "check": _check, "histogram": _histogram}
    kinds = terminal.kinds_of("shards", "score", *outputs)
    name, arguments_left = terminal.first_named(arguments, "shards", kinds)
    if name == "score":
        return _score(arguments_left)
    parser = terminal.parser_of(f"shards {name}", "shards outputs", f"shards {name}")
    return outputs[name](parser.read(arguments_left))


def _score(arguments: list[str]) -> int:
    titles = {name: metric.title for name, metric in metric_classes().items()}
    text, arguments_left = terminal.first_named(arguments, "shards score", titles, open_ended=True)
    names = terminal.names_in(text) or [text]
    metrics, arguments_left = common.read_metrics("shards score", names, arguments_left)
    commands = []
    abouts = []
    classes = {}
    for metric in metrics:
        commands.append(common.command_of(metric))
        abouts.append(f"{metric.title}: {metric.summary}")
        classes[metric.name] = metric.Options
    parser = terminal.parser_of(
        f"shards score {','.join(commands)}",
        "shards score METRIC",
        about="; ".join(abouts),
        # Without a text --set is not in the help: options of a single metric are flags.
        own_options="" if len(metrics) == 1 else "an option of one of the metrics, such as pacs.w=1",
        **common.media_words(metrics),
    )
    terminal.add_options(parser, "options of the metric", classes, _NOT_FOR_SHARDS)
    flags = parser.read(arguments_left)
    columns, on_ray = _check_flags(flags)
    from capeval_core.integrations.shards.places import Place
    from capeval_core.integrations.shards.plan import (
        images_folder,
        plan_shards,
        refuse_other_scores,
        settings_of,
    )
    from capeval_core.integrations.shards.run import score_one, score_shards

    scorers = _scorers(metrics, flags)
    # Of several metrics each has a folder as of a run of its own, so that `check`, `filter` and later runs by
    # one of them read it as such.
    folders = [""] if len(metrics) == 1 else [metric.name for metric in metrics]
    shards = plan_shards(flags.input, flags.output, folders)
    images = flags.images
    if images is not None:
        place = images_folder(images) if flags.ray is None else Place.of("images", images)
        images = place.path if place.is_local else images  # workers may have other current folders
    # This opens the weights: missing ones end here, in the words of this command, and not in a worker of Ray.
    stamps = [settings_of(scorer, columns) for scorer in scorers]
    finished = refuse_other_scores(shards, stamps, images)
    # Ray takes seconds to start, for nothing if all shards are finished. Failed rows, and features and keys
    # that an earlier run did not write, are work in finished shards.
    on_ray &= finished < len(shards) or flags.retry_failed or flags.features or flags.duplicates
    settings = {
        "images": images,
        "columns": columns,
        "retry_failed": flags.retry_failed,
        "features": flags.features,
        "duplicates": flags.duplicates,
    }
    results: list[Sequence[Any]] = []  # of each shard, by each metric
    failures: dict[str, str] = {}
    start = time.monotonic()
    resuming = "shards that are finished are kept: run the same command again to resume"
    with terminal.interruptible(resuming), _Progress(len(shards)) as progress:
        if on_ray:
            terminal.complain("starting Ray" if flags.ray is None else f"connecting to Ray at {flags.ray}")
            cluster = {"workers": flags.workers, "gpus": flags.gpus_per_worker, "address": flags.ray}
            outcomes: Iterable[Any] = score_shards(shards, scorers, settings, **cluster)
        else:
            # The bar is of this process: workers of Ray report a shard when it is done.
            watched = {**settings, "progress": progress.add, "expected": progress.expect}
            outcomes = (score_one(shard, scorers, watched) for shard in shards)  # one at a time, as Ray's
        for outcome in outcomes:
            if isinstance(outcome, list):
                results.append(outcome)
                # A metric may have finished a shard before that another one still had to score.
                scored = max(result.scored for result in outcome)
                skipped = all(result.skipped for result in outcome)
                progress.finish(skipped=skipped, pairs=scored if on_ray else 0)
            # A disk that is full or a lost GPU would fail every shard that follows.
            elif outcome.ends_run:
                raise OSError(outcome.reason)
            else:
                failures[outcome.source] = outcome.reason
                progress.finish()
    rate = progress.rate(time.monotonic() - start)
    status = 0
    for number, metric in enumerate(metrics):
        results_of_metric = [outcome[number] for outcome in results]
        is_last = number == len(metrics) - 1
        rate_of_one = rate if len(metrics) == 1 else None
        status |= _finish(
            flags, folders[number], metric, results_of_metric, failures, rate_of_one, says_all=is_last
        )
        if len(metrics) > 1:
            print()
    if len(metrics) > 1:
        # All metrics were scored in one pass: its rate is none of a single one of them.
        terminal.summary(["rate", rate])
    return status


def _scorers(metrics: Sequence[Any], flags: argparse.Namespace) -> list[Any]:
    """A scorer of each metric; what is wrong with their options is refused."""
    from capeval_core.integrations.shards import BatchScorer

    names = [metric.name for metric in metrics]
    if flags.set and len(names) == 1:
        raise ValueError(f"--set is for several metrics: pass the options of {names[0]} as flags")
    # A row has one image, or one video.
    common.check_one_medium({metric.name: metric for metric in metrics}, "in two runs")
    # Equal pictures are known by the digest of their content, which only a metric on images has read.
    if flags.duplicates and not any(argument_of(metric.media) == "images" for metric in metrics):
        raise ValueError(f"--duplicates: {', '.join(names)} look at no images")
    scorers = []
    for metric in metrics:
        keywords = common.chosen(flags, metric.Options)
        if len(metrics) > 1:
            # Which refuses an option of a metric that is not among them, and a metric that comes twice.
            checked = common.options_of(metric, keywords, flags.set, names)

            keywords = {name: getattr(checked, name) for name in metric.Options.describe()}
        scorer = BatchScorer(metric.name, media=metric.variant, **keywords)
        if flags.features and not scorer.has_features:
            raise ValueError(
                f"--features: {metric.name} is not made of one feature of each image and caption: "
                "score pacs, clips or specs, with references or without"
            )
        scorers.append(scorer)
    return scorers


def _finish(
    flags: argparse.Namespace,
    folder: str,
    metric: Any,
    results: list[Any],
    failures: dict[str, str],
    rate: str | None,
    *,
    says_all: bool,
) -> int:
    """Write the manifest of a metric and print its outcome; the exit status. rate: None of several."""
    from capeval_core.integrations.shards.run import write_manifest

    output = flags.output.rstrip("/")
    if folder:
        output = f"{output}/{folder}"
    write_manifest(output, results, failures, flags.manifest)
    lines = []
    if flags.duplicates and "image" in metric.media:
        lines.append(["duplicates", _duplicates(output)])
    if rate is not None:
        lines.append(["rate", rate])
    lines.append(["manifest", f"{output}/{flags.manifest}"])
    return _summarize(metric.title, results, failures, *lines, says_all=says_all)


def _duplicates(output: str) -> str:
    """How many rows of all shards in a folder have the picture of an earlier row."""
    from capeval_core.errors import FileError
    from capeval_core.integrations.shards.duplicates import duplicates_on_disk, have_keys
    from capeval_core.integrations.shards.outputs import outputs_in

    try:
        outputs = outputs_in(output)
    except FileError:  # no shard has scores
        return "n/a"
    if not have_keys(outputs):
        return "n/a: the folder has shards that were scored without --duplicates"
    with duplicates_on_disk(outputs) as marks:
        return f"{counted(int(marks.sum()), 'row')} with the picture of an earlier one"


class _Progress:
    """A bar of shards that moves within a shard, with pairs per second and the time left."""

    def __init__(self, shards: int) -> None:
        form = "{percentage:3.0f}%|{bar}| {n:.1f}/{total} shards [{elapsed}<{remaining}{postfix}]"
        # A line a minute where there is no terminal.
        lines: dict[str, Any] = {} if sys.stderr.isatty() else {"delay": 60, "mininterval": 60}
        # Without smoothing the remaining time is by the mean rate, to which skipped shards add nothing.
        self._bar = tqdm(total=shards, bar_format=form, smoothing=0, miniters=0, **lines)
        self._finished = 0
        self._pairs = 0
        self._pairs_of_shard = 0
        self._expected = 0
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def expect(self, pairs: int) -> None:
        """Expect so many pairs of the current shard."""
        self._expected = pairs

    def add(self, pairs: int) -> None:
        """Count pairs of the current shard."""
        self._pairs += pairs
        self._pairs_of_shard += pairs
        share = min(1.0, self._pairs_of_shard / max(1, self._expected))
        self._update(self._finished + share)

    def finish(self, *, skipped: bool = False, pairs: int = 0) -> None:
        """Count a shard, and pairs of it that were not counted yet."""
        self._pairs += pairs
        self._pairs_of_shard = 0
        self._finished += 1
        if skipped:
            self._bar.initial += 1
        self._update(self._finished)

    def _update(self, shards: float) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        self._bar.set_postfix_str(
            f"{self._pairs:,} pairs, {self._pairs / seconds:,.1f} pairs/s", refresh=False
        )
        self._bar.update(shards - self._bar.n)

    def rate(self, seconds: float) -> str:
        """The rate of the whole run, in words."""
        if not self._pairs:
            return "nothing to do"
        return f"{self._pairs / max(seconds, 1e-9):,.1f} pairs/s ({self._pairs:,} pairs in {seconds:,.1f} s)"


def _summarize(
    title: str, results: list[Any], failures: dict[str, str], *more: Sequence[str], says_all: bool = True
) -> int:
    """Print the outcome of all shards by one metric; the exit status. says_all: with what metrics share."""
    shards = len(results) + len(failures)
    finished = 0  # by an earlier run
    outside = 0  # rows of finished shards that failed by an image which may be readable by now
    counts: Counter[str] = Counter()
    # Dicts are sets in the order of the shards: files of one run may have columns of different names.
    columns: dict[str, None] = {}
    unread: dict[str, None] = {}
    traits: Counter[str] = Counter()
    for result in results:
        counts["rows"] += result.rows
        counts["failed"] += result.failed
        counts["truncated"] += result.truncated
        counts["scored"] += result.scored
        if result.skipped:
            finished += 1
            outside += result.outside
        for role, names in result.columns.items():
            columns[f"{role}={'|'.join(names)}"] = None
        unread |= dict.fromkeys(result.unread)
        traits.update(result.traits)
    rows = counts["rows"]
    failed = counts["failed"]
    notes = []
    if finished:
        notes.append(f"{finished:,} finished before")
    if failures:
        notes.append(f"{len(failures):,} without scores")
    extent = counted(shards, "shard")
    if notes:
        extent += f" ({', '.join(notes)})"
    lines = [
        [title, extent],
        ["pairs", f"{rows:,} ({failed:,} failed, {counts['truncated']:,} truncated)"],
        ["columns", ", ".join(columns) or "n/a"],
    ]
    if unread:
        lines.append(["not read", _shortened([*unread])])
    # The first stands for all: outputs of another signature are refused before the run.
    terminal.summary(*lines, *more, ["signature", results[0].signature if results else "n/a"])
    # A broken image costs its row, not the run, which fails only where a shard, or every row, has no score.
    status = 1 if failures or 0 < rows == failed else 0
    if not says_all:
        _complain_of_rows(results, failed)
        return status
    tell_of_images(traits, counts["scored"])
    # A reason that several shards share is told without their addresses.
    reasons: dict[str, str] = {}
    for source, reason in failures.items():
        reasons[source] = reason.removeprefix(source).lstrip(": ")
    frequency = Counter(reasons.values())
    texts = []
    for source, reason in reasons.items():
        texts.append(reason if frequency[reason] > 1 else f"{source}: {reason}")
    common.tell_reasons(texts, shards, "shards")
    _complain_of_rows(results, failed)
    # This run has just tried the rows of the others, so that the advice would not help them.
    if outside:
        text = f"{counted(outside, 'row')} of shards finished before failed by an image outside of the shard"
        terminal.complain(f"{text}: once it can be read, add --retry-failed")
    return status


def _complain_of_rows(results: list[Any], failed: int) -> None:
    """Say why rows failed: each reason once, with the first row and its shard."""
    from capeval_core.integrations.shards.failures import FailureCounts

    counts = FailureCounts()
    sources: dict[str, str] = {}
    for result in results:
        counts.add_all(result.failures)
        for error in result.failures:
            sources.setdefault(error, result.source)
    lines = []
    for error, number in counts.rows.items():
        lines.append(f"{counted(number, 'row')}, the first in {sources[error]}: {error}")
    title = f"{counted(failed, 'row')} failed, as column `error` says:"
    common.tell_first(title, lines, "more reasons")


def _shortened(names: Sequence[str]) -> str:
    """Names of columns, of many only the first."""

    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _check_flags(flags: argparse.Namespace) -> tuple[dict[str, str], bool]:
    """The columns that are named, and whether Ray is to be used."""
    from capeval_core.integrations.shards.readers import check_columns

    column_of: dict[str, str] = {}
    # `--columns ""` is rather a mistake than the wish for no column: its one empty pair is refused.
    pairs = [] if flags.columns is None else flags.columns.split(",")
    for pair in pairs:
        role, equals, column = pair.partition("=")
        if not (role and equals and column):
            raise ValueError(f"--columns {flags.columns}: expected WHAT=COLUMN,..., such as caption=alt_text")
        column_of[role.strip()] = column.strip()
    # A name alone: it lies in the folder of the outputs, which of several metrics is one for each.
    if not flags.manifest.endswith(".json") or "/" in flags.manifest:
        raise ValueError(f"--manifest {flags.manifest}: expected the name of a file, such as manifest-3.json")
    on_ray = flags.workers > 1 or flags.ray is not None
    if on_ray and find_spec("ray") is None:
        raise ValueError(f"several --workers, and --ray, need Ray: {install_command('ray')}")
    if flags.gpus_per_worker is not None and not on_ray:
        raise ValueError("--gpus-per-worker is for several --workers, or --ray: use --device")
    return check_columns(column_of), on_ray


# commands on the outputs


def _merge(flags: argparse.Namespace) -> int:
    from capeval_core.integrations.shards import merge_shards

    rows = merge_shards(flags.folder, flags.output)
    terminal.summary(["rows", f"{rows:,}"], ["table", flags.output])
    return 0


def _check(flags: argparse.Namespace) -> int:
    """Check that every uid is there once, all signatures are equal, all shards whole; 1 where not."""
    from capeval_core.integrations.shards import check_shards

    check = check_shards(flags.folder)
    damage = f"{len(check.damaged):,} damaged" if check.damaged else "all whole"
    lines = [
        ["shards", f"{check.shards:,} ({damage})"],
        ["rows", f"{check.rows:,} ({sum(check.failed.values()):,} failed)"],
        ["uids", f"{check.repeated:,} rows repeat one" if check.repeated else "all unique"],
    ]
    for text, names in check.signatures.items():
        lines.append(["signature", f"{text} ({counted(len(names), 'shard')})"])
    terminal.summary(*lines)
    tell = common.tell_first
    damaged: list[str] = []
    features: list[str] = []
    foreign: list[str] = []
    for name, why in (check.damaged | check.features).items():
        lines_of_kind = features if name in check.features else damaged
        # What no run has written no run replaces, so that it needs other advice.
        if name in check.foreign:
            lines_of_kind = foreign
        lines_of_kind.append(f"{name} {why}")
    tell(f"{counted(len(damaged), 'shard')} damaged; the same `shards score` again replaces them:", damaged)
    title = f"{counted(len(features), 'table')} of features missing or damaged"
    tell(f"{title}; the same `shards score --features` again writes them:", features)
    tell(f"{counted(len(foreign), 'file')} of something else; move them away:", foreign)
    failed = []
    for name, rows in check.failed.items():
        # A shard without any score fails the check, some failed rows do not.
        extent = ", all of its rows" if name in check.without_scores else ""
        failed.append(f"{name}: {rows:,}{extent}")
    tell(f"{counted(len(failed), 'shard')} with rows that failed:", failed)
    tell("why rows failed:", _reasons(check.failures))
    # A file next to the shard may come back; the same bytes of a shard fail again.
    if check.outside:
        text = f"{counted(check.outside, 'row')} failed by an image outside of the shard"
        terminal.complain(f"{text}: once it can be read, `shards score --retry-failed` scores them")
    elif check.failures:
        terminal.complain("no retry mends these rows: the faults are in the shards themselves")
    repeated = []
    for uid, rows_of in check.duplicates.items():
        places = ", ".join(f"{rows} in {name}" for name, rows in rows_of.items())
        repeated.append(f"{uid!r}: {places}")
    tell(f"{counted(check.repeated, 'row')} with a uid that another row has:", repeated)
    different = []  # the shards of all signatures but the most frequent, which cost least to score again
    for names in sorted(check.signatures.values(), key=len)[:-1]:
        different += names
    tell("scores of different signatures cannot be compared; score these shards again with one:", different)
    # No fault: a run of another machine may be writing them at this moment.
    tell("unfinished files, which the next run there removes, or another one is writing:", check.unfinished)
    return 0 if check.ok else 1


def _reasons(failures: Mapping[str, int]) -> list[str]:
    """Lines of the reasons of failures, each with its number of rows."""
    return [f"{counted(rows, 'row')}: {error}" for error, rows in failures.items()]


def _histogram(flags: argparse.Namespace) -> int:
    """The distribution of all scores; 1 where there is no score."""
    from capeval_core.integrations.shards import score_histogram

    histogram = score_histogram(flags.folder, keep=flags.keep)
    extent = f"{histogram.scored + histogram.failed:,} ({histogram.failed:,} without a score)"
    rows = [["rows", extent]]
    best = []
    threshold = None
    if histogram.scored:
        rows.append(["mean", f"{histogram.mean:.4f}"])
        rows.append(["range", f"{histogram.least:.4f} to {histogram.most:.4f}"])
    if histogram.scored and flags.keep is not None:
        threshold = histogram.threshold
        share = f"{histogram.kept / histogram.scored:.2%} of those with a score"
        # Rounded down, so that the printed threshold keeps no fewer.
        condition = f"score >= {math.floor(threshold * 1e6) / 1e6:.6f}"
        extent = f"{condition} keeps {counted(histogram.kept, 'row')}, {share}"
        best.append([f"best {100 * flags.keep:g}%", extent])
    marks = {}
    quantiles = []
    for part, value in histogram.quantiles.items():
        if math.isfinite(value):  # without a score there is no quantile, nor a place for a mark
            marks[f"{part:.0%}"] = value
            quantiles.append([f"{part:.0%}", f"{value:.4f}"])
    if flags.png is not None:
        # A picture is passed on without the terminal's text, so it holds the figures, too.
        note = "; ".join(" ".join(row) for row in [*rows, *best])
        edges_and_counts = (histogram.edges, histogram.counts)
        picture = draw_histogram(f"Scores in {flags.folder}", edges_and_counts, marks, threshold, note)
        common.write("--png", flags.png, picture)
    if histogram.scored:
        counts = histogram.counts.reshape(-1, 3).sum(axis=1)  # three bins in a line: 20 lines
        lines = []
        for edge, count in zip(histogram.edges[:-1:3], counts, strict=True):
            length = math.ceil(50 * count / counts.max())  # rounded up: one row is not an empty bar
            bar = "#" * length
            lines.append([f"{edge:.6g}", f"{bar} {count:,}"])
        terminal.summary(*lines)
        print()
    terminal.summary(*rows, *quantiles, *best)
    return 0 if histogram.scored else 1


_PUBLISHED_COSINES = {"LAION-400M": 0.3, "LAION-5B": 0.28}
"""Least cosines of CLIP ViT-B/32 that collections of English pairs were filtered by: Schuhmann et al., 2021
(arXiv:2111.02114) and 2022 (arXiv:2210.08402)."""


def _filter(flags: argparse.Namespace) -> int:
    """Write kept rows, or their uids; 1 where no row is kept."""
    from capeval_core.integrations.shards import filter_shards, rule_of, write_uids
    from capeval_core.integrations.shards.outputs import outputs_in

    if (flags.keep is None) == (flags.min is None):
        raise ValueError("pass either --keep SHARE or --min X: which rows are good enough?")
    if (flags.output is None) == (flags.uids is None):
        raise ValueError("pass either --output FOLDER or --uids FILE: what is written?")
    with naming({"least": "min"}, flags=True):  # Python has a function of the flag's name
        rule = rule_of(flags.folder, keep=flags.keep, least=flags.min, part=flags.part)
    threshold = f"{rule.name} >= {rule.least:.6g}"
    if flags.uids is not None:
        uids = write_uids(flags.folder, flags.uids, rule)
        terminal.summary(["kept", f"{uids:,} uids"], ["rule", threshold], ["uids", flags.uids])
        return 0 if uids else 1
    with (
        terminal.interruptible("kept shards stay: run the same command again to resume"),
        tqdm(total=len(outputs_in(flags.folder)), unit="shard", disable=None) as bar,
    ):
        counts = filter_shards(flags.folder, flags.output, rule, progress=bar.update)
    share = counts.rows_kept / counts.rows if counts.rows else 0.0
    extent = counted(counts.shards, "shard")
    if counts.skipped:
        extent += f" ({counts.skipped:,} finished before)"
    terminal.summary(
        ["shards", extent],
        ["kept", f"{counts.rows_kept:,} of {counts.rows:,} rows, {share:.2%}"],
        ["left out", f"{counts.below:,} below, {counts.failed:,} without a score"],
        ["records", f"{counts.records_kept:,} of {counts.records:,}"],
        ["rule", threshold],
        *_published_rules(flags.folder),
    )
    common.tell_first("why rows have no score:", _reasons(counts.failures.rows))
    return 0 if counts.rows_kept else 1


def _published_rules(folder: str) -> list[list[str]]:
    """What published thresholds of cosines would keep here, if the scores have cosines."""
    from capeval_core.integrations.shards.filter import Rule, cosine_factor, share_above

    factor = cosine_factor(folder)
    if not factor:
        return []
    rows = []
    for collection, cosine in _PUBLISHED_COSINES.items():
        share = share_above(folder, Rule(cosine, "cosine"))
        # Scores are cosines times a factor, so that the threshold of one is one of the other.
        condition = f"cosine >= {cosine:g} (score >= {cosine * factor:.4g})"
        rows.append([collection, f"{condition} would keep {share:.2%}"])
    return rows
