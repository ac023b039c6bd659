"""Scene graphs as strings, as FACTUAL writes them: `( dog , is , brown ) , ( dog , run in , park )`.

A graph is a string of facts in brackets: three fields relate a subject to an object, `is` gives an attribute
or, with digits, a quantity; one field names an entity alone. Parsers that generate text also write strings
that are unfinished or nested, so any string can be read. Facts stay in the order in which they were written,
which follows the caption.

Source: Li et al. 2023, "FACTUAL: A Benchmark for Faithful and Consistent Textual Scene Graph Parsing".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Style = Literal["triplet", "soft-spice"]
Kind = Literal["entity", "attribute", "relation"]


class Triplet(NamedTuple):
    """One fact. The predicate of an attribute is `is`; an entity alone has neither predicate nor object."""

    subject: str
    predicate: str = ""
    object: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, self))


def triplets(graph: str) -> list[Triplet]:
    """The facts of a graph in its order, without marks and duplicates.

    Facts without a closing bracket are dropped, unless there is no other: then the first field is an entity.
    A fact of two fields has no object; of more than three, the middle is the predicate; one without a
    subject or object gives the other as an entity. An entity that occurs in another fact is not repeated.

    >>> [str(t) for t in triplets("( dog , is , brown ) , ( dog , v:run in , park ) , ( boy ) , ( cat , i")]
    ['dog is brown', 'dog run in park', 'boy']
    >>> triplets("wall , is")
    [Triplet(subject='wall', predicate='', object='')]
    >>> triplets("( )")
    []
    """
    closed: list[str] = re.findall(r"\(([^()]*)\)", graph)
    if not closed:
        closed = re.split(r"[(),]", graph.strip(" ,()"))[:1]
    facts = [_triplet([without_mark(field.strip()) for field in fact.split(",")]) for fact in closed]
    related = {name for fact in facts if fact.predicate for name in (fact.subject, fact.object)}
    kept = [fact for fact in facts if fact.subject and (fact.predicate or fact.subject not in related)]
    return list(dict.fromkeys(kept))


def _triplet(fields: list[str]) -> Triplet:
    subject, object = fields[0], fields[-1]
    if len(fields) == 2:
        return Triplet(subject, object) if subject else Triplet(object)
    predicate = " ".join(filter(None, fields[1:-1]))
    if len(fields) == 1 or not subject or not object:
        return Triplet(subject or object)
    return Triplet(subject, predicate, object)


def phrases_of(graph: str, style: Style = "triplet") -> list[str]:
    """The facts of a graph as phrases, without duplicates; an empty list where there are only entities.

    `triplet`: "subject predicate object", with attributes as "dog is brown". A graph of bare entities gives
    no phrase: the caption itself says more. `soft-spice`: entities, "brown dog", and
    "dog run in park", as the Soft-SPICE of the FACTUAL package.

    >>> phrases_of("( dog , is , brown ) , ( dog , run in , park )")
    ['dog is brown', 'dog run in park']
    >>> phrases_of("( dog , is , brown )", style="soft-spice")
    ['brown dog', 'dog']
    """
    facts = triplets(graph)
    if style == "soft-spice":
        return list(soft_spice_phrases([part.strip() for part in fact if part] for fact in facts))
    return list(dict.fromkeys(map(str, facts))) if any(fact.predicate for fact in facts) else []


def without_mark(field: str) -> str:
    """A field without the marks of `-id` models: `v:` and `pv:` before verbs, `:1` after repeated nouns."""
    return re.sub(r"^(\s*)p?v:(?!\d)|(?<=[^\W\d]):\d+(?=\s*$)", r"\1", field)


def soft_spice_phrases(facts: Iterable[Sequence[str]]) -> dict[str, Kind]:
    """The phrases of FACTUAL's Soft-SPICE, each with its kind, from the fields of each fact.

    >>> soft_spice_phrases([["dog", "is", "brown"], ["dog", "in", "park"]])
    {'brown dog': 'attribute', 'dog': 'entity', 'dog in park': 'relation', 'park': 'entity'}
    """
    phrases: dict[str, Kind] = {}
    for first, *others in facts:
        if len(others) == 1 or (len(others) > 1 and others[0] == "is"):
            phrases[f"{others[len(others) > 1]} {first}"] = "attribute"
        elif others:
            phrases[" ".join([first, *others])] = "relation"
            phrases[others[-1]] = "entity"
        phrases[first] = "entity"
    return phrases
