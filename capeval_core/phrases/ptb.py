"""A Penn Treebank tokenizer, for CIDEr and the like: `don't` is `do n't`.

It reproduces Stanford's PTBTokenizer (CoreNLP 3.4.1, lower case, then without punctuation) as COCO's caption
evaluation calls it. The rules were derived from its output, and compared with it: equal on 168,291 captions,
on 99.9% of texts made to be hard, and on 60,000 of 60,000 of numbers, dates, fractions, units and marks.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

REVISION = 2  # raised with any change that moves a token
# Tokens that COCO's evaluation leaves out. Brackets stay, as `-lrb-`: it looks for them in capitals.
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
_SHORT = 200  # characters of a text whose words are kept: 65,536 texts of 50 take 25 MB, and of 200 45


def ptb_tokens(text: str) -> list[str]:
    """The tokens of one caption, in lower case, without punctuation.

    Line breaks count as spaces, and what the tool cannot read (emoji, control and zero-width characters,
    letters that are newer than it) is left out. The few tokens of several words, such as telephone numbers
    and `3 1/2`, hold no-break spaces: to ROUGE-L they are one word, to n-grams several. Each caption is read
    by itself; the tool reads a whole file, so that there a single letter at the end of a caption ("the letter
    A.") keeps its full stop or not by what the next caption begins with.

    >>> ptb_tokens("Two dogs don't run (a man's cat can't).")
    ['two', 'dogs', 'do', "n't", 'run', '-lrb-', 'a', 'man', "'s", 'cat', 'ca', "n't", '-rrb-']
    """
    if _SIMPLE(text):
        words = text.lower().replace(",", " ").replace(".", " ").split()
        if _SPLIT.isdisjoint(words) and (len(words[-1]) > 1 or "." not in text) and words[-1] not in _STOPPED:
            return words
    return [token for token in _tokens(text) if token and token not in PUNCTUATION]


def shared_words(text: str) -> Sequence[str]:
    """`ptb_tokens` of a text, which several metrics ask for; the latest ones of short texts are kept."""
    return _kept(text) if len(text) <= _SHORT else ptb_tokens(text)


@lru_cache(maxsize=1 << 16)
def _kept(text: str) -> tuple[str, ...]:
    return tuple(map(sys.intern, ptb_tokens(text)))


def ptb_text(texts: Iterable[str]) -> list[str]:
    """Write each caption as its tokens with one space between, the form in which token files hold them."""
    return [" ".join(ptb_tokens(text)) for text in texts]


def _tokens(text: str) -> list[str]:
    """All tokens, most punctuation too, in lower case. Those of several words hold no-break spaces."""
    if "&" in text:
        text = _ENTITY.sub(lambda name: _ENTITIES[name[1].lower()] + (UNKNOWN if name[2] else ""), text)
    kinds = text
    if not _ORDINARY(text):
        text = text.translate(_SAME)
        kinds = text.translate(_KINDS)
    if "&" in text:
        kinds = _ACCENTED.sub(lambda name: MARK * len(name[0]), kinds)
    tokens: list[str] = []
    at = 0
    end = len(text)
    while at < end:
        plain = _PLAIN.match(kinds, at)
        if plain:
            tokens.append(plain[0].lower())
            at = plain.end()
            continue
        if kinds[at] in _SKIPPED or (kinds[at] == "." and at + 1 == end):  # a full stop is left out
            at += 1
            continue
        best: re.Match[str] | None = None
        for rule in _RULES:
            match = rule.match(kinds, at)
            if match and (best is None or match.end() > best.end()):
                best = match
        if best is None:
            tokens.append(_spell(_SINGLE.get(text[at], text[at])))
            at += 1
        elif best.re.groups:
            # What lies beyond the groups is read again: it was only needed to recognise them.
            tokens += [_spell(text[slice(*span)]) for span in best.regs[1:] if span[0] < span[1]]
            at = best.end(best.lastindex or 0)
        else:
            tokens.append(_spell(text[at : best.end()]))
            at = best.end()
    return tokens


def _spell(token: str) -> str:
    token = "\xa0".join(token.lower().split())
    if not token:
        return token
    if token[0] == "’" and token[1:] in ("s", "m", "d", "ll", "re", "ve"):
        return "'" + token[1:]
    if len(token) == 2 and not token.isalnum() and token[1] in _QUOTES:
        return _QUOTES.get(token[0], token[0]) + _QUOTES[token[1]]
    if len(token) > 1 and (token[-1] in "()" or token[0] == "("):  # a face or the number of a telephone
        return token.replace("(", "-lrb-").replace(")", "-rrb-")
    if token.startswith("..."):
        return "..."
    return _SPELT.get(token, token)


# One character per kind, which stands for all of that kind in the rules. The tool was tried with each one up
# to U+FFFF, between letters, between digits and alone; beyond ASCII it knows the Unicode of its time.
LETTER, DIGIT, MARK, SYMBOL, HYPHEN, SPACE, UNKNOWN = "é", "٣", "\u0301", "§", "‐", "\xa0", "\ufffd"

# Letters and digits newer than the tool, which leaves them out, and gaps where newer ones may come.
_NEWER = (
    r"\u037f-\u0383\u0528-\u0530\u0560\u0588\u05eb-\u05ef\u085f-\u088f\u08a1\u08ad-\u08c9\u0978\u0980"
    r"\u09fc\u0af2-\u0af9\u0c34\u0c5a-\u0c5f\u0c80\u0cd7-\u0cdd\u0d04\u0d50-\u0d5f\u0de0-\u0df1"
    r"\u0e85-\u0e86\u0e89\u0e8b-\u0e8c\u0e8e-\u0e93\u0e98\u0ea0\u0ea8-\u0ea9\u0eac\u13f5-\u13ff"
    r"\u16f1-\u16ff\u170d\u1716-\u171f\u1878-\u187f\u191d-\u191f\u19ac-\u19c0\u19c8-\u19cf\u1b4c-\u1b4f"
    r"\u1c80-\u1cbf\u1cf2-\u1cf3\u1cfa-\u1cff\u2c2f\u2c5f\u312e-\u3130\u31bb-\u31bf\u4db6-\u4dbf"
    r"\u9fcd-\u9fff\ua698-\ua69d\ua78f\ua794-\ua79f\ua7ab-\ua7f7\ua8fd-\ua8fe\ua9e0-\ua9ff\uaa7e-\uaa7f"
    r"\uab2f-\uabbf"
)
# Accents and other signs on letters: they continue a word, but begin none after a digit.
_MARKS = (
    r"\u02c2-\u02c5\u02d2-\u02df\u02e5-\u02eb\u02ed\u02ef-\u036f\u0375\u0378-\u0379\u0384-\u0385\u03f6"
    r"\u0483-\u0487\u055a-\u055f\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7\u0615-\u061a"
    r"\u064b-\u065e\u0670\u06d6-\u06e4\u06e7-\u06ed\u06fd-\u06fe\u070f\u0711\u0730-\u074c\u07a6-\u07b0"
    r"\u07eb-\u07f3\u0900-\u0903\u093c\u093e-\u094e\u0951-\u0955\u0962-\u0963\u0981-\u0983\u09bc"
    r"\u09be-\u09c4\u09c7-\u09c8\u09cb-\u09cd\u09d7\u09e2-\u09e3\u0a01-\u0a03\u0a3c\u0a3e-\u0a4f"
    r"\u0a81-\u0a83\u0abc\u0abe-\u0acf\u0b82\u0bbe-\u0bc2\u0bc6-\u0bc8\u0bca-\u0bcd\u0c01-\u0c03"
    r"\u0c3e-\u0c56\u0d3e-\u0d44\u0d46-\u0d48\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc"
    r"\u0ec8-\u0ecd"
)
# Characters beyond Latin-1 that are a token by themselves.
_SYMBOLS = (
    r"\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6\u05f3-\u05f4\u0600-\u0603\u0606-\u060c\u0614\u061b"
    r"\u061e-\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964-\u0965\u0e3f\u0e4f\u1fbd"
    r"\u2016-\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2070\u2074-\u207e\u2080-\u208e"
    r"\u20a4\u2100-\u2101\u2103-\u2106\u2108-\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129"
    r"\u212e\u213a-\u213b\u2140-\u2144\u214a-\u214d\u214f\u2155-\u215e\u2190-\u2bff\u3001-\u3002\u3012"
    r"\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\uffe0-\uffe1\uffe5-\uffe6"
)


class _Kinds(dict[int, str]):
    """Table for `str.translate`: each character -> the one that stands for its kind."""

    def __missing__(self, code: int) -> str:
        if code > 0xFFFF:  # emoji and the like: the tool has none of them
            return UNKNOWN
        self[code] = kind = _kind(chr(code))
        return kind


def _kind(character: str) -> str:
    if character < "\x7f" or character in _THEMSELVES:
        return character if character >= " " else " " if character in "\t\n\v\f\r" else UNKNOWN
    if character in _ALIKE:
        return _ALIKE[character]
    if _SPACE.match(character):
        return SPACE
    if _MARK.match(character):
        return MARK
    if _SYMBOL.match(character):
        return SYMBOL
    if character in "\u058a\u2010\u2011":
        return HYPHEN
    if _NEWER_ONE.match(character):
        return UNKNOWN
    category = unicodedata.category(character)
    if category == "Nd":
        return DIGIT
    return LETTER if category.startswith("L") or character in "\u1885\u1886" else UNKNOWN


_THEMSELVES = frozenset("‚„¡¢£¤¥¦§¨©¬®¯°±´¶·¸¿×÷¼½¾⅓⅔«»‘’“”–—―…€₠⁄\u066b\u066c")
_ALIKE = dict(zip("¹²³⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉⁺⁻₊₋", "²²²²²²²²²²₂₂₂₂₂₂₂₂₂₂⁻⁻₋₋", strict=True))
_SPACE = re.compile(r"[\xa0\u2000-\u200a\u3000\u2028\u2029]")
_NEWER_ONE, _MARK, _SYMBOL = (re.compile(f"[{ranges}]") for ranges in (_NEWER, _MARKS, _SYMBOLS))

_KINDS = _Kinds()
_ORDINARY = re.compile(r"[ -~]*").fullmatch
_SKIPPED = f" \xa0{UNKNOWN}"
# Replaced before reading: codes of Windows and rare signs. Soft hyphens are removed.
_SAME = str.maketrans(
    {"\x80": "€", "¤": "€", "₠": "€", "\x85": "…", "\x91": "‘", "‛": "‘", "‹": "‘", "\x92": "’", "›": "’"}
    | {"\x93": "“", "\x94": "”", "\x96": "–", "\x97": "—", "\u00ad": None}
)
_ENTITIES = {"amp": "&", "apos": "'", "quot": '"', "nbsp": " "}
# Entities read as the character that they name; an entity that it would begin stays a word (`&amp;lt;`).
_ENTITY = re.compile(
    r"&\s?((?i:amp|nbsp)|apos|quot)\s?;(?=((?:#[0-9]+|(?i:amp|nbsp|lt|gt|quot|apos|md|[mn]dash));)?)"
)
_ACCENTED = re.compile(r"&[aeiou](?:acute|grave|uml);", re.IGNORECASE)
_SINGLE = {
    "‐": "-", "‑": "-", "֊": "-", "٫": "", "٬": "",
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    '"': "''", "“": "``", "”": "''", "«": "``", "»": "''", "‘": "`", "’": "'",
    "–": "--", "—": "--", "―": "--", "…": "...",
    "£": "#", "€": "$", "¢": "cents", "½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
}  # fmt: skip

# Abbreviations, of titles above all, that keep their full stop in the Penn Treebank's tokens.
_BEFORE_NAMES = str.split(
    "adj adm adv alex assoc asst atty ave brig capt cf cie cmdr col comdr cpl dept det dr drs elec ens ft "
    "gen gov govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms msgr mt mtg natl pfc ph "
    "pres prof profs pvt rep reps rev sen sens sfc sgt spc st ste supt vs wm"
)
# Abbreviations that keep it, too, and may end a sentence: a single character behind it is not joined.
_ENDINGS = str.split(
    "al ala apr ariz assn aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est "
    "etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb "
    "nev nov oct okla penn plc ppte ppty pte ptes pty ptys rd rt sep sept seq sq sr sys tel tenn thu "
    "thurs tue tues univ va vt wed wis wisc wyo"
)
# Abbreviations that keep it where they begin with a capital.
_STATES = str.split("ark az del ill la mass miss ore pa tex wash")
_ENDINGS_OF_FILES = str.split(
    "bat bmp c class cgi cpp dll doc docx exe gif gz h htm html jar java jpeg jpg mov mp3 pdf php pl png ppt "
    "ps py sql tar txt wav x xml zip"
)
# Words that begin a sentence after a single letter with a full stop.
_STARTERS = str.split(
    "a about according after an as at but earlier he her here however if in it last many more now once "
    "one other our she since so some such that the their then there these they this we what when while "
    "yet you"
)

_L = f"[A-Za-z{LETTER}{MARK}]"
_A = f"[A-Za-z0-9{LETTER}{DIGIT}{MARK}]"
_T = f"[A-Za-z0-9{LETTER}{DIGIT}]"
_JOINED = f"(?:[dDoOlL]['’`‘])?{_T}+"  # what a hyphen joins
_Q = r"['’]"  # an apostrophe
_CONTRACTED = r"(?:[sS]|[mM]|[dD]|[lL][lL]|[rR][eE]|[vV][eE])(?![A-Za-z])"
_WITHIN = rf"(?:{_Q}(?!{_CONTRACTED})|[`‘])"  # an apostrophe inside a word
_BEYOND = r"[^\s\"<>|()]"  # what an address may contain
_LAST = r"[^\s\"<>|.!?(){},-]"  # what it may end with


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


def _capitalized(words: Iterable[str]) -> str:
    return "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in sorted(words))


_WORD = rf"{_L}{_A}*(?:[.!?]{_L}{_A}*)*"
_HYPHENATED = r"[A-Za-z0-9][A-Za-z0-9.,]{0,100}(?:-(?:[A-Za-z](?:\.[A-Za-z])+\.|[A-Za-z0-9]+))+"
_UNDERLINED = rf"{_T}+(?:[_-]{_T}+)+"
# The tool looks two characters beyond these, which makes them longer than `Jan.a` and `Jan.-3`.
_STOPPED_WORD = rf"((?i:(?:ph|ed)\.d|{_any(_ENDINGS)})\.|(?:{_capitalized(_STATES)})\.)"
_STARTER = _capitalized(_STARTERS)
_SPLIT = frozenset(["cannot", "gonna", "gotta", "gimme", "lemme", "wanna"])
# A number before a number may begin a fraction, as in `3 1/2`, or that of a telephone.
_PLAIN = re.compile(rf"(?!(?:{_any(_SPLIT)})\b|[0-9]+ [0-9])[a-z0-9]+(?=\s|$|,\s)", re.ASCII | re.IGNORECASE)
# A caption whose only marks are commas between words and a full stop at its end: its words are tokens, but
# for those that the rules split, and for a last one whose stop may be its own. What may be the number of a
# telephone is left to the rules.
_SIMPLE = re.compile(
    r" *[a-z0-9]+(?:(?: ?, +| +(?![0-9]{3}[0-9 ]{3}))[a-z0-9]+)* *\.? *", re.ASCII | re.IGNORECASE
).fullmatch
_STOPPED = frozenset([*_BEFORE_NAMES, *_ENDINGS, *(state.lower() for state in _STATES)])
# The longest match counts, among equals the first. Groups, where a rule has them, are the tokens. A rule that
# looks for a sign far behind looks only so far, else each token of a text without blanks is read to its end.
_RULES = tuple(
    re.compile(rule)
    for rule in (
        rf"(?i:(can)(not)|(gon)(na)|(got)(ta)|(gim)(me)|(lem)(me)|(wan)(na))(?!{_A}|{_Q}{_CONTRACTED})",
        r"((?i:ph\.d)\.)[A-Za-z-]+",
        # Words: joined by stops inside, by hyphens (with stops and commas before them), by underlines.
        _STOPPED_WORD + ".?$",
        _WORD,
        rf"{_T}+",
        rf"{_JOINED}(?:[-‐]{_JOINED})+",
        rf"<?[A-Za-z0-9]{_BEYOND}{{0,200}}@(?:[^\s\"<>|().]+\.)*[^\s\"<>|().]+>?",
        _STOPPED_WORD + rf"(?!{_L}{_Q}{_CONTRACTED})..",
        _HYPHENATED,
        r"(?i:anti|pro)-",
        _UNDERLINED,
        r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}",
        r"[A-Z]+(?:[+&][A-Z]+)+",
        r"[cC]\+\+|[cCfF]#",
        # Apostrophes.
        rf"({_L}+?(?<!n))n['’`‘]t",
        rf"({_L}+?(?<!N))N['’`‘]T",
        rf"[nN]['’`‘][tT]{_A}*",
        rf"'{_CONTRACTED}",
        r"’(?i:s|m|d|ll|re|ve)",
        rf"[dDlLoO]{_WITHIN}{_A}{{2,}}",
        rf"[A-CE-HJKMNP-XZn]{_WITHIN}{_L}{{2,}}",
        rf"[dDlL]{_Q}(?!{_CONTRACTED})",
        rf"([jJyY]{_Q})(?!{_CONTRACTED}){_L}",
        rf"{_L}+[aeiouyAEIOUY]{_WITHIN}[aeiouA-Z]{_L}*",
        rf"(?i:(?:n?e|o){_Q}er|cap{_Q}n|ol{_Q}|li{_Q}l|ma{_Q}am|c{_Q}mon|c{_Q}est|s{_Q}mores|(?:pres)?qu{_Q}{_L}+)(?!{_A})",
        rf"{_Q}(?i:em|[2-9]0s|n{_Q})",
        rf"’[nN]|{_Q}(?:[nN]|[0-9][0-9])(?=\s|$)",
        rf"{_Q}(?i:till?|cause)(?!{_A})",
        rf"({_Q}[tT])(?i:is|was)",
        # Stops that belong to the word.
        rf"(?i:{_any(_BEFORE_NAMES)})\.",
        r"(?i:((?:art|ca|figs?|nos?|op|pp|prop)\.)\s?\d)",
        rf"[A-Za-z]\.(?!\s+(?:(?:{_STARTER})(?:\s|$)|M[rs]\.)|\s*<)",
        r"[A-Za-z](?:\.[A-Za-z])+\.",
        rf"((?:{_HYPHENATED}|{_UNDERLINED}|(?:{_A}+\.?-){{0,50}}(?:{_A}+|{_WORD}))\.)[,;:]",
        r"([A-Z]+(?:[+&][A-Z]+)+\.)[,;:]",
        # Numbers, dates, money.
        rf"[-+]?(?:[0-9{DIGIT}]*(?:[.:,٫٬][0-9{DIGIT}]+)+|[0-9{DIGIT}]+)",
        r"[0-9]{1,2}[/-][0-9]{1,2}[/-][0-9]{2,4}",
        rf"{_T}+(?:\.{_T}+){{0,20}}\.(?i:{_any(_ENDINGS_OF_FILES)})(?=[\s\xa0.!?,]|$)",
        r"(?:[0-9]{1,4}[- \xa0])?[0-9]{1,4}(?:\\?/|⁄)[0-9]{1,4}",
        r"(?:\([0-9]{2,3}\)[ \xa0]?|\+{0,2}(?:[0-9]{2,4}[ \xa0-])?[0-9]{2,4}[ \xa0-])"
        r"[0-9]{3,4}[ \xa0-]?[0-9]{3,5}",
        r"[A-Z]{1,5}\$",
        # Addresses, names on the web, tags, entities.
        rf"(?i:https?)://{_BEYOND}+{_LAST}",
        rf"(?i:www)\.(?:[^\s\"<>|.!?(){{}},]{{1,100}}\.){{1,20}}[a-zA-Z]{{2,4}}(?:/{_BEYOND}+{_LAST})?",
        rf"(?![0-9])(?:[^\s\"`'<>|.!?(){{}}\[\],;:=^/\\_$@-]{{1,100}}\.){{1,20}}(?:com|net|org|edu)(?:/{_BEYOND}+{_LAST})?",
        r"@[A-Za-z_][A-Za-z0-9_]*",
        rf"#{_L}+",
        r"</?[A-Za-z][\w:.-]*(?:\ +[A-Za-z][\w:.-]*(?:\ *=\ *(?:'[^'\n]*'|\"[^\"\n]*\"))?)*\ */?>",
        r"<[!?][A-Za-z-][^>]{0,500}>",
        r"&(?:(?i:lt|gt|md|[uq]r|ql|qc|lr|[oc]dq|quot|apos|[mn]dash)|#[0-9]+);",
        # Faces and runs of marks.
        r"[<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]](?![A-Za-z0-9])",
        r"[-^x=~<>']_[-^x=~<>']|\([-^x=~<>'][_.]?[-^x=~<>']\)|\([\^x=~<>']-[\^x=~<>'`]\)",
        r"[?!]+",
        r"\.\.\.+",
        r"-(?i:[lr][rsc]b)-",
        r"--+",
        r"[`‘’“”«»‚„]{2}|[⁻]?²+|₋?₂+",
        r"\*+|(?:\\\*)+|#+|_+|@+|<<|>>|``|''",
    )
)
_QUOTES = {"‘": "`", "’": "'", "“": "``", "”": "''", "«": "``", "»": "''", "‚": "‚", "„": "„", "`": "`"}
_SPELT = {
    "n’t": "n't",
    "n‘t": "n`t",
    "&lt;": "<",
    "&gt;": ">",
    "&md;": "--",
    "&mdash;": "--",
    "&ndash;": "--",
    "---": "--",
    "----": "--",
}
