"""FACTUAL's scene graphs as strings: normal form, object form, Soft-SPICE phrases, SPICE tuples, marks.

A case is a folder with pairs.json, strings.json and id_pairs.json; every comparison counts the entries that
differ. Two bugs of the original are mended in ours and undone in what is expected: an empty graph has no
entity without a name, and taking the marks off leaves no `p` of `pv:` behind and no noun that ends in v cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capeval_core.phrases import graph
from tests.golden.comparison import Comparison, UnreadableCaseError

FIELDS = ("spaced", "cleaned", "is_graph_format", "segments_of_cleaned", "object_of_cleaned", "phrases",
          "spice_tuples")  # fmt: skip


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    return {f"{file}_{field}" for file in ("pairs", "strings") for field in FIELDS} | {
        "id_pairs_without_marks",
        "strings_empty_graph",
    }


def run_case(folder: Path) -> Iterator[Comparison]:
    for file in ("pairs", "strings"):
        entries = _read(folder / f"{file}.json")
        empty = [entry for entry in entries if not entry["cleaned"]]
        for field in FIELDS:
            wrong = 0
            for entry in entries:
                ours = _forms(entry)[field]
                # Of an empty graph the original says that it has an entity without a name.
                wrong += ours != (entry[field] if entry["cleaned"] else _NOTHING.get(field, entry[field]))
            yield Comparison(f"{file}_{field}", float(wrong), 0.0)
        if file == "strings":
            named = sum(len(graph.triplets(entry["graph"])) for entry in empty)
            yield Comparison("strings_empty_graph", float(named), 0.0, defined=len(empty))
    wrong = 0
    pairs = _read(folder / "id_pairs.json")
    for entry in pairs:
        wrong += _without_marks(entry["graph"]) != _mended(entry["graph"], entry["without_marks"])
    yield Comparison("id_pairs_without_marks", float(wrong), 0.0, defined=_bugs(pairs))


_NOTHING: dict[str, Any] = {
    "segments_of_cleaned": [],
    "object_of_cleaned": {"entities": [], "relations": []},
    "phrases": {},
    "spice_tuples": [],
}


def _forms(entry: dict[str, Any]) -> dict[str, Any]:
    """Everything that the case says of a graph, by ours."""
    spaced = " ".join(re.sub(r"([(),])", r" \1 ", entry["graph"]).split())
    cleaned = _normal_form(spaced)
    segments = _facts(cleaned)
    facts = [[field.strip() for field in fact.split(",")] for fact in segments]
    return {
        "spaced": spaced,
        "cleaned": cleaned,
        "is_graph_format": re.search(r"\(.*?\)", entry["graph"]) is not None,
        "segments_of_cleaned": segments,
        "object_of_cleaned": _object_form(facts),
        "phrases": graph.soft_spice_phrases(facts),
        "spice_tuples": _spice_tuples(facts),
    }


def _normal_form(spaced: str) -> str:
    """FACTUAL's normal form: facts once each, sorted; of a graph that was cut off the last one goes."""
    facts = spaced.strip().split(") ,")
    if not spaced.endswith(")"):
        facts = facts[:-1] if len(facts) > 1 else [spaced.split(",")[0]]
    return " , ".join(f"( {fact} )" for fact in sorted(set(map(_bare, facts)) - {""}))


def _facts(cleaned: str) -> list[str]:
    return [fact for fact in map(_bare, cleaned.split(") ,")) if fact]


def _bare(fact: str) -> str:
    return fact.strip().strip("()").strip()


def _object_form(facts: list[list[str]]) -> dict[str, list[dict[str, Any]]]:
    """Entities in order of first mention, with quantity and attributes, and relations by index."""
    entities: dict[str, dict[str, Any]] = {}
    relations: list[dict[str, Any]] = []

    def index_of(head: str) -> int:
        entities.setdefault(head, {"head": head, "quantity": "", "attributes": []})
        return list(entities).index(head)

    for fields in facts:
        if len(fields) == 3:
            subject, predicate, object = fields
            index = index_of(subject)
            if predicate != "is":
                relations.append({"subject": index, "relation": predicate, "object": index_of(object)})
            elif object.isdigit():
                entities[subject]["quantity"] = object
            elif object not in entities[subject]["attributes"]:
                entities[subject]["attributes"].append(object)
        elif len(facts) == 1:
            index_of(fields[0])
    for entity in entities.values():
        entity["attributes"].sort()
    return {"entities": list(entities.values()), "relations": relations}


def _spice_tuples(facts: list[list[str]]) -> list[list[list[str]]]:
    """The tuples that SPICE compares: entities, attributes, relations; sorted."""
    tuples: set[tuple[str, ...]] = set()
    for first, *others in facts:
        tuples.add((first,))
        if len(others) == 1 or (len(others) == 2 and others[0] == "is"):
            tuples.add((first, others[-1]))
        elif others:
            tuples |= {(first, " ".join(others[:-1]), others[-1]), (others[-1],)}
    ordered = sorted(tuples, key=lambda parts: (" ".join(parts), len(parts)))
    return [[[part] for part in parts] for parts in ordered]


def _without_marks(marked: str) -> str:
    return re.sub(r"[^(),]+", lambda field: graph.without_mark(field[0]), marked)


def _mended(marked: str, without: str) -> str:
    """What the original made of a marked graph, with its two bugs undone."""
    for verb in re.findall(r"\bpv:(\w+)", marked):
        without = re.sub(rf"\bp{re.escape(verb)}\b", verb, without)
    for noun, digits in re.findall(r"\b(\w+v):(\d+)", marked):
        without = without.replace(f"{noun[:-1]}{digits}", noun)
    return without


def _bugs(pairs: list[dict[str, Any]]) -> int:
    return sum(_mended(entry["graph"], entry["without_marks"]) != entry["without_marks"] for entry in pairs)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        required = {"graph", "without_marks"} if path.stem == "id_pairs" else {"graph", *FIELDS}
        lacking = {name for entry in entries for name in required - entry.keys()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UnreadableCaseError(f"{path}: {error}") from error
    if lacking:
        raise UnreadableCaseError(f"{path}: entries lack {sorted(lacking)}")
    return list(entries)
