"""`capeval shards`: a collection of captioned images, one file of scores per shard."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tqdm import tqdm

from capeval_core.commands import common
from capeval_core.commands.terminal import (
    Parser,
    complain,
    first_named,
    flag,
    interruptible,
    summary,
    terminal_width,
)
from capeval_core.errors import did_you_mean
from capeval_core.integrations.shards import (
    BatchScorer,
    ScoreHistogram,
    ShardCheck,
    ShardResult,
    check_shards,
    merge_shards,
    score_histogram,
)
from capeval_core.integrations.shards.folder import (
    MANIFEST,
    existing,
    plan_shards,
    refuse_other_scores,
    write_manifest,
)
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.readers import check_columns
from capeval_core.integrations.shards.shard import images_folder, settings_of
from capeval_core.integrations.shards.workers import (
    FailedShard,
    Workers,
    check_ray,
    score_one,
    score_shards,
)
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_classes
from capeval_core.reports.figures import draw_histogram

_COMMANDS = {
    "score": "score every shard of a collection into a file of its own",
    "merge": "one table of all scores",
    "check": "whether every uid is there once and every signature equal",
    "histogram": "the distribution of the scores, and the threshold that keeps the best",
}
_OF_ONE_RUN = {"rows", "on_error", "evidence"}
"""Options that mean nothing here: a target is kept or written anew, and a broken image costs its row."""
_SHOWN = 20  # of uids or shards that something is wrong with
_SILENCE = 60.0
"""Seconds between two lines about the progress where there is no terminal."""
_FILES = (
    "A shard is Parquet (images as bytes or paths), a tar of webdataset, or JSON lines with --images "
    "FOLDER. Paths may be addresses of fsspec, such as s3://bucket/in/*.parquet. A shard that is finished "
    "is skipped, so an interrupted run goes on where it stopped; other settings, such as another folder of "
    "--images, need another --output."
)


def run(arguments: list[str]) -> int:
    about = "Score collections that one machine, or one run, is too small for."
    name, rest = first_named(arguments, "shards", "COMMAND", "...", about, _COMMANDS, epilog=_FILES)
    if name not in _COMMANDS:
        raise ValueError(f"unknown {name!r}{did_you_mean(name, _COMMANDS)} (known: {', '.join(_COMMANDS)})")
    return {"score": _score, "merge": _merge, "check": _check, "histogram": _histogram}[name](rest)


def _score(arguments: list[str]) -> int:
    usage = "--input 'in/*.parquet' --output out/ [options]"
    titles = {name: metric.title for name, metric in metric_classes().items()}
    first_named(arguments, "shards score", "METRIC", usage, _COMMANDS["score"], titles, epilog=_FILES)
    metric, rest = common.read_metric("shards score", arguments)
    flags = _parser(metric).read(rest)
    workers = Workers(flags.workers, flags.gpus_per_worker, flags.ray)
    _check_workers(workers)
    scorer = BatchScorer(
        metric.name,
        **({} if metric.variant is None else {"media": metric.variant}),
        **common.chosen(flags, metric.Options),
    )
    shards = plan_shards(flags.input, flags.output)
    there = existing(shards, flags.output)
    images = flags.images
    if images is not None:
        place = images_folder(images) if flags.ray is None else Place.of("images", images)
        images = place.path if place.is_local else images  # workers may have other current folders
    stamp = settings_of(scorer, flags.columns)  # which opens the weights: missing ones end here
    refuse_other_scores(there, stamp, images)
    if len(there) == len(shards) and not flags.retry_failed:
        workers = Workers(1)  # there is nothing to do for others
    settings: dict[str, Any] = {
        "images": images,
        "columns": flags.columns,
        "retry_failed": flags.retry_failed,
    }
    results: list[ShardResult] = []
    failures: dict[str, str] = {}
    start = time.monotonic()
    kept = "shards that are finished are kept: run the same command again to go on"
    with interruptible(kept), _Progress(len(shards)) as progress:
        outcomes: Iterable[ShardResult | FailedShard]
        if not workers.on_ray:
            settings["progress"] = progress.add
            outcomes = (score_one(shard, scorer, settings) for shard in shards)
        else:
            complain("starting Ray" if workers.address is None else f"connecting to Ray at {workers.address}")
            outcomes = score_shards(shards, scorer, workers, settings)
        for outcome in outcomes:
            progress.finish(outcome, elsewhere=workers.on_ray)
            if isinstance(outcome, ShardResult):
                results.append(outcome)
            elif outcome.ends:
                raise OSError(outcome.reason)
            else:
                failures[outcome.source] = outcome.reason
    write_manifest(flags.output, results, failures, flags.manifest)
    manifest = f"{flags.output.rstrip('/')}/{flags.manifest}"  # as the user names it
    _print_summary(metric, results, len(failures), time.monotonic() - start, manifest)
    common.tell_reasons(_reasons(failures), len(shards), "shards")
    if before := sum(result.failed for result in results if result.skipped):
        rows = _counted(before, "row")
        complain(f"{rows} failed in shards that were finished before: --retry-failed scores again")
    if broken := next((result for result in results if result.error), None):
        complain(f"the first row that failed, in {broken.source}: {broken.error} (others: column `error`)")
    pairs, failed = sum(result.rows for result in results), sum(result.failed for result in results)
    return 1 if failures or (pairs and failed == pairs) else 0


def _reasons(failures: dict[str, str]) -> list[str]:
    """Why each shard has no scores; a reason that several share stands without their addresses."""
    reasons = {source: reason.removeprefix(source).lstrip(": ") for source, reason in failures.items()}
    counts = Counter(reasons.values())
    return [why if counts[why] > 1 else f"{source}: {why}" for source, why in reasons.items()]


class _Progress:
    """Shards, pairs and pairs per second: a bar on a terminal, else a line a minute."""

    def __init__(self, shards: int) -> None:
        self._bar: Any = tqdm(total=shards, unit="shard", disable=None)
        self._shards, self._finished, self._pairs = shards, 0, 0
        self._start = self._spoken = time.monotonic()

    def finish(self, outcome: ShardResult | FailedShard, *, elsewhere: bool) -> None:
        """Count a shard, and its pairs unless they were counted as they were scored."""
        self._finished += 1
        self._bar.update()
        scored = isinstance(outcome, ShardResult) and not outcome.skipped
        self.add(outcome.rows if elsewhere and scored else 0)  # type: ignore[union-attr]

    def add(self, pairs: int) -> None:
        """Count pairs that were scored."""
        self._pairs += pairs
        now = time.monotonic()
        text = f"{self._pairs:,} pairs, {_rate(self._pairs / max(now - self._start, 1e-9))} pairs/s"
        self._bar.set_postfix_str(text, refresh=False)
        if self._bar.disable and now - self._spoken > _SILENCE:
            complain(f"{self._finished:,} of {self._shards:,} shards, {text}")
            self._spoken = now

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _print_summary(
    metric: type[CaptionMetric], results: list[ShardResult], failures: int, seconds: float, manifest: str
) -> None:
    before, rows, failed, truncated, pairs = (
        sum(getattr(result, name) for result in results)
        for name in ("skipped", "rows", "failed", "truncated", "scored")
    )
    counts = {"finished before": before, "without scores": failures}
    notes = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    columns: dict[str, dict[str, None]] = {}  # what each was read for, in all shards
    for result in results:
        for role, names in result.columns.items():
            columns.setdefault(role, {}).update(dict.fromkeys(names))
    rate = f"{_rate(pairs / seconds)} pairs/s ({pairs:,} pairs in {seconds:,.1f} s)"
    summary(
        [metric.title, _counted(len(results) + failures, "shard") + (f" ({notes})" if notes else "")],
        ["pairs", f"{rows:,} ({failed:,} failed, {truncated:,} truncated)"],
        ["columns", ", ".join(f"{role}={'|'.join(names)}" for role, names in columns.items()) or "n/a"],
        ["rate", rate if pairs else "nothing to do"],
        ["manifest", manifest],
        ["signature", results[0].signature if results else "n/a"],
    )


def _rate(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 10 else f"{rate:,.0f}"


def _check_workers(workers: Workers) -> None:
    if workers.number < 1:
        raise ValueError(f"--workers {workers.number}: expected at least 1")
    if workers.gpus is not None and not 0 <= workers.gpus < math.inf:
        raise ValueError(f"--gpus-per-worker {workers.gpus:g}: expected a number of at least 0")
    if workers.on_ray:
        check_ray()
    elif workers.gpus is not None:
        raise ValueError("--gpus-per-worker is for several --workers, or --ray: use --device")


def _name(text: str) -> str:
    if not text.endswith(".json") or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: expected the name of a file, such as manifest-3.json")
    return text


def _columns(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(all(pair) for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: expected WHAT=COLUMN,..., such as caption=alt_text")
    columns = {what.strip(): column.strip() for what, _, column in pairs}
    try:
        return check_columns(columns)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser(metric: type[CaptionMetric]) -> Parser:
    media = "" if metric.variant is None else f"--media {metric.variant} "
    parser = Parser(
        f"shards score {metric.name}",
        f"{media}--input 'in/*.parquet' --output out/ [options]",
        f"{metric.title}: {metric.summary}",
        _FILES,
    )
    files = parser.add_argument_group("files")
    flag(files, "--input PATTERN", "the shards", nargs="+", required=True)
    flag(files, "--output FOLDER", "for their scores, a file each", type=str, required=True)
    text = f"of the file about this run in that folder (default: {MANIFEST})"
    flag(files, "--manifest NAME", text, type=_name, default=MANIFEST)
    flag(files, "--images FOLDER", "that paths of images are relative to", type=str)
    text = "score rows of finished shards again that failed, e.g. because their image was not there"
    flag(files, "--retry-failed", text)
    text = "columns that are not found by themselves: uid=...,caption=...,image=...,references=..."
    flag(files, "--columns WHAT=COLUMN,...", text, type=_columns)
    work = parser.add_argument_group("workers")
    flag(work, "--workers N", "processes, on Ray if more than 1 (default: 1)", default=1)
    flag(work, "--gpus-per-worker X", "default: the GPUs that there are, at most 1 each")
    flag(work, "--ray ADDRESS", "of a Ray cluster; default: this machine alone")
    common.add_media_choice(files, [metric])
    common.add_flags(parser, metric.Options, leave_out=_OF_ONE_RUN)
    return parser


# what becomes of the outputs


def _folder_parser(name: str, usage: str, description: str) -> Parser:
    epilog = "FOLDER is where `capeval shards score` wrote, a path or an address such as s3://..."
    parser = Parser(f"shards {name}", f"FOLDER {usage}".rstrip(), description, epilog)
    flag(parser, "folder FOLDER", "the scores of shards", type=str)
    return parser


def _merge(arguments: list[str]) -> int:
    about = "Join the scores of all shards into one Parquet table."
    parser = _folder_parser("merge", "--output TABLE.parquet", about)
    flag(parser, "--output TABLE.parquet", "the table to write", required=True)
    flags = parser.read(arguments)
    rows = merge_shards(flags.folder, flags.output)
    summary(["rows", f"{rows:,}"], ["table", flags.output])
    return 0


def _check(arguments: list[str]) -> int:
    """Whether every uid is there once, all signatures are equal, all shards whole; 1 where not."""
    about = "Check the scores of all shards: every uid once, one signature, no damage."
    found = check_shards(_folder_parser("check", "", about).read(arguments).folder)
    uids = "all unique" if not found.repeated else f"{found.repeated:,} rows repeat one"
    whole = "all whole" if not found.damaged else f"{len(found.damaged):,} damaged"
    summary(
        ["shards", f"{found.shards:,} ({whole})"],
        ["rows", f"{found.rows:,} ({sum(found.failed.values()):,} failed)"],
        ["uids", uids],
        *(["signature", f"{text} ({_shards(names)})"] for text, names in found.signatures.items()),
    )
    for title, lines in _complaints(found):
        more = len(lines) - _SHOWN
        complain("\n  ".join([title, *lines[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]))
    return 0 if found.ok else 1


def _complaints(found: ShardCheck) -> Iterable[tuple[str, Sequence[str]]]:
    """What is wrong: of each kind a title, and the shards or uids."""
    if found.damaged:
        title = f"{_shards(found.damaged)} damaged or no scores; delete them and score their shards again:"
        yield title, [f"{name} {why}" for name, why in found.damaged.items()]
    if found.failed:
        title = f"{_shards(found.failed)} with rows that failed; `score --retry-failed` redoes them:"
        every = dict.fromkeys(found.without_scores, ", all of its rows")
        yield title, [f"{name}: {rows:,}{every.get(name, '')}" for name, rows in found.failed.items()]
    if found.repeated:
        title = f"{_counted(found.repeated, 'row')} with a uid that another row has:"
        places = [
            f"{uid!r}: {', '.join(f'{times} in {name}' for name, times in counts.items())}"
            for uid, counts in found.duplicates.items()
        ]
        yield title, places
    if len(found.signatures) > 1:
        few = sorted(found.signatures.values(), key=len)[:-1]
        title = "scores of different signatures cannot be compared; score these shards again with one:"
        yield title, [name for names in few for name in names]
    if found.unfinished:
        yield "unfinished files, which can be deleted while no run is on:", found.unfinished


def _histogram(arguments: list[str]) -> int:
    """The distribution of all scores; 1 where there is no score."""
    about = "The distribution of the scores of all shards."
    parser = _folder_parser("histogram", "[--keep SHARE] [--png OUT]", about)
    flag(parser, "--keep SHARE", "the threshold that keeps the best share, e.g. 0.3", type=float)
    flag(parser, "--png OUT", "draw the histogram to this file")
    flags = parser.read(arguments)
    common.check_output("--png", flags.png)
    if flags.keep is not None and not 0 < flags.keep <= 1:
        raise ValueError(f"--keep {flags.keep:g}: expected a share above 0, at most 1, such as 0.3")
    found = score_histogram(flags.folder, keep=flags.keep)
    if flags.png is not None:
        common.write("--png", flags.png, _picture(found, flags.folder))
    if found.scored:
        print(_bars(found) + "\n")
    summary(*_numbers(found))
    return 0 if found.scored else 1


def _numbers(found: ScoreHistogram) -> list[list[str]]:
    rows = [["rows", f"{found.scored + found.failed:,} ({found.failed:,} without a score)"]]
    if found.scored:
        rows += [["mean", f"{found.mean:.4f}"], ["range", f"{found.least:.4f} to {found.most:.4f}"]]
        rows += [[f"{share:.0%}", f"{value:.4f}"] for share, value in found.quantiles.items()]
    if found.keep is not None and found.scored:
        share, threshold = found.kept / found.scored, math.floor(found.threshold * 1e6) / 1e6
        kept = f"keeps {_counted(found.kept, 'row')}, {share:.2%} of those with a score"
        rows.append([f"best {100 * found.keep:g}%", f"score >= {threshold:.6f} {kept}"])
    return rows


def _bars(found: ScoreHistogram) -> str:
    """The histogram as lines of text, three bins in each."""
    labels, counts = [f"{edge:.4f}" for edge in found.edges[:-1:3]], found.counts.reshape(-1, 3).sum(axis=1)
    wide = max(map(len, labels))
    room = terminal_width() - wide - max(len(f"{count:,}") for count in counts) - 4
    bars = ["#" * math.ceil(room * count / counts.max()) for count in counts]
    lines = zip(labels, bars, counts, strict=True)
    return "\n".join(f"{label.rjust(wide)}  {bar} {count:,}".rstrip() for label, bar, count in lines)


def _picture(found: ScoreHistogram, folder: str) -> bytes:
    marks = {f"{share:.0%}": value for share, value in found.quantiles.items() if math.isfinite(value)}
    note = f"{found.scored:,} scores, mean {found.mean:.4f}; {found.failed:,} rows without a score"
    threshold = found.threshold if found.keep is not None and found.scored else None
    if threshold is not None and found.keep is not None:
        note += f"; the best {100 * found.keep:g}% from {threshold:.4f} on: {found.kept:,} rows"
    edges, counts = found.edges.tolist(), found.counts.tolist()
    try:
        return common.png_bytes(
            draw_histogram(f"Scores in {folder}", edges, counts, marks, kept_from=threshold, note=note)
        )
    except ModuleNotFoundError as error:
        raise ValueError(f"--png: {error}") from None


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shards(names: Collection[str]) -> str:
    return _counted(len(names), "shard")
