"""`capeval shards`: a collection of captioned images, one file of scores per shard."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from capeval_core.commands.arguments import add_flags, chosen, in_words_of_the_user
from capeval_core.commands.interrupts import interruptible
from capeval_core.commands.metrics import add_media_choice, command_of, read_metric
from capeval_core.commands.outputs import tell_reasons
from capeval_core.commands.terminal import WHOLE_LINES, Parser, complain, paragraph, table
from capeval_core.integrations.shards import BatchScorer, ShardResult
from capeval_core.integrations.shards.columns import check_columns
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.plan import (
    MANIFEST,
    PlannedShard,
    existing,
    plan_shards,
    refuse_other_scores,
    write_manifest,
)
from capeval_core.integrations.shards.shard import images_folder, settings_of
from capeval_core.integrations.shards.workers import (
    FailedShard,
    Workers,
    check_ray,
    score_one,
    score_shards,
)
from capeval_core.metric import CaptionMetric

COMMANDS = {
    "score": "score every shard of a collection into a file of its own",
    "merge": "one table of all scores",
    "check": "whether every uid is there once and every signature equal",
    "histogram": "the distribution of the scores, and the threshold that keeps the best",
}
_OF_ONE_RUN = {"rows", "on_error", "evidence"}
"""Options that mean nothing here: a target is kept or written anew, and a broken image costs its row."""
_SILENCE = 60.0
"""Seconds between two lines about the progress where there is no terminal."""
FILES = (
    "A shard is Parquet (images as bytes or paths), a tar of webdataset, or JSON lines with --images "
    "FOLDER. Paths may be addresses of fsspec, such as s3://bucket/in/*.parquet. A shard that is finished "
    "is skipped, so an interrupted run goes on where it stopped; other settings, such as another folder of "
    "--images, need another --output."
)


def run(arguments: list[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name == "score":
        return _score(rest)
    if name in COMMANDS:
        from capeval_core.commands import shards_output

        status: int = getattr(shards_output, f"run_{name}")(rest)
        return status
    parser = Parser(
        prog="capeval shards",
        usage="capeval shards {" + ",".join(COMMANDS) + "} ...",
        description="Score collections that one machine, or one run, is too small for.",
        epilog="commands:\n" + table(list(COMMANDS.items()), indent="  ") + "\n\n" + paragraph(FILES),
    )
    parser.introduce(arguments, f"the command comes first: one of {', '.join(COMMANDS)}")


def _score(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        usage = "capeval shards score METRIC --input 'in/*.parquet' --output out/ [options]"
        epilog = f"`capeval shards score METRIC --help` shows all options. {FILES}"
        parser = Parser(prog="capeval shards score", usage=usage, epilog=paragraph(epilog))
        parser.introduce(arguments, "the metric comes first: capeval shards score METRIC ...")
    metric, rest = read_metric("capeval shards score", arguments)
    flags = _parser(metric).read(rest)
    workers = Workers(flags.workers, flags.gpus_per_worker, flags.ray)
    _check_workers(workers)
    with in_words_of_the_user(metric.Options):
        scorer = BatchScorer(metric.name, **_media(metric), **chosen(flags, metric.Options))
    shards = plan_shards(flags.input, flags.output)
    there = existing(shards, flags.output)
    with in_words_of_the_user(metric.Options):
        images = flags.images
        if images is not None:
            place = images_folder(images) if flags.ray is None else Place.of("images", images)
            images = place.path if place.is_local else images  # workers may have other current folders
        stamp = settings_of(scorer, flags.columns)  # which opens the weights: missing ones end here
        refuse_other_scores(there, stamp, images)
    if len(there) == len(shards) and not flags.retry_failed:
        workers = Workers(1)  # there is nothing to do for others
    settings = {"images": images, "columns": flags.columns, "retry_failed": flags.retry_failed}
    kept = "shards that are finished are kept: run the same command again to go on"
    with interruptible(kept), in_words_of_the_user(metric.Options):
        return _run(metric, scorer, shards, flags, workers, settings)


def _run(
    metric: type[CaptionMetric],
    scorer: BatchScorer,
    shards: list[PlannedShard],
    flags: argparse.Namespace,
    workers: Workers,
    settings: dict[str, Any],
) -> int:
    start = time.monotonic()
    with _Progress(len(shards)) as progress:
        outcomes: Iterable[ShardResult | FailedShard]
        if not workers.on_ray:
            settings = {**settings, "progress": progress.add}
            outcomes = (score_one(shard, scorer, settings) for shard in shards)
        else:
            complain("starting Ray" if workers.address is None else f"connecting to Ray at {workers.address}")
            outcomes = score_shards(shards, scorer, workers, settings)
        results, failures = [], {}
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
    print(_summary(metric, results, len(failures), time.monotonic() - start, manifest), flush=True)
    tell_reasons(_reasons(failures), len(shards), "shards")
    if before := sum(result.failed for result in results if result.skipped):
        rows = "row" if before == 1 else "rows"
        complain(f"{before:,} {rows} failed in shards that were finished before: --retry-failed scores again")
    pairs, failed = sum(result.rows for result in results), sum(result.failed for result in results)
    for result in [result for result in results if result.error][:1]:
        complain(f"the first row that failed, in {result.source}: {result.error} (others: column `error`)")
    return 1 if failures or (pairs and failed == pairs) else 0


def _reasons(failures: dict[str, str]) -> list[str]:
    """Why each shard has no scores; a reason that several share stands without their addresses."""
    reasons = {source: _about(source, reason) for source, reason in failures.items()}
    counts = Counter(reasons.values())
    return [why if counts[why] > 1 else f"{source}: {why}" for source, why in reasons.items()]


def _about(source: str, reason: str) -> str:
    """A reason without the address that it begins with."""
    return reason.removeprefix(source).lstrip(": ")


class _Progress:
    """Shards, pairs and pairs per second: a bar on a terminal, else a line a minute."""

    def __init__(self, shards: int) -> None:
        self._bar: Any = tqdm(total=shards, unit="shard", disable=None)
        self._shards, self._finished, self._pairs = shards, 0, 0
        self._start = self._spoken = time.monotonic()

    def add(self, pairs: int) -> None:
        """Count pairs that were scored."""
        self._pairs += pairs
        self._show()

    def finish(self, outcome: ShardResult | FailedShard, *, elsewhere: bool) -> None:
        """Count a shard, and its pairs unless they were counted as they were scored."""
        self._finished += 1
        self._bar.update()
        self.add(
            outcome.rows if elsewhere and isinstance(outcome, ShardResult) and not outcome.skipped else 0
        )

    def _show(self) -> None:
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


def _summary(
    metric: type[CaptionMetric], results: list[ShardResult], failures: int, seconds: float, manifest: str
) -> str:
    pairs, rows = sum(result.scored for result in results), sum(result.rows for result in results)
    before = sum(result.skipped for result in results)
    notes = [f"{before:,} finished before"] if before else []
    notes += [f"{failures:,} without scores"] if failures else []
    counts = f"{sum(r.failed for r in results):,} failed, {sum(r.truncated for r in results):,} truncated"
    rate = (
        f"{_rate(pairs / seconds)} pairs/s ({pairs:,} pairs in {seconds:,.1f} s)"
        if pairs
        else "nothing to do"
    )
    number = len(results) + failures
    shards = f"{number:,} shard{'' if number == 1 else 's'}" + (f" ({', '.join(notes)})" if notes else "")
    lines = [
        [metric.title, shards],
        ["pairs", f"{rows:,} ({counts})"],
        ["columns", _columns_of(results) or "n/a"],
        ["rate", rate],
        ["manifest", manifest],
        ["signature", results[0].signature if results else "n/a"],
    ]
    return table(lines, width=WHOLE_LINES)


def _columns_of(results: list[ShardResult]) -> str:
    """What each column was read for, in all shards."""
    used: dict[str, dict[str, None]] = {}
    for result in results:
        for role, names in result.columns.items():
            used.setdefault(role, {}).update(dict.fromkeys(names))
    return ", ".join(f"{role}={'|'.join(names)}" for role, names in used.items())


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


def _media(metric: type[CaptionMetric]) -> dict[str, str]:
    return {} if metric.variant is None else {"media": metric.variant}


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
    parser = Parser(
        prog=f"capeval shards score {metric.name}",
        usage=f"capeval shards score {command_of(metric)} --input 'in/*.parquet' --output out/ [options]",
        description=paragraph(f"{metric.title}: {metric.summary}"),
        epilog=paragraph(FILES),
    )
    files = parser.add_argument_group("files")
    files.add_argument("--input", metavar="PATTERN", nargs="+", required=True, help="the shards")
    files.add_argument("--output", metavar="FOLDER", required=True, help="for their scores, a file each")
    files.add_argument(
        "--manifest",
        metavar="NAME",
        type=_name,
        default=MANIFEST,
        help=f"of the file about this run in that folder (default: {MANIFEST})",
    )
    files.add_argument("--images", metavar="FOLDER", help="that paths of images are relative to")
    files.add_argument(
        "--retry-failed",
        action="store_true",
        help="score rows of finished shards again that failed, e.g. because their image was not there",
    )
    files.add_argument(
        "--columns",
        metavar="WHAT=COLUMN,...",
        type=_columns,
        help="columns that are not found by themselves: uid=...,caption=...,image=...,references=...",
    )
    work = parser.add_argument_group("workers")
    work.add_argument(
        "--workers", metavar="N", type=int, default=1, help="processes, on Ray if more than 1 (default: 1)"
    )
    work.add_argument(
        "--gpus-per-worker", metavar="X", type=float, help="default: the GPUs that there are, at most 1 each"
    )
    work.add_argument("--ray", metavar="ADDRESS", help="of a Ray cluster; default: this machine alone")
    add_media_choice(files, [metric])
    add_flags(parser, metric.Options, leave_out=_OF_ONE_RUN)
    return parser
