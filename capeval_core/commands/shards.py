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

from capeval_core.commands import common, terminal
from capeval_core.project import install_command
from capeval_core.registry import metric_classes
from capeval_core.reports.figures import draw_histogram

# What imports torch is imported where it is used, so that `capeval shards --help` does not wait.
_OF_ONE_RUN = {"rows", "on_error", "evidence"}
"""Options that mean nothing here: a target is kept or written anew, and a broken image costs its row."""


def run(arguments: list[str]) -> int:
    outputs = {"merge": _merge, "check": _check, "histogram": _histogram}
    kinds = terminal.kinds_of("shards", "score", *outputs)
    name, rest = terminal.first_named(arguments, "shards", kinds)
    if name == "score":
        return _score(rest)
    return outputs[name](terminal.parser_of(f"shards {name}", "shards outputs", f"shards {name}").read(rest))


def _score(arguments: list[str]) -> int:
    titles = {name: metric.title for name, metric in metric_classes().items()}
    name, rest = terminal.first_named(arguments, "shards score", titles, others=True)
    (metric,), rest = common.read_metrics("shards score", [name], rest)
    words = {"about": f"{metric.title}: {metric.summary}", **common.media_words([metric])}
    command = f"shards score {common.command_of(metric)}"
    parser = terminal.parser_of(command, "shards score METRIC", **words)
    terminal.add_options(parser, "options of the metric", {metric.name: metric.Options}, _OF_ONE_RUN)
    flags = parser.read(rest)
    columns, on_ray = _check_flags(flags)
    from capeval_core.integrations.shards import BatchScorer, ShardResult
    from capeval_core.integrations.shards.places import Place
    from capeval_core.integrations.shards.plan import (
        images_folder,
        plan_shards,
        refuse_other_scores,
        settings_of,
    )
    from capeval_core.integrations.shards.run import score_one, score_shards, write_manifest

    scorer = BatchScorer(metric.name, media=metric.variant, **common.chosen(flags, metric.Options))
    shards = plan_shards(flags.input, flags.output)
    images = flags.images
    if images is not None:
        place = images_folder(images) if flags.ray is None else Place.of("images", images)
        images = place.path if place.is_local else images  # workers may have other current folders
    stamp = settings_of(scorer, columns)  # which opens the weights: missing ones end here
    there = refuse_other_scores(shards, flags.output, stamp, images)
    on_ray &= there < len(shards) or flags.retry_failed  # else there is nothing to do for others
    settings = {"images": images, "columns": columns, "retry_failed": flags.retry_failed}
    results, failures = list[Any](), dict[str, str]()
    start, pairs = time.monotonic(), 0

    def add(scored: int) -> None:
        nonlocal pairs
        pairs += scored
        bar.set_postfix_str(f"{pairs:,} pairs", refresh=False)
        bar.update(0)

    kept = "shards that are finished are kept: run the same command again to go on"
    # A line a minute where there is no terminal.
    lines: dict[str, Any] = {} if sys.stderr.isatty() else {"delay": 60, "mininterval": 60}
    with terminal.interruptible(kept), tqdm(total=len(shards), unit="shard", miniters=0, **lines) as bar:
        if on_ray:
            terminal.complain("starting Ray" if flags.ray is None else f"connecting to Ray at {flags.ray}")
            cluster = {"workers": flags.workers, "gpus": flags.gpus_per_worker, "address": flags.ray}
            outcomes: Iterable[Any] = score_shards(shards, scorer, settings, **cluster)
        else:
            outcomes = (score_one(shard, scorer, {**settings, "progress": add}) for shard in shards)
        for outcome in outcomes:
            bar.update()
            if isinstance(outcome, ShardResult):
                results.append(outcome)
                add(outcome.scored if on_ray else 0)
            elif outcome.ends_run:
                raise OSError(outcome.reason)
            else:
                failures[outcome.source] = outcome.reason
    write_manifest(flags.output, results, failures, flags.manifest)
    seconds, rate = time.monotonic() - start, "nothing to do"
    if pairs:
        rate = f"{pairs / max(seconds, 1e-9):,.1f} pairs/s ({pairs:,} pairs in {seconds:,.1f} s)"
    manifest = f"{flags.output.rstrip('/')}/{flags.manifest}"
    return _tell(metric.title, results, failures, ["rate", rate], ["manifest", manifest])


def _tell(title: str, results: list[Any], failures: dict[str, str], *more: Sequence[str]) -> int:
    """Print what became of all shards; the exit status."""
    finished, shards = [result for result in results if result.skipped], len(results) + len(failures)
    names = "rows", "failed", "truncated"
    rows, failed, truncated = (sum(getattr(result, name) for result in results) for name in names)
    read = [f"{role}={'|'.join(names)}" for one in results for role, names in one.columns.items()]
    counts = {"finished before": len(finished), "without scores": len(failures)}
    notes = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    terminal.summary(
        [title, _counted(shards, "shard") + (f" ({notes})" if notes else "")],
        ["pairs", f"{rows:,} ({failed:,} failed, {truncated:,} truncated)"],
        ["columns", ", ".join(dict.fromkeys(read)) or "n/a"],
        *more,
        ["signature", results[0].signature if results else "n/a"],
    )
    # A reason that several shards share stands without their addresses.
    reasons = {source: reason.removeprefix(source).lstrip(": ") for source, reason in failures.items()}
    shared = Counter(reasons.values())
    lines = [why if shared[why] > 1 else f"{source}: {why}" for source, why in reasons.items()]
    common.tell_reasons(lines, shards, "shards")
    if before := sum(result.failed for result in finished):
        text = _counted(before, "row")
        terminal.complain(f"{text} failed in shards that were finished before: --retry-failed scores again")
    if broken := next((result for result in results if result.error), None):
        reason = f"{broken.error} (others: column `error`)"
        terminal.complain(f"the first row that failed, in {broken.source}: {reason}")
    return 1 if failures or 0 < rows == failed else 0


