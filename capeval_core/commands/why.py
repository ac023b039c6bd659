"""`capeval why`: the variant of a metric that reproduces a score reported elsewhere."""

from __future__ import annotations

from pathlib import Path

from capeval_core.commands import common
from capeval_core.commands.terminal import names_in, parser_of, table
from capeval_core.inputs.columns import FileOptions
from capeval_core.judgements.external_scores import read_scores_of
from capeval_core.registry import metric_class
from capeval_core.replay.why import why


def run(arguments: list[str]) -> int:
    flags = parser_of("why", options=[FileOptions]).read(arguments)
    file, options = common.read_named(flags, metric_class(flags.metric), {})
    theirs = flags.theirs
    # A number, or a file of scores by caption, which tell variants apart far better than one mean.
    if Path(theirs).is_file():
        theirs = read_scores_of(Path(theirs), file.ids)
    else:
        try:
            float(theirs)
        except ValueError:
            raise ValueError(f"{theirs}: there is no such file, and it is not a number") from None
    options = {**options, "ids": file.ids, "backbones": names_in(",".join(flags.backbones))}
    with common.naming_rows(file.ids):
        outcome = why(
            theirs,
            flags.metric,
            file.captions,
            file.images,
            file.references,
            most=flags.most,
            progress=True,
            **options,
        )
    rows = []
    for variant in outcome.table:
        rows.append([variant["variant"], _number(variant["number"]), f"{variant['agree']:.0%}"])
    print(table([["VARIANT", "NUMBER", "AGREE"], *rows]), outcome.sentence, sep="\n\n")
    common.write("--json", flags.json, vars(outcome))
    # For scripts: no variant of this metric reproduces the number.
    return 0 if outcome.remaining else 1


def _number(number: float | None) -> str:
    """The number of a variant; one that was tried on a few captions alone has none."""
    return "" if number is None else f"{number:.6g}"
