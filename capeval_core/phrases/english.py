"""English: lists of words for the rules of this package, and captions split into sentences."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DROPPED = _words("a an the this that these those his her its their my your our")
"""Articles and other determiners, left out of phrases."""
COUNTS = _words(
    "no one two three four five six seven eight nine ten eleven twelve several many some few both all "
    "another other each every more"
)
"""Numbers and quantities, with which a noun phrase may begin."""
BREAKS = _words("and or but while as then so yet when where because nor plus")
BE = _words("is are was were be been being am")
SUBJECT_PRONOUNS = _words("he she they it")
OBJECT_PRONOUNS = _words("him them himself herself itself themselves there something someone")
RELATIVES = _words("who which that")
PREPOSITIONS = _words(
    "on in at with by near under over above below beneath beside behind between among amongst around "
    "across along alongside through into onto inside outside against toward towards from for to down up "
    "off past without within underneath atop beyond about out"
)
ADJECTIVES = _words(
    "red yellow green blue purple pink brown black white gray grey orange golden silver dark light bright "
    "small large big little tiny huge tall short long old young new wooden metal plastic empty full open "
    "closed round square thick thin colorful colourful striped wet dry dirty clean busy crowded beautiful "
    "plain snowy grassy sandy rocky sunny"
)
"""The most common adjectives of captions: the word after one of them is not a verb."""
ING_NOUNS = _words(
    "building ceiling clothing painting railing wedding ring string king wing swing morning evening thing "
    "something anything spring parking awning crossing icing pudding sling drawing lighting flooring"
)
VERBS = _words(
    "sit sits sat stand stands stood run runs ran walk walks ride rides rode hold holds held wear wears "
    "wore play plays jump jumps eat eats ate look looks lie lies lay lays swim swims fly flies drive "
    "drives carry carries catch catches throw throws hit hits kick kicks pull pulls push pushes watch "
    "watches smile smiles sleep sleeps rest rests chase chases climb climbs pose poses wait waits hang "
    "hangs hung lean leans drink drinks show shows have has had face faces cover covers contain contains "
    "read reads cut cuts talk talks sing sings make makes take takes go goes gather gathers dance dances "
    "shine shines"
)
"""The most common verbs of captions, in the forms that have no ending of their own."""
ADVERBS = _words("together alone away apart nearby outdoors indoors upright outside inside around")

ABBREVIATIONS = _words(
    "mr mrs ms dr prof st sr jr vs etc e.g i.e approx no vol fig inc ltd co corp mt ft ave blvd rd a.m "
    "p.m u.s u.k jan feb mar apr jun jul aug sep sept oct nov dec min max cm mm km kg lb lbs oz in"
)
MAY_END = _words(
    "etc inc ltd co corp a.m p.m u.s u.k ave blvd rd jr sr in min max cm mm km kg lb lbs oz ft no"
)
"""Abbreviations, and words written like one, with which a sentence may end."""

TREEBANK_ABBREVIATIONS = _words(
    "adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bancorp bhd bldg blvd brig bros calif "
    "capt cf cie cmdr co col colo comdr conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc "
    "ext feb fla fri ft ga gen gov govs hon inc ind insp intl invt jan jos jr jul jun kan kans ky lieut "
    "lt ltd maj mar md messrs mfg mich minn mlle mme mo mon mont mr mrs ms msgr mt mtg natl neb nev nov "
    "oct okla penn pfc ph plc ppte ppty pres prof profs pte ptes pty ptys pvt rd rep reps rev rt sen sens "
    "sep sept seq sfc sgt spc sq sr st ste supt sys tel tenn thu thurs tue tues univ va vs vt wed wis "
    "wisc wm wyo"
)
"""Abbreviations that keep their full stop in the Penn Treebank's tokens."""
TREEBANK_STATES = _words("ark az del ill la mass miss ore pa tex wash")
"""Abbreviations that keep it where they begin with a capital."""
TREEBANK_STARTERS = _words(
    "a about according after an as at but earlier he her here however if in it last many more now once "
    "one other our she since so some such that the their then there these they this we what when while "
    "yet you"
)
"""Words that begin a sentence after a single letter with a full stop."""

_CLOSERS = "\"'”’»)\\]}"
_END = re.compile(rf"(?P<mark>\.{{2,}}|…|[.!?]+|[。！？]+)(?P<closers>[{_CLOSERS}]*)(?=\s|$|(?<=[。！？]))")
_BULLET = re.compile(r"^\s*(?:[-*•‣▪–—]|\(?\d{1,3}[.)]|\(?[a-zA-Z]\))\s+(?=\S)")
_LINE = re.compile(r"[\r\n\u2028\u2029]+")


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, in order; every word of the text is in one of them.

    A new line ends a sentence, and the mark of a list ("1.", "-", "•") is left out. A full stop ends none
    where it belongs to an abbreviation ("Dr. Who"), an initial ("J. Smith") or a number ("2.5 m"); an
    ellipsis does only before a capital letter or a digit. A text without any word gives no sentence.
    """
    parts: list[str] = []
    for line in _LINE.split(text):
        line = _BULLET.sub("", line)
        start = 0
        for match in _END.finditer(line):
            if _ends(line, match):
                parts.append(line[start : match.end()])
                start = match.end()
        parts.append(line[start:])
    stripped = [" ".join(sentence.split()) for sentence in parts]
    return [sentence for sentence in stripped if any(map(str.isalnum, sentence))]


def _ends(line: str, match: re.Match[str]) -> bool:
    after = line[match.end() :].lstrip()
    if not after:
        return True
    opening = after.lstrip("\"'“‘«([{")[:1]
    begins = opening.isupper() or opening.isdigit() or not opening.islower()
    mark = match["mark"]
    if mark in ("…",) or mark.startswith(".."):
        return begins
    if mark != ".":
        # "Stop!" says the man: the quotation ends, the sentence does not.
        return begins or not match["closers"]
    word = re.search(r"[\w.]*$", line[: match.start()])
    last = word[0] if word else ""
    if last.lower() in ABBREVIATIONS:
        return last.lower() in MAY_END and begins and not (last.lower() == "no" and opening.isdigit())
    initial = re.fullmatch(r"[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z]", last)
    return initial is None
