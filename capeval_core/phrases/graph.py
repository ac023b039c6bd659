"""Scene graphs as strings, as FACTUAL writes them: `( dog , is , brown ) , ( dog , run in , park )`.

A graph is a string of facts in brackets: three fields relate a subject to an object, `is` gives an attribute
or, with digits, a quantity; one field names an entity alone. Parsers that generate text also write strings
that are unfinished or nested, so every function here takes any string.

`triplets` and `phrases_of` read a graph for HICE, in the order in which it was written, which follows the
caption. The other functions give the forms of the FACTUAL package, whose normal form sorts the facts.

Source: Li et al. 2023, "FACTUAL: A Benchmark for Faithful and Consistent Textual Scene Graph Parsing".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    facts = [_triplet([_without_mark(field.strip()) for field in fact.split(",")]) for fact in closed]
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
        rejoined = " , ".join(f"( {' , '.join(filter(None, fact))} )" for fact in facts)
        return [phrase for phrase in soft_spice_phrases(rejoined) if phrase]
    return list(dict.fromkeys(map(str, facts))) if any(fact.predicate for fact in facts) else []


def remove_marks(graph: str) -> str:
    """A graph without the marks of the `-id` models: `v:` and `pv:` before verbs, `:1` after repeated nouns.

    >>> remove_marks("( car , pv:park on , ground:1 ) , ( tv:1 , v:show , 10:30 )")
    '( car , park on , ground ) , ( tv , show , 10:30 )'
    """
    return re.sub(r"[^(),]+", lambda field: _without_mark(field[0]), graph)


def _without_mark(field: str) -> str:
    return re.sub(r"^(\s*)p?v:(?!\d)|(?<=[^\W\d]):\d+(?=\s*$)", r"\1", field)


def space_out(graph: str) -> str:
    """A graph with one space around each bracket and comma, and none at the ends.

    >>> space_out("(bench,is,wooden)")
    '( bench , is , wooden )'
    """
    return " ".join(re.sub(r"([(),])", r" \1 ", graph).split())


def is_graph(text: str) -> bool:
    """Whether a text has anything in brackets."""
    return re.search(r"\(.*?\)", text) is not None


def normal_form(graph: str) -> str:
    """FACTUAL's normal form of a spaced graph: its facts once each, sorted by alphabet.

    A graph that does not end in a bracket was cut off: its last fact goes, or if it is the only one, all but
    the first field.

    >>> normal_form("( man , on , horse ) , ( horse , is , brown ) , ( man , is")
    '( horse , is , brown ) , ( man , on , horse )'
    """
    facts = graph.strip().split(") ,")
    if not graph.endswith(")"):
        facts = facts[:-1] if len(facts) > 1 else [graph.split(",")[0]]
    return " , ".join(f"( {fact} )" for fact in sorted(set(map(_bare, facts)) - {""}))


def facts_of(graph: str) -> list[str]:
    """The facts of a graph in normal form, without their brackets."""
    return [fact for fact in map(_bare, graph.split(") ,")) if fact]


def _bare(fact: str) -> str:
    return fact.strip().strip("()").strip()


def _fields(fact: str) -> list[str]:
    return [field.strip() for field in fact.split(",")]


@dataclass(frozen=True)
class Entity:
    """A thing, how many of it (digits, or empty), and its attributes in the order of the facts."""

    head: str
    quantity: str = ""
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relation:
    """A relation of one entity to another, both by index."""

    subject: int
    relation: str
    object: int


@dataclass(frozen=True)
class SceneGraph:
    """Entities in order of first mention, and the relations between them."""

    entities: tuple[Entity, ...]
    relations: tuple[Relation, ...]


def object_form(graph: str) -> SceneGraph:
    """The entities and relations of a graph in normal form, as the FACTUAL package reads it.

    Facts that have not exactly three fields are left out; the first field of a single fact is an entity.

    >>> object_form("( pigs , is , 2 ) , ( pigs , in , mud )").entities
    (Entity(head='pigs', quantity='2', attributes=()), Entity(head='mud', quantity='', attributes=()))
    """
    facts = facts_of(graph)
    number: dict[str, int] = {}
    quantities: dict[int, str] = {}
    attributes: dict[int, dict[str, None]] = {}
    relations: list[Relation] = []
    for fields in map(_fields, facts):
        if len(fields) != 3:
            if len(facts) == 1:
                number.setdefault(fields[0], 0)
            continue
        subject = number.setdefault(fields[0], len(number))
        if fields[1] != "is":
            relations.append(Relation(subject, fields[1], number.setdefault(fields[2], len(number))))
        elif fields[2].isdigit():
            quantities[subject] = fields[2]
        else:
            attributes.setdefault(subject, {})[fields[2]] = None
    entities = (
        Entity(head, quantities.get(index, ""), tuple(attributes.get(index, ())))
        for head, index in number.items()
    )
    return SceneGraph(tuple(entities), tuple(relations))


def soft_spice_phrases(graph: str) -> dict[str, Kind]:
    """The phrases of FACTUAL's Soft-SPICE from a graph in normal form, each with its kind.

    >>> soft_spice_phrases("( dog , is , brown ) , ( dog , in , park )")
    {'brown dog': 'attribute', 'dog': 'entity', 'dog in park': 'relation', 'park': 'entity'}
    """
    phrases: dict[str, Kind] = {}
    for first, *others in map(_fields, facts_of(graph)):
        if len(others) == 1 or (len(others) > 1 and others[0] == "is"):
            phrases[f"{others[len(others) > 1]} {first}"] = "attribute"
        elif others:
            phrases[" ".join([first, *others])] = "relation"
            phrases[others[-1]] = "entity"
        phrases[first] = "entity"
    return phrases


def spice_tuples(graph: str) -> list[tuple[str, ...]]:
    """The tuples that SPICE compares, from a graph in normal form: entities, attributes, relations; sorted.

    >>> spice_tuples("( dog , is , brown ) , ( dog , in , park )")
    [('dog',), ('dog', 'brown'), ('dog', 'in', 'park'), ('park',)]
    """
    tuples: set[tuple[str, ...]] = set()
    for first, *others in map(_fields, facts_of(graph)):
        tuples.add((first,))
        if len(others) == 1 or (len(others) == 2 and others[0] == "is"):
            tuples.add((first, others[-1]))
        elif others:
            tuples |= {(first, " ".join(others[:-1]), others[-1]), (others[-1],)}
    return sorted(tuples, key=lambda parts: (" ".join(parts), len(parts)))
