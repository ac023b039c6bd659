"""Phrases by rules alone: noun phrases with their location in the image, and relations between them.

No model and no network: for the small weights that ship with the package, and for a quick look. English only.
The rules list the closed classes (articles, prepositions, conjunctions, pronouns) and guess verbs from their
endings and neighbours; a scene-graph parser (`capeval_core.phrases.factual`) makes fewer mistakes.
"""

from __future__ import annotations

import re
from typing import NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Articles and other determiners, left out of phrases.
DROPPED = _words("a an the this that these those his her its their my your our")
# Numbers and quantities, with which a noun phrase may begin.
COUNTS = _words(
    "no one two three four five six seven eight nine ten eleven twelve several many some few both all "
    "another other each every more"
)
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
# The most common adjectives of captions: the word after one of them is not a verb.
ADJECTIVES = _words(
    "red yellow green blue purple pink brown black white gray grey orange golden silver dark light bright "
    "small large big little tiny huge tall short long old young new wooden metal plastic empty full open "
    "closed round square thick thin colorful colourful striped wet dry dirty clean busy crowded beautiful "
    "plain snowy grassy sandy rocky sunny"
)
ING_NOUNS = _words(
    "building ceiling clothing painting railing wedding ring string king wing swing morning evening thing "
    "something anything spring parking awning crossing icing pudding sling drawing lighting flooring"
)
# The most common verbs of captions, in the forms that have no ending of their own.
VERBS = _words(
    "sit sits sat stand stands stood run runs ran walk walks ride rides rode hold holds held wear wears "
    "wore play plays jump jumps eat eats ate look looks lie lies lay lays swim swims fly flies drive "
    "drives carry carries catch catches throw throws hit hits kick kicks pull pulls push pushes watch "
    "watches smile smiles sleep sleeps rest rests chase chases climb climbs pose poses wait waits hang "
    "hangs hung lean leans drink drinks show shows have has had face faces cover covers contain contains "
    "read reads cut cuts talk talks sing sings make makes take takes go goes gather gathers dance dances "
    "shine shines"
)
ADVERBS = _words("together alone away apart nearby outdoors indoors upright outside inside around")

ABBREVIATIONS = _words(
    "mr mrs ms dr prof st sr jr vs etc e.g i.e approx no vol fig inc ltd co corp mt ft ave blvd rd a.m "
    "p.m u.s u.k jan feb mar apr jun jul aug sep sept oct nov dec min max cm mm km kg lb lbs oz in"
)
# Abbreviations, and words written like one, with which a sentence may end.
MAY_END = _words(
    "etc inc ltd co corp a.m p.m u.s u.k ave blvd rd jr sr in min max cm mm km kg lb lbs oz ft no"
)


def chunks(caption: str) -> list[str]:
    """The phrases of a caption in its order, without duplicates and articles.

    Each noun phrase is one phrase, with its count, its adjectives and its location in the image. Each
    relation is one more, "subject predicate object", with both whole noun phrases, so that it cannot be
    confused with another pair. Frames that name nothing visible ("a picture of", "there are") are left out.
    """
    reader = _Reader()
    for sentence in sentences(caption):
        reader.read(sentence)
    return reader.chunks()


_SIDES = "top|bottom|left|right|middle|center|centre|front|back|side|edge|corner|end|foot"
_JOINED_LINK = re.compile(
    rf"(?:to|on|in|at|near|by|from)(?: the)? (?:(?:{_SIDES}) )?(?:{_SIDES})(?: side)? of\b"
    rf"|(?:{_SIDES}) of\b|next to\b|close to\b|on top of\b|in between\b|out of\b|away from\b|up to\b"
)
_LOCATION = re.compile(
    r"(?:on|in|at|near|to) the (?:far |upper |lower )?"
    r"(?:(?:top|bottom|left|right|middle|center|centre|back|front|background|foreground|distance|upper|lower)\b"
    r" ?)+(?:(?:hand )?(?:side|corner|half|part|edge)\b)?"
)
_FRAME = re.compile(
    r"^(?:(?:this|it) is |here is |there (?:is|are) )?"
    r"(?:(?:an?|the|this) (?:[\w-]+ )?(?:picture|photo|photograph|image|view|shot|drawing|close-up|close up)"
    r"(?: that)? (?:of|shows|showing|depicts|depicting|features|featuring|contains) )?",
    re.IGNORECASE,
)
_BACKGROUND = re.compile(r"\s*,? ?\b(?:on|against|with) an? plain background\b", re.IGNORECASE)
_TOKEN = re.compile(r"\w+(?:[-.]\w+)*(?:['’]\w+)?|[^\w\s]")


class _Noun(NamedTuple):
    words: str
    location: str = ""


