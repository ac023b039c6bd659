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
        wrong += graph.remove_marks(entry["graph"]) != _mended(entry["graph"], entry["without_marks"])
    yield Comparison("id_pairs_without_marks", float(wrong), 0.0, defined=_bugs(pairs))


_NOTHING: dict[str, Any] = {
    "segments_of_cleaned": [],
    "object_of_cleaned": {"entities": [], "relations": []},
    "phrases": {},
    "spice_tuples": [],
}


def _forms(entry: dict[str, Any]) -> dict[str, Any]:
    """Everything that the case says of a graph, by ours."""
    spaced = graph.space_out(entry["graph"])
    cleaned = graph.normal_form(spaced)
    scene = graph.object_form(cleaned)
    return {
        "spaced": spaced,
        "cleaned": cleaned,
        "is_graph_format": graph.is_graph(entry["graph"]),
        "segments_of_cleaned": graph.facts_of(cleaned),
        "object_of_cleaned": {
            "entities": [
                {"head": e.head, "quantity": e.quantity, "attributes": sorted(e.attributes)}
                for e in scene.entities
            ],
            "relations": [
                {"subject": r.subject, "relation": r.relation, "object": r.object} for r in scene.relations
            ],
        },
        "phrases": graph.soft_spice_phrases(cleaned),
        "spice_tuples": [[[part] for part in parts] for parts in graph.spice_tuples(cleaned)],
    }


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
