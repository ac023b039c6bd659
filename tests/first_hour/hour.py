"""A new user's folder, the things that are done in it, and what comes of each."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image, ImageOps

from capeval_core.cli import main
from capeval_core.demo import demo_set


@dataclass(frozen=True)
class Action:
    """Something that a user does.

    typed: a command line, whose input may follow `<`, or lines of Python, all of one session.
    reads: what must be there to read, in this order.
    status: with which a command ends, 1 for an exception. after: names of what must have been done before.
    without: a package that is not installed.
    """

    name: str
    typed: str
    reads: list[str]
    status: int = 0
    after: list[str] = field(default_factory=list)
    without: str = ""


@dataclass(frozen=True)
class Outcome:
    """What there is to read after an action, and the exit status of a command."""

    text: str
    status: int


class Hour:
    """A folder of files, and one session of Python in it, for these actions by their names."""

    def __init__(self, folder: Path, actions: Mapping[str, Action]) -> None:
        self.folder = folder
        self.actions = actions
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._done: dict[str, Outcome] = {}
        write_files(folder)

    def do(self, name: str) -> Outcome:
        """Do it, once, after what must come before it, and return all that the user reads."""
        if name not in self._done:
            for earlier in self.actions[name].after:
                self.do(earlier)
            self._done[name] = self._do(self.actions[name])
        return self._done[name]

    def _do(self, action: Action) -> Outcome:
        screen = io.StringIO()
        with (
            _inside(self.folder),
            _not_installed(action.without),
            contextlib.redirect_stdout(screen),
            contextlib.redirect_stderr(screen),
        ):
            if action.typed.partition(" ")[0] == "capeval":
                status = _run_command(action.typed)
            else:
                status = self._run_python(action.typed)
        return Outcome(screen.getvalue(), status)

    def _run_python(self, lines: str) -> int:
        """Run lines as a notebook's cell: the value of the last one is shown."""
        tree = ast.parse(lines)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, kind, *_: print(f"{kind.__name__}: {message}")
            try:
                exec(compile(tree, "<cell>", "exec"), self._names)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self._names)
                    print(value if value is not None else "")
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
                return 1
        return 0


def _run_command(line: str) -> int:
    line, _, source = line.partition(" < ")
    stdin = io.BytesIO(Path(source).read_bytes() if source else b"")
    before, sys.stdin = sys.stdin, io.TextIOWrapper(stdin)
    try:
        return main(shlex.split(line)[1:])
    finally:
        sys.stdin = before


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _not_installed(package: str) -> Iterator[None]:
    """Let imports of a package fail, as where it is not installed."""
    if not package:
        yield
        return
    ours = ("capeval_core.integrations.", "capeval_core.commands.page")
    hidden = [name for name in sys.modules if name.partition(".")[0] == package or name.startswith(ours)]
    kept = {name: sys.modules.pop(name) for name in hidden}
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        sys.modules.update(kept)


def write_files(folder: Path) -> None:
    """Eight pictures with captions of two systems and references, in the forms that such files have."""
    (folder / "photos").mkdir()
    good: dict[str, str] = {}
    wrong: dict[str, str] = {}
    references: dict[str, list[str]] = {}
    for item in demo_set()[:4]:
        for image_id, flip in ((item.id, False), (f"{item.id}m", True)):
            with Image.open(item.image) as image:
                (ImageOps.mirror(image) if flip else image).save(folder / "photos" / f"{image_id}.png")
            good[image_id], wrong[image_id] = item.good, item.subtly_wrong
            references[image_id] = list(item.references)
    pools = {image_id: [good[image_id], wrong[image_id], "a red star"] for image_id in good}
    for name, content in {"good": good, "wrong": wrong, "references": references, "pools": pools}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    _write_forms(folder, good, references)
    _write_mistakes(folder, good)
    ratings = dict(zip(good, (5, 4, 4, 2, 3, 5, 1, 2), strict=True))
    lines = ["image_id,rating", *(f"{image_id},{rating}" for image_id, rating in ratings.items()), ""]
    (folder / "ratings.csv").write_text("\n".join(lines))
    (folder / "own").mkdir()
    judged = [
        json.dumps({"image": image_id, "candidate": good[image_id], "ratings": [rating]})
        for image_id, rating in ratings.items()
    ]
    (folder / "own" / "judgements.jsonl").write_text("\n".join(judged))
    (folder / "own" / "references.json").write_text(json.dumps(references))


def _write_forms(folder: Path, good: Mapping[str, str], references: Mapping[str, list[str]]) -> None:
    """The same captions and references as others write them."""
    results = [{"image_id": image_id, "caption": text} for image_id, text in good.items()]
    (folder / "results.json").write_text(json.dumps(results))
    gts = {image_id: [{"caption": text} for text in texts] for image_id, texts in references.items()}
    (folder / "gts.json").write_text(json.dumps(gts))
    lines = [json.dumps({"file_name": f"{image_id}.png", "text": text}) for image_id, text in good.items()]
    (folder / "photos" / "metadata.jsonl").write_text("\n".join(lines))
    pairs = [{"uid": i, "image": f"{i}.png", "caption": text} for i, text in good.items()]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    images = [
        {
            "filename": f"{image_id}.png",
            "split": "val" if image_id.endswith("m") else "test",
            "sentences": [{"raw": text, "tokens": text.split()} for text in texts],
        }
        for image_id, texts in references.items()
    ]
    (folder / "dataset.json").write_text(json.dumps({"dataset": "drawn", "images": images}))
    rows = [(image_id, n, text) for image_id, texts in references.items() for n, text in enumerate(texts)]
    table = ["image_name| comment_number| comment", *(f"{i}.png| {n}| {text}" for i, n, text in rows)]
    (folder / "flickr30k.csv").write_text("\n".join(table))
    (folder / "Flickr8k.token.txt").write_text("".join(f"{i}.png#{n}\t{text}\n" for i, n, text in rows))
    pd.DataFrame({"photo": [*good], "beam": "x", "generated": [*good.values()]}).to_csv(
        folder / "mine.tsv", sep="\t", index=False
    )


def _write_mistakes(folder: Path, good: Mapping[str, str]) -> None:
    """Files with one mistake each, as they happen."""
    mistakes: dict[str, Any] = {
        "empty.json": good | {"1": " ", "3m": ""},
        "null.json": good | {"2": None},
        "others.json": {f"img_{image_id}": text for image_id, text in good.items()},
        "two.json": [{"image_id": i, "text": text, "comment": "fine"} for i, text in good.items()],
    }
    for name, content in mistakes.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "cut.json").write_text((folder / "good.json").read_text()[:-40])
    (folder / "repeated.csv").write_text("image_id,caption\n" + "0,two hearts\n" * 3 + "1,a circle\n")
    (folder / "broken").mkdir()
    for image_id in good:
        data = (folder / "photos" / f"{image_id}.png").read_bytes()
        (folder / "broken" / f"{image_id}.png").write_bytes(data[: 300 if image_id == "2" else None])
    (folder / "empty").mkdir()
