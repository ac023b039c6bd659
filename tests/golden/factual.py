"""FACTUAL's scene graphs as strings: normal form, object form, Soft-SPICE phrases, SPICE tuples, marks.

A case is a folder with pairs.json, strings.json and id_pairs.json; every comparison counts the entries that
differ. Two bugs of the original are mended in ours and undone in what is expected: an empty graph has no
entity without a name, and taking the marks off leaves no `p` of `pv:` behind and no noun that ends in v cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.golden.case import Case, Comparison, Json, compare
from tests.support.seams import graph_phrases, soft_spice_phrases, without_mark

NOTHING: Json = {
    "segments_of_cleaned": [],
    "object_of_cleaned": {"entities": [], "relations": []},
    "phrases": {},
    "spice_tuples": [],
}
"""What is said of an empty graph, of which the original says that it has an entity without a name."""


def run(case: Case) -> Iterator[Comparison]:
    for file in ("pairs", "strings"):
        entries = case.json(file)
        forms = [forms_of(entry["graph"]) for entry in entries]
        for field in forms[0]:
            theirs = [(entry if entry["cleaned"] else entry | NOTHING)[field] for entry in entries]
            wrong = sum(own[field] != other for own, other in zip(forms, theirs, strict=True))
            yield compare(f"{file}_{field}", wrong, 0, 0.0)
    empty = [entry["graph"] for entry in case.json("strings") if not entry["cleaned"]]
    named = sum(len(graph_phrases(graph, "soft-spice")) for graph in empty)
    yield Comparison("strings_empty_graph", float(named), 0.0, defined=len(empty))
    pairs = [(entry["graph"], entry["without_marks"]) for entry in case.json("id_pairs")]
    unmarked = [re.sub(r"[^(),]+", lambda field: without_mark(field[0]), graph) for graph, _ in pairs]
    correct = [mended(*pair) for pair in pairs]
    bugs = sum(mend != theirs for mend, (_, theirs) in zip(correct, pairs, strict=True))
    wrong = sum(mine != mend for mine, mend in zip(unmarked, correct, strict=True))
    yield Comparison("id_pairs_without_marks", float(wrong), 0.0, defined=bugs)


def forms_of(graph: str) -> Json:
    """Everything that the case says of a graph, by ours."""
    spaced = " ".join(re.sub(r"([(),])", r" \1 ", graph).split())
    cleaned = normal_form(spaced)
    segments = [fact for fact in map(bare, cleaned.split(") ,")) if fact]
    facts = [[field.strip() for field in fact.split(",")] for fact in segments]
    return {
        "spaced": spaced,
        "cleaned": cleaned,
        "is_graph_format": re.search(r"\(.*?\)", graph) is not None,
        "segments_of_cleaned": segments,
        "object_of_cleaned": object_form(facts),
        "phrases": soft_spice_phrases(facts),
        "spice_tuples": spice_tuples(facts),
    }


def normal_form(spaced: str) -> str:
    """FACTUAL's normal form: facts once each, sorted; of a graph that was cut off the last one goes."""
    facts = spaced.strip().split(") ,")
    if not spaced.endswith(")"):
        facts = facts[:-1] if len(facts) > 1 else [spaced.split(",")[0]]
    return " , ".join(f"( {fact} )" for fact in sorted(set(map(bare, facts)) - {""}))


def bare(fact: str) -> str:
    return fact.strip().strip("()").strip()


def object_form(facts: list[list[str]]) -> Json:
    """Entities in order of first mention, with quantity and attributes, and relations by index."""
    entities: dict[str, Json] = {}
    relations: list[Json] = []

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


def spice_tuples(facts: list[list[str]]) -> list[list[list[str]]]:
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


def mended(marked: str, without: str) -> str:
    """What the original made of a marked graph, with its two bugs undone."""
    for verb in re.findall(r"\bpv:(\w+)", marked):
        without = re.sub(rf"\bp{re.escape(verb)}\b", verb, without)
    for noun, digits in re.findall(r"\b(\w+v):(\d+)", marked):
        without = without.replace(f"{noun[:-1]}{digits}", noun)
    return without
