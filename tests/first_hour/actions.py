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

TEXTS = [
    Action(
        f"references in {form}",
        f"capeval score ciderd --candidates good.json --references {file}",
        ("CIDEr-D", "captions   8"),
    )
    for form, file in (
        ("pycocoevalcap's form", "gts.json"),
        ("the table of Flickr30k", "flickr30k.csv"),
        ("the list of Flickr8k", "Flickr8k.token.txt"),
        ("Karpathy's form", "dataset.json"),
    )
]

SCORE = f"capeval score pacs {ON_PHOTOS} --candidates"
MISTAKES = [
    Action(
        "a misspelt metric", "capeval score pasc --candidates good.json", ("did you mean 'pacs'",), status=2
    ),
    Action("a misspelt flag", "capeval score pacs --candidate good.json", ("did you mean",), status=2),
    Action("a misspelt command", "capeval scores pacs", ("did you mean 'score'",), status=2),
    Action(
        "misspelt weights",
        "capeval score pacs --images photos --candidates good.json --weights tinny",
        ("tinny",),
        status=2,
    ),
    Action(
        "no references",
        f"capeval score refpacs {ON_PHOTOS} --candidates good.json",
        ("--references",),
        status=2,
    ),
    Action("no images", "capeval score pacs --candidates good.json --weights tiny", ("--images",), status=2),
    Action(
        "the wrong folder",
        "capeval score pacs --images . --weights tiny --candidates good.json",
        ("",),
        status=2,
    ),
    Action(
        "an empty folder",
        "capeval score pacs --images empty --weights tiny --candidates good.json",
        ("",),
        status=2,
    ),
    Action(
        "no such folder",
        "capeval score pacs --images fotos --weights tiny --candidates good.json",
        ("",),
        status=2,
    ),
    Action("no such file", f"{SCORE} god.json", ("",), status=2),
    Action("ids of other images", f"{SCORE} others.json", ("",), status=2),
    Action("empty captions", f"{SCORE} empty.json", ("",), status=2),
    Action("a caption that is null", f"{SCORE} null.json", ("",), status=2),
    Action("a file that was cut off", f"{SCORE} cut.json", ("",), status=2),
    Action("columns that are not clear", f"{SCORE} two.json", ("",), status=2),
    Action("columns of my own", f"{SCORE} mine.tsv", ("",), status=2),
    Action(
        "a split that is not there",
        "capeval score ciderd --candidates good.json --references dataset.json --split tset",
        ("",),
        status=2,
    ),
    Action("captions of all splits", f"{SCORE} dataset.json", ("",), status=2),
    Action("rows that repeat", f"{SCORE} repeated.csv", ("",)),
    Action(
        "swapped files", "capeval score ciderd --candidates references.json --references good.json", ("",)
    ),
    Action(
        "the same file twice",
        "capeval score ciderd --candidates references.json --references references.json",
        ("",),
    ),
    Action(
        "a picture that was cut off",
        "capeval score pacs --images broken --weights tiny --candidates good.json",
        ("",),
        status=2,
    ),
    Action(
        "which costs its row alone",
        "capeval score pacs --images broken --weights tiny --candidates good.json --on-error nan",
        ("",),
    ),
    Action("an option that is wrong", f"{SCORE} good.json --batch-size 0", ("",), status=2),
    Action("a device that is not there", f"{SCORE} good.json --device gpu", ("",), status=2),
    Action("the result over its input", f"{SCORE} good.json --json good.json", ("",), status=2),
    Action("a result in no folder", f"{SCORE} good.json --json out/scores.json", ("",), status=2),
    Action("a page without gradio", "capeval page pacs --weights tiny", ("",), status=2, without=("gradio",)),
    Action(
        "a folder of pictures as videos",
        "capeval score pacs --videos photos --weights tiny --candidates good.json",
        ("",),
        status=2,
    ),
    Action("results of other captions", "capeval compare good.pacs.json ratings.csv", ("",), status=2),
    Action("captions instead of scores", "capeval compare good.json wrong.json", ("",), status=2),
    Action("ratings that do not fit", "capeval correlate good.pacs.json references.json", ("",), status=2),
    Action(
        "one caption of each image",
        f"capeval rerank --candidates good.json --out best.csv {ON_PHOTOS}",
        ("",),
        status=2,
    ),
]
ACTIONS = [*COMMANDS, *FILES, *TEXTS, *MISTAKES]