class _Reader:
    """Reads sentence after sentence, token after token, and collects noun phrases and facts about them."""

    def __init__(self) -> None:
        self.nouns: list[_Noun] = []
        # (subject, predicate, object); a noun phrase itself has the predicate ""
        self.facts: list[tuple[int, str, int | None]] = []
        self._begin_sentence()

    def _begin_sentence(self) -> None:
        self.first: int | None = None  # the first noun phrase of the sentence
        self.subject: int | None = None
        self.predicate: list[str] = []
        self.related = False  # whether the subject is the object of a relation
        self.relative = False  # whether a relative clause is about it
        self.complete = False  # whether the predicate can stand without an object
        self.leading_location = ""  # a location named before its noun phrase

    def chunks(self) -> list[str]:
        chunks: dict[str, str] = {}
        for subject, predicate, object in self.facts:
            words, location = self.nouns[subject]
            end = "" if object is None else self.nouns[object].words
            text = (f"{words} {predicate} {end}" if predicate else f"{words} {location}").rstrip()
            chunks.setdefault(text.casefold(), text)  # the first spelling is kept
        return list(chunks.values())

    def read(self, sentence: str) -> None:
        self._begin_sentence()
        # "on a plain background" is what drawn scenes' captions say of every image.
        text = _BACKGROUND.sub("", sentence.strip())
        self.tokens = _TOKEN.findall(_FRAME.sub("", text, count=1))
        self.at = 0
        while self.at < len(self.tokens):
            self._step()
        self._close()

    def _step(self) -> None:
        """Read the next word, or the next words that belong together."""
        word = self._word()
        if self._location() or self._joined_link():
            return
        if not word[0].isalnum() or word in BREAKS:
            self._close()
            self.at += 1
        elif word in SUBJECT_PRONOUNS:
            self._close()
            self.subject = self.first
            self.at += 1
        elif word in RELATIVES and self.at and self._word(1) in BE | VERBS:
            self.relative = True
            self.at += 1
        elif word in ("each", "one") and self._word(1) in ("other", "another"):
            # "facing each other" is a predicate without an object.
            self._take(2)
            self._close()
        elif word in OBJECT_PRONOUNS:
            self._close()
            self.at += 1
        elif word in BE:
            self._finite()
            self.at += 1
            if not self.predicate and self._plain(self._word()) and not _JOINED_LINK.match(self._rest()):
                self.predicate.append(word)
        elif word in PREPOSITIONS or word == "of":
            self._take()
        else:
            self._words()

    def _word(self, further: int = 0) -> str:
        at = self.at + further
        return self.tokens[at].lower() if at < len(self.tokens) else ""

    def _rest(self) -> str:
        """The next seven words, enough for every pattern of several words."""
        return " ".join(self.tokens[self.at : self.at + 7]).lower()

    def _location(self) -> bool:
        """Read a location such as "on the left", of the noun phrase before it or of the next one."""
        match = _LOCATION.match(self._rest())
        if not match:
            return False
        words = len(match[0].split())
        if self._word(words) == "of":
            return False
        location = " ".join(self.tokens[self.at : self.at + words]).lower()
        self.at += words
        start = self.at - words
        apart = start == 0 or not self.tokens[start - 1][0].isalnum() or self._word(-words - 1) in BREAKS
        noun_follows = self._word() in BE | DROPPED | COUNTS | {"there"}
        if self.subject is None or (apart and noun_follows):
            self._close()
            self.leading_location = location
            while self._word() in BE | {"there", ","}:
                self.at += 1
            self.subject = None
        elif self.complete:
            self._close(location)
        else:
            self._close()
            self.nouns[self.subject] = self.nouns[self.subject]._replace(location=location)
        return True

    def _joined_link(self) -> bool:
        """Read a preposition of several words, such as "next to"."""
        match = _JOINED_LINK.match(self._rest())
        if match:
            self._take(len(match[0].split()))
        return match is not None

    def _take(self, words: int = 1) -> None:
        """Read words of the predicate."""
        self.predicate += self.tokens[self.at : self.at + words]
        self.at += words

    def _finite(self) -> None:
        """A finite verb takes the first noun phrase as its subject: "a man in a hat | is ..."."""
        if self.related and not self.relative:
            self._close()
            self.subject = self.first

    def _plain(self, word: str) -> bool:
        """Return whether the word is of an open class: a noun, adjective, verb or adverb."""
        closed = DROPPED | BREAKS | BE | SUBJECT_PRONOUNS | OBJECT_PRONOUNS | PREPOSITIONS | {"of"}
        return bool(word) and word[0].isalnum() and word not in closed

    def _words(self) -> None:
        """Read a run of open-class words, with or without an article: a noun phrase, a predicate, or both."""
        article = self._word()
        opened = article in DROPPED or article in COUNTS or article.isdigit()
        run: list[str] = []
        while self._word() in DROPPED:
            self.at += 1
        while self._plain(self._word()):
            if run and (_JOINED_LINK.match(self._rest()) or _LOCATION.match(self._rest())):
                break
            starts = self._word() in COUNTS or self._word().isdigit()
            if run and starts and run[-1].lower() not in COUNTS:
                break
            run.append(self.tokens[self.at])
            self.at += 1
            listed = self._adjectives(run) and run[-1].lower() in ADJECTIVES and self._plain(self._word(1))
            if listed and self._word() in ("and", ","):
                if self._word() == "and":
                    run.append("and")
                self.at += 1
        if run:
            self._split(run, opened, article in ("a", "an", "one"))

    def _adjectives(self, run: list[str]) -> bool:
        return all(word.lower() in ADJECTIVES | COUNTS | {"and"} for word in run)

    def _split(self, run: list[str], opened: bool, single: bool) -> None:
        """Read a run of open-class words as a noun phrase, a predicate, or one after the other."""
        described = not opened and self.subject is not None and self.predicate and self.predicate[-1] in BE
        if described and self._adjectives(run):
            self.predicate += run
            self.complete = True
            self._close()
            return
        verb = self._find_verb(run, opened, single)
        if verb:
            self._noun(run[:verb])
        if verb == len(run):
            return
        if run[verb].lower() in VERBS and not self.predicate:
            self._finite()
        end = verb + 1
        while end < len(run) and (run[end].lower() in ADVERBS or run[end].lower().endswith("ly")):
            end += 1
        predicate = run[verb:end]
        after_predicate = run[end:]
        if _is_verb(run[verb].lower()):
            self.predicate = [word for word in self.predicate if word.lower() not in BE]
        self.predicate += predicate
        self.complete = True
        if after_predicate:
            self._split(after_predicate, False, False)

    def _find_verb(self, run: list[str], opened: bool, single: bool) -> int:
        """The index in the run at which the predicate begins, that of its end where there is none."""
        following = self._word()
        for index, word in enumerate(map(str.lower, run)):
            last = index == len(run) - 1
            if index == 0:
                # "a running dog" begins with an adjective, "is running" with a predicate.
                begins = not opened and self.subject is not None and not (self.predicate and self.complete)
                described = last and self.predicate and self.predicate[-1] in BE
                if begins and (_is_verb(word) or described):
                    return 0
                continue
            if run[index - 1].lower() in ADJECTIVES | COUNTS | {"and"}:
                continue
            if _is_verb(word):
                return index
            if last and (following in DROPPED | COUNTS or following.isdigit()):
                return index
            finite = word.endswith("ed") or (single and re.search(r"[^sui]s$", word))
            if last and following in PREPOSITIONS and finite:
                return index
        return len(run)

    def _noun(self, run: list[str]) -> None:
        """Add a noun phrase, and its relation to the subject where there is a predicate."""
        if not self.predicate and self.subject is not None and self.complete:
            self._close()
        words = " ".join(run)
        # "a group of people" is one noun phrase.
        if self.predicate == ["of"] and self.facts and self.subject is not None:
            group = self.nouns[self.subject]
            self.nouns[self.subject] = group._replace(words=f"{group.words} of {words}")
            self.predicate = []
            return
        predicate = " ".join(self.predicate)
        subject = self.subject
        self.nouns.append(_Noun(words, self.leading_location))
        index = len(self.nouns) - 1
        self.facts.append((index, "", None))
        self.related = bool(predicate) and subject is not None
        if predicate and subject is not None:
            self.facts.append((subject, predicate, index))
        self.leading_location = ""
        self.predicate = []
        self.complete = False
        self.relative = False
        self.subject = index
        if self.first is None:
            self.first = index

    def _close(self, location: str = "") -> None:
        """End a predicate that has no object."""
        if self.complete and self.subject is not None:
            self.facts.append((self.subject, " ".join([*self.predicate, location]).strip(), None))
        self.predicate = []
        self.complete = False


def _is_verb(word: str) -> bool:
    """Return whether a word is a verb, by the list or by its ending."""
    return word in VERBS or (len(word) > 4 and word.endswith("ing") and word not in ING_NOUNS)


# sentences

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
    return [sentence for sentence in stripped if any(map(str.isalnum, sentence))]  # not marks alone


def _ends(line: str, match: re.Match[str]) -> bool:
    """Return whether a mark ends a sentence, by the word before it and the character behind it."""
    after = line[match.end() :].lstrip()
    if not after:
        return True
    opening = after.lstrip("\"'“‘«([{")[:1]
    begins = opening.isupper() or opening.isdigit() or not opening.islower()
    mark = match["mark"]
    if mark == "…" or mark.startswith(".."):
        return begins
    if mark != ".":
        # "Stop!" says the man: the quotation ends, the sentence does not.
        return begins or not match["closers"]
    word = re.search(r"[\w.]*$", line[: match.start()])
    last = word[0] if word else ""
    if last.lower() in ABBREVIATIONS:
        return last.lower() in MAY_END and begins and not (last.lower() == "no" and opening.isdigit())
    # All capitals but I, which ends sentences as a word ("Tom and I.").
    initial = re.fullmatch(r"[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z]", last)
    return initial is None
