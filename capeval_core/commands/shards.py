"""`capeval shards`: a collection of captioned images, one file of scores per shard."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
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
from capeval_core.integrations.shards import folder as outputs
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.readers import check_columns
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.shard import ShardResult, images_folder, settings_of
from capeval_core.integrations.shards.workers import Outcome, score_one, score_shards
from capeval_core.metric import CaptionMetric
from capeval_core.project import install_command
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
_FILES = (
    "A shard is Parquet (images as bytes or paths), a tar of webdataset, or JSON lines with --images "
    "FOLDER. Paths may be addresses of fsspec, such as s3://bucket/in/*.parquet. A shard that is finished "
    "is skipped, so an interrupted run goes on where it stopped; other settings, such as another folder of "
    "--images, need another --output."
)


def run(arguments: list[str]) -> int:
    name, rest = first_named(arguments, "shards", _COMMANDS, shards=_FILES)
    return {"score": _score, "merge": _merge, "check": _check, "histogram": _histogram}[name](rest)


def _score(arguments: list[str]) -> int:
    usage = "--input 'in/*.parquet' --output out/ [options]"
    titles = {name: metric.title for name, metric in metric_classes().items()}
    name, rest = first_named(arguments, "shards score", titles, others=True, shards=_FILES)
    (metric,), rest = common.read_metrics("shards score", [name], rest)
    flags = _parser(metric, usage).read(rest)
    on_ray = _needs_ray(flags)
    own = {} if metric.variant is None else {"media": metric.variant}
    scorer = BatchScorer(metric.name, **own, **common.chosen(flags, metric.Options))
    shards = outputs.plan_shards(flags.input, flags.output)
    there = outputs.existing(shards, flags.output)
    images = flags.images
    if images is not None:
        place = images_folder(images) if flags.ray is None else Place.of("images", images)
        images = place.path if place.is_local else images  # workers may have other current folders
    stamp = settings_of(scorer, flags.columns)  # which opens the weights: missing ones end here
    outputs.refuse_other_scores(there, stamp, images)
    on_ray &= len(there) < len(shards) or flags.retry_failed  # else there is nothing to do for others
    settings = {"images": images, "columns": flags.columns, "retry_failed": flags.retry_failed}
    results, failures = list[ShardResult](), dict[str, str]()
    start, pairs, quiet = time.monotonic(), 0, not sys.stderr.isatty()

    def add(scored: int) -> None:
        nonlocal pairs
        pairs += scored
        bar.set_postfix_str(f"{pairs:,} pairs, {_rate(pairs, time.monotonic() - start)}", refresh=False)
        bar.update(0)

    kept = "shards that are finished are kept: run the same command again to go on"
    lines: dict[str, Any] = {"delay": 60, "mininterval": 60} if quiet else {}  # a line a minute
    with interruptible(kept), tqdm(total=len(shards), unit="shard", miniters=0, **lines) as bar:
        outcomes: Iterable[Outcome]
        if on_ray:
            complain("starting Ray" if flags.ray is None else f"connecting to Ray at {flags.ray}")
            cluster = {"workers": flags.workers, "gpus": flags.gpus_per_worker, "address": flags.ray}
            outcomes = score_shards(shards, scorer, settings, **cluster)
        else:
            outcomes = (score_one(shard, scorer, {**settings, "progress": add}) for shard in shards)
        for outcome in outcomes:
            bar.update()
            if isinstance(outcome, ShardResult):
                results.append(outcome)
                add(outcome.scored if on_ray else 0)
            elif outcome.ends:
                raise OSError(outcome.reason)
            else:
                failures[outcome.source] = outcome.reason
    outputs.write_manifest(flags.output, results, failures, flags.manifest)
    seconds = time.monotonic() - start
    manifest = f"{flags.output.rstrip('/')}/{flags.manifest}"  # as the user names it
    rows, failed = sum(result.rows for result in results), sum(result.failed for result in results)
    _print_summary(metric, results, len(failures), seconds, manifest)
    common.tell_reasons(_reasons(failures), len(shards), "shards")
    if before := sum(result.failed for result in results if result.skipped):
        text = _counted(before, "row")
        complain(f"{text} failed in shards that were finished before: --retry-failed scores again")
    if broken := next((result for result in results if result.error), None):
        complain(f"the first row that failed, in {broken.source}: {broken.error} (others: column `error`)")
    return 1 if failures or (rows and failed == rows) else 0


def _reasons(failures: dict[str, str]) -> list[str]:
    """Why each shard has no scores; a reason that several share stands without their addresses."""
    reasons = {source: reason.removeprefix(source).lstrip(": ") for source, reason in failures.items()}
    counts = Counter(reasons.values())
    return [why if counts[why] > 1 else f"{source}: {why}" for source, why in reasons.items()]


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
    rate = f"{_rate(pairs, seconds)} ({pairs:,} pairs in {seconds:,.1f} s)"
    summary(
        [metric.title, _counted(len(results) + failures, "shard") + (f" ({notes})" if notes else "")],
        ["pairs", f"{rows:,} ({failed:,} failed, {truncated:,} truncated)"],
        ["columns", ", ".join(f"{role}={'|'.join(names)}" for role, names in columns.items()) or "n/a"],
        ["rate", rate if pairs else "nothing to do"],
        ["manifest", manifest],
        ["signature", results[0].signature if results else "n/a"],
    )


def _rate(pairs: int, seconds: float) -> str:
    rate = pairs / max(seconds, 1e-9)
    return f"{rate:,.{1 if rate < 10 else 0}f} pairs/s"


def _needs_ray(flags: argparse.Namespace) -> bool:
    gpus = flags.gpus_per_worker
    if flags.workers < 1:
        raise ValueError(f"--workers {flags.workers}: expected at least 1")
    if gpus is not None and not 0 <= gpus < math.inf:
        raise ValueError(f"--gpus-per-worker {gpus:g}: expected a number of at least 0")
    on_ray = flags.workers > 1 or flags.ray is not None
    if on_ray and find_spec("ray") is None:
        raise ValueError(f"several --workers, and --ray, need Ray: {install_command('ray')}")
    if gpus is not None and not on_ray:
        raise ValueError("--gpus-per-worker is for several --workers, or --ray: use --device")
    return on_ray


def _name(text: str) -> str:
    if not text.endswith(".json") or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: expected the name of a file, such as manifest-3.json")
    return text


def _columns(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(all(pair) for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: expected WHAT=COLUMN,..., such as caption=alt_text")
    try:
        return check_columns({what.strip(): column.strip() for what, _, column in pairs})
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser(metric: type[CaptionMetric], usage: str) -> Parser:
    media = "" if metric.variant is None else f"--media {metric.variant} "
    about = f"{metric.title}: {metric.summary}"
    parser = Parser(f"shards score {metric.name}", f"{media}{usage}", about, _FILES)
    files = parser.add_argument_group("files")
    flag(files, "--input PATTERN", "the shards", nargs="+", required=True)
    flag(files, "--output FOLDER", "for their scores, a file each", type=str, required=True)
    text = f"of the file about this run in that folder (default: {outputs.MANIFEST})"
    flag(files, "--manifest NAME", text, type=_name, default=outputs.MANIFEST)
    flag(files, "--images FOLDER", "that paths of images are relative to", type=str)
    text = "score rows of finished shards again that failed, e.g. because their image was not there"
    flag(files, "--retry-failed", text)
    text = "columns that are not found by themselves: uid=...,caption=...,image=...,references=..."
    flag(files, "--columns WHAT=COLUMN,...", text, type=_columns)
    work = parser.add_argument_group("workers")
    flag(work, "--workers N", "processes, on Ray if more than 1 (default: 1)", default=1)
    flag(work, "--gpus-per-worker X", "default: the GPUs that there are, at most 1 each")
    flag(work, "--ray ADDRESS", "of a Ray cluster; default: this machine alone")
    words = common.media_words([metric])
    flag(files, "--media {kinds}".format(**words), words["media"])
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
    rows = outputs.merge_shards(flags.folder, flags.output)
    summary(["rows", f"{rows:,}"], ["table", flags.output])
    return 0


def _check(arguments: list[str]) -> int:
    """Whether every uid is there once, all signatures are equal, all shards whole; 1 where not."""
    about = "Check the scores of all shards: every uid once, one signature, no damage."
    found = outputs.check_shards(_folder_parser("check", "", about).read(arguments).folder)
    uids = "all unique" if not found.repeated else f"{found.repeated:,} rows repeat one"
    whole = "all whole" if not found.damaged else f"{len(found.damaged):,} damaged"
    signatures = {text: _counted(len(names), "shard") for text, names in found.signatures.items()}
    summary(
        ["shards", f"{found.shards:,} ({whole})"],
        ["rows", f"{found.rows:,} ({sum(found.failed.values()):,} failed)"],
        ["uids", uids],
        *(["signature", f"{text} ({shards})"] for text, shards in signatures.items()),
    )
    for title, lines in _complaints(found):
        more = len(lines) - _SHOWN
        if lines:
            complain("\n  ".join([title, *lines[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]))
    return 0 if found.ok else 1


def _complaints(found: outputs.ShardCheck) -> list[tuple[str, Sequence[str]]]:
    """What may be wrong: of each kind a title, and the shards or uids."""
    damaged, failed = (_counted(len(shards), "shard") for shards in (found.damaged, found.failed))
    all_rows = dict.fromkeys(found.without_scores, ", all of its rows")
    places = {uid: (f"{n} in {name}" for name, n in at.items()) for uid, at in found.duplicates.items()}
    few = sorted(found.signatures.values(), key=len)[:-1]
    return [
        (
            f"{damaged} damaged or no scores; delete them and score their shards again:",
            [f"{name} {why}" for name, why in found.damaged.items()],
        ),
        (
            f"{failed} with rows that failed; `score --retry-failed` redoes them:",
            [f"{name}: {rows:,}{all_rows.get(name, '')}" for name, rows in found.failed.items()],
        ),
        (
            f"{_counted(found.repeated, 'row')} with a uid that another row has:",
            [f"{uid!r}: {', '.join(at)}" for uid, at in places.items()],
        ),
        (
            "scores of different signatures cannot be compared; score these shards again with one:",
            [name for names in few for name in names],
        ),
        ("unfinished files, which can be deleted while no run is on:", found.unfinished),
    ]


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
    found = outputs.score_histogram(flags.folder, keep=flags.keep)
    rows = [["rows", f"{found.scored + found.failed:,} ({found.failed:,} without a score)"]]
    note = f"{found.scored:,} scores, mean {found.mean:.4f}; {found.failed:,} rows without a score"
    threshold = None
    if found.scored:
        rows += [["mean", f"{found.mean:.4f}"], ["range", f"{found.least:.4f} to {found.most:.4f}"]]
        rows += [[f"{share:.0%}", f"{value:.4f}"] for share, value in found.quantiles.items()]
        if flags.keep is not None:
            best, threshold = f"best {100 * flags.keep:g}%", found.threshold
            kept = (
                f"keeps {_counted(found.kept, 'row')}, {found.kept / found.scored:.2%} of those with a score"
            )
            rows.append([best, f"score >= {math.floor(threshold * 1e6) / 1e6:.6f} {kept}"])
            note += f"; the {best} from {threshold:.4f} on: {found.kept:,} rows"
    if flags.png is not None:
        marks = {f"{share:.0%}": value for share, value in found.quantiles.items() if math.isfinite(value)}
        bins, title = (found.edges.tolist(), found.counts.tolist()), f"Scores in {flags.folder}"
        try:
            picture = draw_histogram(title, *bins, marks, kept_from=threshold, note=note)
        except ModuleNotFoundError as error:
            raise ValueError(f"--png: {error}") from None
        common.write("--png", flags.png, (picture))
    if found.scored:
        print(_bars(found) + "\n")
    summary(*rows)
    return 0 if found.scored else 1


def _bars(found: outputs.ScoreHistogram) -> str:
    """The histogram as lines of text, three bins in each."""
    labels, counts = [f"{edge:.4f}" for edge in found.edges[:-1:3]], found.counts.reshape(-1, 3).sum(axis=1)
    wide = max(map(len, labels))
    room = terminal_width() - wide - max(len(f"{count:,}") for count in counts) - 4
    bars = ["#" * math.ceil(room * count / counts.max()) for count in counts]
    lines = zip(labels, bars, counts, strict=True)
    return "\n".join(f"{label.rjust(wide)}  {bar} {count:,}".rstrip() for label, bar, count in lines)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