def _check_flags(flags: argparse.Namespace) -> tuple[dict[str, str], bool]:
    """The columns that are named, and whether Ray is to be used."""
    from capeval_core.integrations.shards.readers import check_columns

    gpus, pairs = flags.gpus_per_worker, [pair.partition("=") for pair in (flags.columns or "").split(",")]
    if flags.columns is not None and not all(all(pair) for pair in pairs):
        raise ValueError(f"--columns {flags.columns}: expected WHAT=COLUMN,..., such as caption=alt_text")
    if not flags.manifest.endswith(".json") or "/" in flags.manifest:
        raise ValueError(f"--manifest {flags.manifest}: expected the name of a file, such as manifest-3.json")
    on_ray = flags.workers > 1 or flags.ray is not None
    if on_ray and find_spec("ray") is None:
        raise ValueError(f"several --workers, and --ray, need Ray: {install_command('ray')}")
    if gpus is not None and not on_ray:
        raise ValueError("--gpus-per-worker is for several --workers, or --ray: use --device")
    return check_columns({what.strip(): column.strip() for what, _, column in pairs if what}), on_ray


# what becomes of the outputs


def _merge(flags: argparse.Namespace) -> int:
    from capeval_core.integrations.shards import merge_shards

    rows = merge_shards(flags.folder, flags.output)
    terminal.summary(["rows", f"{rows:,}"], ["table", flags.output])
    return 0


def _check(flags: argparse.Namespace) -> int:
    """Whether every uid is there once, all signatures are equal, all shards whole; 1 where not."""
    from capeval_core.integrations.shards import check_shards

    found = check_shards(flags.folder)
    whole = "all whole" if not found.damaged else f"{len(found.damaged):,} damaged"
    signatures = {text: _counted(len(names), "shard") for text, names in found.signatures.items()}
    terminal.summary(
        ["shards", f"{found.shards:,} ({whole})"],
        ["rows", f"{found.rows:,} ({sum(found.failed.values()):,} failed)"],
        ["uids", "all unique" if not found.repeated else f"{found.repeated:,} rows repeat one"],
        *(["signature", f"{text} ({shards})"] for text, shards in signatures.items()),
    )
    damaged, failed = (_counted(len(names), "shard") for names in (found.damaged, found.failed))
    all_rows = dict.fromkeys(found.without_scores, ", all of its rows")
    places = {uid: (f"{n} in {name}" for name, n in at.items()) for uid, at in found.duplicates.items()}
    few = sorted(found.signatures.values(), key=len)[:-1]
    whys = [f"{name} {why}" for name, why in found.damaged.items()]
    rows = [f"{name}: {rows:,}{all_rows.get(name, '')}" for name, rows in found.failed.items()]
    repeated = [f"{uid!r}: {', '.join(at)}" for uid, at in places.items()]
    others = [name for names in few for name in names]
    tell = common.tell_first
    tell(f"{damaged} damaged or no scores; delete them and score their shards again:", whys)
    tell(f"{failed} with rows that failed; `score --retry-failed` redoes them:", rows)
    tell(f"{_counted(found.repeated, 'row')} with a uid that another row has:", repeated)
    tell("scores of different signatures cannot be compared; score these shards again with one:", others)
    tell("unfinished files, which can be deleted while no run is on:", found.unfinished)
    return 0 if found.ok else 1


def _histogram(flags: argparse.Namespace) -> int:
    """The distribution of all scores; 1 where there is no score."""
    from capeval_core.integrations.shards import score_histogram

    found = score_histogram(flags.folder, keep=flags.keep)
    rows = [["rows", f"{found.scored + found.failed:,} ({found.failed:,} without a score)"]]
    best, threshold = [], None
    if found.scored:
        rows += [["mean", f"{found.mean:.4f}"], ["range", f"{found.least:.4f} to {found.most:.4f}"]]
    if found.scored and flags.keep is not None:
        threshold = found.threshold
        kept = f"keeps {_counted(found.kept, 'row')}, {found.kept / found.scored:.2%} of those with a score"
        from_on = f"score >= {math.floor(threshold * 1e6) / 1e6:.6f}"
        best = [[f"best {100 * flags.keep:g}%", f"{from_on} {kept}"]]
    marks = {f"{share:.0%}": value for share, value in found.quantiles.items() if math.isfinite(value)}
    if flags.png is not None:
        title, note = f"Scores in {flags.folder}", "; ".join(map(" ".join, [*rows, *best]))
        picture = draw_histogram(title, (found.edges, found.counts), marks, threshold, note)
        common.write("--png", flags.png, picture)
    if found.scored:
        counts = found.counts.reshape(-1, 3).sum(axis=1)  # three bins in a line
        marked = ["#" * math.ceil(50 * count / counts.max()) + f" {count:,}" for count in counts]
        edges = (f"{edge:.6g}" for edge in found.edges[:-1:3])
        terminal.summary(*zip(edges, marked, strict=True))
        print()
    terminal.summary(*rows, *([name, f"{value:.4f}"] for name, value in marks.items()), *best)
    return 0 if found.scored else 1


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
