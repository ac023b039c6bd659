"""Scene graphs that are whole, cut off, nested, or none at all; the golden case pins FACTUAL's forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capeval_core.phrases.graph import phrases_of, triplets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("( dog , run in , park ) , ( dog , is , brown )", ["dog run in park", "dog is brown"]),
        ("(dog,is,brown),(dog,is,brown)", ["dog is brown"]),
        ("( people , is , 2 )", ["people is 2"]),
        ("( man , ride , horse ) ( horse , is , brown )", ["man ride horse", "horse is brown"]),
        ("( ( man , ride , horse ) )", ["man ride horse"]),
        ("( man , ride , horse ) , ( horse , is", ["man ride horse"]),
        ("( dog , run )", ["dog run"]),
        ("( a , b , c , d )", ["a b c d"]),
        ("( boy ) , ( dog , run in , park )", ["boy", "dog run in park"]),
        ("( dog ) , ( dog , run in , park )", ["dog run in park"]),
        ("( cup , on , ) , ( cup , is , red )", ["cup is red"]),
        ("( , on , table ) , ( cup , is , red )", ["table", "cup is red"]),
        ("( car , pv:park on , ground:1 )", ["car park on ground"]),
        ("( tv:1 , v:show , man )", ["tv show man"]),
        ("( clock , show , 10:30 )", ["clock show 10:30"]),
        ("( birds )", []),
        ("wall , is", []),
        ("( , , )", []),
        ("( )", []),
        (") ( , ,", []),
        ("", []),
    ],
)
def test_phrases_of_a_graph(text: str, expected: list[str]) -> None:
    assert phrases_of(text) == expected


def test_soft_spice_names_entities_too() -> None:
    expected = ["brown dog", "dog", "dog run in park", "park", "boy"]
    assert phrases_of("( dog , is , brown ) , ( dog , v:run in , park ) , ( boy )", "soft-spice") == expected
    assert phrases_of("( birds )", "soft-spice") == ["birds"]
    assert phrases_of("( , on , table )", "soft-spice") == ["table"]
    assert phrases_of("", "soft-spice") == []


@given(st.text(alphabet="ab ,()v:1", max_size=40))
def test_any_string_can_be_read(text: str) -> None:
    facts = triplets(text)
    assert all(fact.subject and "(" not in str(fact) and "," not in str(fact) for fact in facts)
    for style in ("triplet", "soft-spice"):
        phrases = phrases_of(text, style)
        assert all(phrase.strip() == phrase and phrase for phrase in phrases)
        assert len(set(phrases)) == len(phrases)
