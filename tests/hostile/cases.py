"""The cases: every door with the inputs that it takes; what each is to name stands in `expected.tsv`.

A case is refused with an exception, a command's exit or a row's error that names argument and index. No
sentence is stored: kinds are told by the words of `KINDS`, the only place that knows any.
"""

from __future__ import annotations

import contextlib
import csv
import re
import shlex
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from tests.hostile import doors
from tests.hostile.doors import TEXTS, RefusedError, opened
from tests.hostile.world import World
from tests.support.command_lines import replaced

INPUTS = Path(__file__).with_name("inputs.txt")
EXPECTED = Path(__file__).with_name("expected.tsv")
TABLE = tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))
TYPES = ("TypeError", "ValueError", "IndexError", "row", "exit 1", "exit 2")
KINDS: dict[str, str] = TABLE["kinds"]
WITHIN = {"caption": "captions", "image": "images", "video": "videos", "boxes": "images"}
"""Groups of values for one of two rows, and the argument."""
WHOLE = {"captions": "captions", "images": "images", "references": "references", "pools": "captions"}
LINE = "score {metric} --candidates {good} --images {images} --weights {unopened} "


@dataclass(frozen=True)
class Case:
    """A hostile input at a door.

    group, name: of the input in `inputs.txt`. door, metric: where it is handed in, and what is to be scored.
    """

    door: str
    metric: str
    group: str
    name: str
    kind: str
    expression: str

    @property
    def at(self) -> str:
        return f"{self.door} {self.metric}".strip()

    @property
    def input(self) -> str:
        return f"{self.group}: {self.name}"

    def run(self, world: World) -> object:
        """Hand it in."""
        if self.door == "command":
            return doors.command(self._line(world))
        if self.door == "use":
            return doors.use(world, self.expression)
        if self.group in WITHIN or self.group in WHOLE:
            return doors.DOORS[self.door](world, self.metric, self._arguments(world))
        value = world.make(self.expression)
        if self.group.startswith("option=") or self.group == "store":
            options = {self.group.partition("=")[2] or "regions": value}
            return doors.opening(world, self.door, self.metric, options)
        return doors.DOORS[self.door](world, self.metric, value)

    def _arguments(self, world: World) -> dict[str, Any]:
        """Of `score`, with this value for one of them, or as the second of two."""
        name, _, medium = self.metric.partition(":")
        medium = "videos" if medium == "video" else "images"
        made: dict[str, Any] = {"captions": ["a", "b"]}
        if name not in TEXTS:
            made[medium] = [world.video, world.video] if medium == "videos" else [world.image, world.image]
        if opened(self.metric).needs_references:
            made["references"] = [["a"], ["b"]]
        value = world.make(self.expression)
        if self.group in WITHIN:
            made[WITHIN[self.group]][1] = value
        else:
            made[WHOLE[self.group]] = value
        return made

    def _line(self, world: World) -> list[Any]:
        lines = {
            "file": LINE + ("--references" if self.metric.startswith("ref") else "--candidates"),
            "result": "compare {result}",
            "checkpoint": "convert {metric} --out w",
            "flag": shlex.join(replaced(LINE.split(), shlex.split(self.expression))),
            "line": self.expression,
        }
        metric = self.metric or "pacs"
        line = [part.replace("{metric}", metric).format_map(world) for part in shlex.split(lines[self.group])]
        return line if self.group in ("flag", "line") else [*line, world.make(self.expression)]


@dataclass(frozen=True)
class Expected:
    """What a refusal names. argument, index: literally in its message, an index `[1]` right behind it."""

    type: str
    argument: str
    index: str
    kind: str

    def lacks(self, found: Refusal) -> str:
        """What the refusal does not have of this, '' if nothing."""
        if found.type != self.type:
            return f"is {found.type}, not {self.type}"
        if not self.placed(found):
            return f"does not name {self.argument}{self.index}"
        if not re.search(KINDS[self.kind], found.message, re.IGNORECASE):
            return f"does not say that it is {self.kind}"
        return ""

    def placed(self, found: Refusal) -> bool:
        if self.index.startswith("["):
            return self.argument + self.index in found.message
        return self.argument in found.message and self.index in found.message


