"""FACTUAL's scene graphs as strings: phrases of Soft-SPICE, and graphs without the marks of `-id` models.

A case is a folder with pairs.json, strings.json and id_pairs.json; every comparison counts the entries that
differ. Two bugs of the original are mended in ours and undone in what is expected: an empty graph has no
entity without a name, and taking the marks off leaves no `p` of `pv:` behind and no noun that ends in v cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.golden.case import Case, Comparison, compare
from tests.support.seams import graph_phrases, soft_spice_phrases, without_mark


def run(case: Case) -> Iterator[Comparison]:
    for file in ("pairs", "strings"):
        whole = [entry for entry in case.json(file) if entry["cleaned"]]
        facts = [[fact.split(",") for fact in entry["segments_of_cleaned"]] for entry in whole]
        ours = [soft_spice_phrases([[f.strip() for f in fact] for fact in own]) for own in facts]
        wrong = sum(own != entry["phrases"] for own, entry in zip(ours, whole, strict=True))
        yield compare(f"{file}_phrases", wrong, 0, 0.0)
    empty = [entry["graph"] for entry in case.json("strings") if not entry["cleaned"]]
    named = sum(len(graph_phrases(graph, "soft-spice")) for graph in empty)
    yield Comparison("strings_empty_graph", float(named), 0.0, defined=len(empty))
    pairs = [(entry["graph"], entry["without_marks"]) for entry in case.json("id_pairs")]
    unmarked = [re.sub(r"[^(),]+", lambda field: without_mark(field[0]), graph) for graph, _ in pairs]
    correct = [mended(*pair) for pair in pairs]
    bugs = sum(mend != theirs for mend, (_, theirs) in zip(correct, pairs, strict=True))
    wrong = sum(mine != mend for mine, mend in zip(unmarked, correct, strict=True))
    yield Comparison("id_pairs_without_marks", float(wrong), 0.0, defined=bugs)


def mended(marked: str, without: str) -> str:
    """What the original made of a marked graph, with its two bugs undone."""
    for verb in re.findall(r"\bpv:(\w+)", marked):
        without = re.sub(rf"\bp{re.escape(verb)}\b", verb, without)
    for noun, digits in re.findall(r"\b(\w+v):(\d+)", marked):
        without = without.replace(f"{noun[:-1]}{digits}", noun)
    return without
