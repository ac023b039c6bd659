"""Forty things that a new user does in the first hour: what is typed, and what must be there to read.

`python -m tests.first_hour` does all of them and shows everything; with names, those.
"""

from __future__ import annotations

from tests.first_hour.hour import Action

ON_PHOTOS = "--images photos --weights tiny --device cpu"

COMMANDS = [
    Action(
        "no arguments",
        "capeval",
        ("usage: capeval COMMAND ...", "demo", "score packaged images", "`capeval demo` is a good start"),
        status=2,
    ),
    Action(
        "the demo", "capeval demo", ("IMAGE  PAC-S  RefPAC-S  KIND", "MEAN", "capeval:pacs|weights:tiny@")
    ),
    Action("what metrics there are", "capeval list", ("pacs", "ciderd")),
    Action("help on one metric", "capeval score pacs --help", ("--candidates FILE", "--id-column")),
    Action(
        "a first score",
        f"capeval score pacs --candidates good.json {ON_PHOTOS} --json good.pacs.json",
        ("PAC-S", "interval", "(95%, 8 images)", "signature  capeval:pacs|weights:tiny@"),
    ),
    Action(
        "a second system",
        f"capeval score pacs --candidates wrong.json {ON_PHOTOS} --json wrong.pacs.json",
        ("PAC-S",),
    ),
    Action("which is better", "capeval compare good.pacs.json wrong.pacs.json", ("p ",)),
    Action("agreement with my ratings", "capeval correlate good.pacs.json ratings.csv", ("kendall",)),
    Action(
        "the best of three captions",
        f"capeval rerank --candidates pools.json --out best.csv {ON_PHOTOS}",
        ("ECO", "chosen"),
    ),
]
FILES = [
    Action(
        f"captions in {form}",
        f"capeval score pacs {ON_PHOTOS} --candidates {file}",
        ("PAC-S", "captions   8 (0 failed"),
    )
    for form, file in (
        ("COCO's results", "results.json"),
        ("a table of my own", "mine.tsv --id-column photo --caption-column generated"),
        ("metadata.jsonl of Hugging Face", "photos/metadata.jsonl"),
        ("standard input", "- < results.json"),
    )
]
ACTIONS = [*COMMANDS, *FILES]