@dataclass(frozen=True)
class Refusal:
    """How an input was refused."""

    type: str
    message: str


def inputs() -> Iterator[tuple[str, str, str, str]]:
    """Group, name, kind and expression of each line of `inputs.txt`."""
    group = ""
    for line in INPUTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            group = line[1:-1]
        elif line and not line.startswith("#"):
            name, kind, expression = line.split(" | ", 2)
            yield group, name, kind, expression


def every() -> Iterator[Case]:
    """All cases."""
    for group, name, kind, expression in inputs():
        title, _, option = group.partition("=")
        doors = TABLE["options"].get(option, TABLE["doors"][title])
        if title == "option" and name in TABLE["used"]:
            doors = [doors[0].replace("load", "used")]
        for at in doors:
            door, _, metric = at.partition(" ")
            taken = TABLE["taken"].get(door, ["none"])
            if not f"{group}: {name}".startswith(tuple(taken)):
                yield Case(door, metric, group, name, kind, expression)


def refusal(case: Case, folder: Path) -> Refusal | None:
    """How a case is refused in a folder of its own; None: it was not, or only by weights that do not open."""
    (folder / "case").mkdir(parents=True)
    world = World(folder / "case", case.metric)
    with contextlib.chdir(world.folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case.run(world)
        except RefusedError as error:
            found = Refusal(error.kind, str(error))
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            found = Refusal(next((name for name in names if name in TYPES), names[0]), str(error))
        else:
            return None
    opened_weights = str(world.unopened) in found.message
    return None if opened_weights else Refusal(found.type, found.message.replace(str(folder), ""))


def stored() -> dict[tuple[str, str], Expected]:
    """What is expected, by door and input."""
    if not EXPECTED.is_file():
        return {}
    with EXPECTED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return {(door, given): Expected(*rest) for door, given, *rest in rows}


PLACE = re.compile(
    r"(?P<argument>--[a-z-]+|len\(\w+\)=\d+|\w+(?==)|\w+(?:\.\w+)+(?= is)"
    r"|[\w.-]*\w\.(?:json|jsonl|csv|txt|parquet|pth|safetensors|png|gz|tar|npz)\b"
    r"|(?:/?[\w.-]+/)+[\w.-]+|/case\b|\w+(?=\[)|'[^' ]{1,60}'|^\w+(?= (?:is|are|has|have|holds|lengths)\b)"
    r"|\b(?:captions|images|videos|references|predictions|statistics)\b)"
    r"(?P<index>(?:\[[^\]]*\])+|: (?:line|entry|annotation|image|id) '?\w+'?)?"
)
OURS = ("'unopened'", "'case'", "'weights'")


def told(case: Case, found: Refusal) -> Expected:
    """What a new case is to name, to be read before it is committed: the first place in the message."""
    message = re.sub(
        r"^.*?(error: |problems with the input:\s+|capeval \w+: )", "", found.message, flags=re.S
    )
    message = re.sub(r"^'The (\w+)", r"\1", message)
    places = [place for place in PLACE.finditer(message) if place["argument"] not in OURS]
    argument, index = (
        (places[0]["argument"], places[0]["index"] or "") if places else (message.split()[0], "")
    )
    kinds = [case.kind, *KINDS]
    kind = next((one for one in kinds if re.search(KINDS[one], found.message, re.IGNORECASE)), case.kind)
    return Expected(found.type, argument, index.removeprefix(": "), kind)


def write(rows: dict[tuple[str, str], Expected]) -> None:
    """Write what is expected."""
    lines = ["door\tinput\ttype\targument\tindex\tkind"]
    lines += ["\t".join([*key, *astuple(expected)]) for key, expected in rows.items()]
    EXPECTED.write_text("\n".join(lines) + "\n", encoding="utf-8")
