"""The texts of a file by image id, and what is wrong with its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from capeval_core.errors import FileError, Problem, Problems, Setting, Text, file_problem, pieces_of
from capeval_core.inputs.texts import is_written_list, read_written_list, valid_unicode
from capeval_core.options import Settings, option
from capeval_core.values import described

ID_FIELDS = ("image_id", "image", "id", "filename", "file_name", "image_name")
PATH_FIELDS = ("image_path", "img", "path", "filepath", "url")
"""What else may name images; messages do not list them."""
CANDIDATE_FIELDS = ("caption", "captions")
REFERENCE_FIELDS = ("references", "captions", "caption")
LIST_FIELDS = ("references", "captions")
FOREIGN_FIELDS = ("text", "comment", "sentence", "sentences", "raw")
"""What datasets call texts; they count where none of the names before is there, and only one of these."""
SPLIT = "split"


@dataclass(frozen=True, kw_only=True)
class FileOptions(Settings):
    """What of the user's files is read."""

    id_column: str | None = option(
        None,
        "column or key of image ids, in the files that have it; None: image_id, image, id or file_name, of "
        "several the one that names images",
    )
    caption_column: str | None = option(None, "column or key of captions; None: caption, captions or text")
    reference_column: str | None = option(
        None, "column or key of references; None: references, captions, caption or text"
    )
    split: str | None = option(
        None, "parts of a file whose rows name theirs, e.g. test of Karpathy's JSON, or train,restval"
    )

    @property
    def splits(self) -> list[str]:
        """The parts to read; none: all."""
        return [name.strip() for name in (self.split or "").split(",") if name.strip()]


@dataclass
class Texts:
    """The texts of a file by image id, in the file's order.

    entries: for each text, what its row calls the image, by column where it has several; texts of one row
    share it. file_names: that the file gives to ids. columns: names of columns or keys. splits: how many rows
    are in each part. left_out: the part of each id that is in none to be read.
    """

    rows: list[tuple[str, str]] = field(default_factory=list)
    entries: list[Mapping[str, str]] = field(default_factory=list)
    file_names: dict[str, str] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    splits: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)

    def by_id(self) -> dict[str, list[str]]:
        gathered: dict[str, list[str]] = {}
        for image_id, text in self.rows:
            gathered.setdefault(image_id, []).append(text)
        return gathered

    def id_column(
        self, path: Path, find: Callable[[str], Sequence[str]], options: FileOptions, problems: Problems
    ) -> str | None:
        """The column whose values name something in most rows; None where no row has several columns.

        find: what a value names. Notes a problem where two columns of a row name different things, and none
        of them is the user's choice.
        """
        known: Counter[str] = Counter()
        differing: list[Mapping[str, Sequence[str]]] = []
        cached = cache(lambda value: tuple(sorted(find(value))))
        for ids in self.entries:
            found = {name: things for name, value in ids.items() if (things := cached(value))}
            known.update(found.keys())
            if len(set(found.values())) > 1:
                differing.append(found)
        if options.id_column in known:
            return options.id_column
        if differing:
            one = {name: things[0] for name, things in differing[0].items()}
            names, images = (" and ".join(map(repr, of)) for of in (one, one.values()))
            rows = f"{len(differing):,} row{'s' if len(differing) > 1 else ''}"
            wrong = f"{names} name different images in {rows}, such as {images}"
            best = next(name for name in one if name != "id")
            fix = ("choose the column of image ids with ", Setting("id_column", best))
            problems.add(file_problem(path, wrong, fix))
        columns = {name: None for ids in self.entries for name in ids if len(ids) > 1}
        return max(columns, key=known.__getitem__, default=None)

    def use_id_column(
        self, path: Path, find: Callable[[str], Sequence[str]], options: FileOptions, problems: Problems
    ) -> None:
        """Let that column name the images: as file names of ids, or as the ids where they are no pairs."""
        column = self.id_column(path, find, options, problems)
        named = [(i, ids[column]) for i, ids in enumerate(self.entries) if column in ids] if column else []
        pairs = {(self.rows[i][0], value) for i, value in named}
        if len({key for key, _ in pairs}) == len(pairs) == len({value for _, value in pairs}):
            self.file_names.update(pair for pair in pairs if pair[0] != pair[1])
        else:
            for i, value in named:
                self.rows[i] = value, self.rows[i][1]

    def differing(self) -> dict[str, int]:
        """How many captions images have, of those that several rows give different ones."""
        first: dict[str, tuple[str, Mapping[str, str]]] = {}
        several: set[str] = set()
        for (image_id, text), ids in zip(self.rows, self.entries, strict=True):
            earlier, row = first.setdefault(image_id, (text, ids))
            if text != earlier and ids is not row:
                several.add(image_id)
        return {image_id: len(texts) for image_id, texts in self.by_id().items() if image_id in several}


