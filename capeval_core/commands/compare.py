"""`capeval compare`: is one system better than another, or is it chance?"""

from __future__ import annotations

import json
from pathlib import Path

from capeval_core.commands.terminal import WHOLE_LINES, Parser, complain, paragraph, table
from capeval_core.registry import metric_of
from capeval_core.result import Result
from capeval_core.values import p_in_words, signed


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="capeval compare",
        description="Paired test of two systems that were scored on the same images.",
        epilog=paragraph(
            "A and B are files of `capeval score ... --json OUT`, scored with the same settings."
        ),
    )
    parser.add_argument("a", metavar="A.json", type=Path, help="the first system")
    parser.add_argument("b", metavar="B.json", type=Path, help="the second system")
    flags = parser.read(arguments)
    a, b = read_result(flags.a), read_result(flags.b)
    test = a.compare(b)
    try:
        title = metric_of(a).title
    except ValueError:  # of a package that is not installed here
        title = a.metric
    low, high = signed(test.interval.low), signed(test.interval.high)
    rows = [
        [title, f"{test.means[0]:.4f} ({flags.a})"],
        ["", f"{test.means[1]:.4f} ({flags.b})"],
        ["difference", signed(test.difference)],
        ["interval", f"{low} to {high} ({test.interval.level:.0%})"],
        ["test", f"{p_in_words(test.p_value, test.interval.level)}, {test.test}"],
        ["verdict", test.verdict],
        ["images", f"{test.images:,} ({test.left_out:,} left out)"],
        ["signature", a.signature],
    ]
    print(table(rows, width=WHOLE_LINES))
    if test.left_out:
        complain(
            f"warning: {test.left_out:,} images have a score in only one of the files: they are left out, "
            "of the means too"
        )
    return 0


def read_result(path: Path) -> Result:
    """The result in a file of `capeval score --json`; ValueError for another kind of file, or OSError."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: name a file of `capeval score --json`")
    try:
        return Result.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{path} is not a file of `capeval score --json`, or is damaged ({reason})"
        ) from error