class Gatherer:
    """Turns the rows of a file into Texts and notes what is wrong with them.

    Args:
        path: the file, which begins every message.
        fields: the names that a row's text may have, the first that is there counts.
        problems: where problems are noted.
        options: the columns and splits that the user names.
        column: which of these options names the texts.
        wide: whether a table may have one row per image, its candidates side by side.

    >>> problems = Problems()
    >>> gatherer = Gatherer(Path("c.json"), CANDIDATE_FIELDS, problems)
    >>> gatherer.row({"image_id": 42, "caption": "a dog"}, "entry 0")
    >>> gatherer.row({"image_id": 43, "title": "a cat"}, "entry 1")
    >>> gatherer.texts.rows
    [('42', 'a dog')]
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    capeval_core.errors.FileError: c.json: entry 1 has 'image_id', 'title', but no caption or captions: name
    it with caption_column="title"
    """

    def __init__(
        self,
        path: Path,
        fields: Sequence[str],
        problems: Problems,
        options: FileOptions | None = None,
        *,
        column: str = "caption_column",
        wide: bool = False,
    ) -> None:
        self.path = path
        self.fields = fields
        self.problems = problems
        self.options = options or FileOptions()
        self.column = column
        self.wide = wide
        self.texts = Texts()
        self._lists: dict[str, list[str]] = {}
        self._kept = set(self.options.splits)

    def complain(self, row: str | None, found: Text, fix: Text = "", *, verb: str = "is") -> None:
        """Note a problem with a row, such as `line 3`, or a part of it; None: with the file."""
        self.problems.add(file_problem(self.path, found, fix, index=row, verb=verb))

    def require_columns(self, names: Sequence[str], table: str) -> None:
        """Raise FileError unless a table names ids and texts, once; `table`: what has these columns."""
        self.texts.columns = dict.fromkeys(names)
        if self.id_field(names) is None or len(self.text_fields(names)) != 1:
            found, fix = self._unclear(names)
            if table == "the header has" and self.id_field(names) is None and fix:
                fix = (*pieces_of(fix), ", or write a header above the first row if there is none")
            raise FileError(file_problem(self.path, f"{table} {_listed(names)}, {found}", fix))
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            fix = "give every column a name of its own"
            raise FileError(file_problem(self.path, f"{twice[0]!r} names several columns", fix))

    def used_columns(self, names: Collection[str]) -> list[str]:
        """Those of a table's columns that may be read."""
        options = self.options
        chosen = {options.id_column, options.caption_column, options.reference_column}
        known = {*ID_FIELDS, *PATH_FIELDS, *self.fields, *FOREIGN_FIELDS, SPLIT, *chosen}
        return [name for name in names if name in known]

    def row(self, row: Any, name: str) -> None:
        """One object with an id and a text, from any kind of file; `name`: such as `line 3`."""
        if not isinstance(row, dict):
            self.complain(name, described(row), "expected an object with an id and a caption")
            return
        self.texts.columns = self.texts.columns or dict.fromkeys(row)
        if not self._in_split(row):
            self.texts.left_out[str(row.get(self.id_field(row) or ""))] = row[SPLIT]
            return
        # An image in a table of Hugging Face is an object, and another column has its name.
        usable = [key for key, value in row.items() if not isinstance(value, (dict, NoneType))]
        chosen = self.options.id_column  # counts in every row: where it is empty, no other takes its place
        id_field = chosen if chosen in self.texts.columns else self.id_field(usable)
        text_fields = self.text_fields(row)
        if id_field is None or len(text_fields) != 1:
            found, fix = self._unclear(row, id_field)
            self.complain(name, f"{_listed(row)}, {found}", fix, verb="has")
            return
        (text_field,) = text_fields
        image_id = self.image_id(row.get(id_field), f"{name}: {id_field}")
        if image_id is None:
            return
        ids = {key: one for key in self.id_fields(usable) if (one := _as_id(row[key]))}
        name = f"{name} (id {image_id!r}): {text_field}"
        value = row[text_field]
        if isinstance(value, str) and text_field in (*LIST_FIELDS, getattr(self.options, self.column)):
            texts = read_written_list(value)
            if texts is None and is_written_list(value, whole=text_field not in LIST_FIELDS):
                found = f"like a list but cannot be read as one ({value[:40]!r})"
                self.complain(name, found, 'write a list of strings as JSON, ["...", "..."]', verb="begins")
                return
            value = value if texts is None else texts
        repeats = text_field == "references"  # rows that carry their image's whole list each
        self.add(image_id, value, name, repeats, ids if len(ids) > 1 else None)

    def id_field(self, names: Collection[str]) -> str | None:
        """The name of a row's id."""
        return next(iter(self.id_fields(names)), None)

    def id_fields(self, names: Collection[str]) -> list[str]:
        """The names of a row's ids, best first; COCO's `id` beside `image_id` is that of an annotation."""
        wanted = dict.fromkeys((self.options.id_column, *ID_FIELDS, *PATH_FIELDS))
        there = [name for name in wanted if name is not None and name in names]
        of_annotation = "image_id" in there and self.options.id_column != "id"
        return [name for name in there if name != "id" or not of_annotation]

    def text_fields(self, names: Collection[str]) -> list[str]:
        """The names that may be those of the texts: one is clear, several are not."""
        chosen: str | None = getattr(self.options, self.column)
        if chosen is not None:
            return [chosen] if chosen in names else []
        own = [name for name in self.fields if name in names][:1]
        usual = own or [name for name in FOREIGN_FIELDS if name in names]
        # Both files may have one form; but where this one has other texts, those named may be candidates.
        captions = self.options.caption_column
        return usual if captions is None or captions not in names else list(dict.fromkeys([captions, *usual]))

    def _unclear(self, names: Collection[str], id_field: str | None = None) -> tuple[str, Text]:
        """What a row or table of these names lacks, or has too much of, and the fix."""
        ids, texts = id_field or self.id_field(names), self.text_fields(names)
        others = [name for name in names if name and name not in (*ID_FIELDS, *PATH_FIELDS, SPLIT, *texts)]
        lacking, settings = [], []
        if ids is None:
            lacking.append(self.options.id_column or " or ".join(ID_FIELDS))
            settings += [Setting("id_column", name) for name in others[:1]]
        if not texts:
            lacking.append(getattr(self.options, self.column) or " or ".join(self.fields))
            others = others if ids else others[1:]
            settings += [Setting(self.column, name) for name in others[-1:]]
        if lacking:
            found = f"but no {', and no '.join(lacking)}"
        else:
            found = f"of which {' or '.join(map(repr, texts))} may be the text"
            settings = [Setting(self.column, texts[0])]
        named = [replace(one, before=" and " if place else "") for place, one in enumerate(settings)]
        return found, (f"name {'it' if len(named) == 1 else 'them'} with ", *named) if named else ""

    def _in_split(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is in the part that is read."""
        split = row.get(SPLIT)
        if not isinstance(split, str):
            return True
        self.texts.splits[split] += 1
        return not self._kept or split in self._kept

    def image_id(self, value: Any, name: str) -> str | None:
        """The id as a string, or None with the problem noted."""
        if isinstance(value, str) and not valid_unicode(value):
            self.complain(name, f"{value!a}, which is not UTF-8", "rename the image, and its id here")
            return None
        if image_id := _as_id(value):
            return image_id
        found = "an empty string" if value == "" else described(value)
        self.complain(name, found, "expected a string or a whole number")
        return None

    def file_name(self, image_id: str, value: str, name: str) -> None:
        """Note the file that an id means."""
        if self.texts.file_names.setdefault(image_id, value) != value:
            found = f"the id {image_id!r} is also that of {self.texts.file_names[image_id]!r}"
            self.complain(name, found, verb="")

    def add(
        self,
        image_id: str,
        value: Any,
        name: str,
        repeats: bool = False,
        ids: Mapping[str, str] | None = None,
    ) -> None:
        """A caption or a list of them, or of objects that hold one.

        With `repeats`, the same list may come again and counts once. `ids`: what the row calls the image.
        """
        values = value if isinstance(value, list) else [value]
        if not values:
            self.complain(name, "an empty list")
        if isinstance(value, str) and "references" in self.fields and is_written_list(value):
            self.complain(name, f"a list written as text ({value[:40]!r})", "write it as a list")
            return
        texts: list[str] = []
        for j, text in enumerate(values):
            item = f"{name}[{j}]" if isinstance(value, list) else name
            if isinstance(text, dict):
                names = (getattr(self.options, self.column), *self.fields, *FOREIGN_FIELDS)
                inner = next((name for name in names if name in text), None)
                if inner is None:
                    found = f"{_listed(text)}, but no {' or '.join(self.fields)}"
                    self.complain(item, found, verb="has")
                    return
                self.texts.columns.setdefault(inner)
                text = text[inner]
            if not isinstance(text, str):
                self.complain(item, described(text, none="null"), "expected a string")
                return
            texts.append(text)
        if repeats and isinstance(value, list) and self._lists.setdefault(image_id, texts) is not texts:
            if self._lists[image_id] != texts:
                self.complain(name, "from those given for this id before", verb="differ")
            return
        self.texts.rows.extend((image_id, text) for text in texts)
        self.texts.entries.extend([{} if ids is None else ids] * len(texts))


def _as_id(value: Any) -> str | None:
    """The id that a value is, or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with gaps becomes floats in pandas
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def refuse_unused(options: FileOptions, read: Mapping[Path, Texts], problems: Problems) -> None:
    """Note columns and splits that the user names and none of the files has."""
    columns = list(dict.fromkeys(name for texts in read.values() for name in texts.columns))
    splits = sum((texts.splits for texts in read.values()), Counter[str]())
    files = " or ".join(map(str, read))
    chosen = [(name, getattr(options, name)) for name in ("id_column", "caption_column", "reference_column")]
    for name, value in chosen:
        if value is not None and value not in columns:
            has = f"the columns are {_listed(columns)}" if columns else "captions there have no columns"
            problems.add(Problem(name, None, f"no column of {files}", has, value=value))
    for split in options.splits:
        if split not in splits:
            counts = ", ".join(f"{name!r} ({count:,})" for name, count in splits.items())
            has = f"the splits are {counts}" if splits else "rows there have no split"
            problems.add(Problem("split", None, f"no split of {files}", has, value=split))


def _listed(names: Collection[str]) -> str:
    return (
        ", ".join(repr(name) for name in list(names)[:8]) + (", ..." if len(names) > 8 else "") or "nothing"
    )
