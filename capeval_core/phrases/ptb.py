"""The words that CIDEr and its kin count, as the Penn Treebank parts them: `don't` is `do n't`.

The field's tool is Stanford's PTBTokenizer (CoreNLP 3.4.1, lower case, then without punctuation) as COCO's
caption evaluation calls it. The rules here were found by watching what it makes of texts, and compared with
it (`python -m benchmarks.ptb`): equal on 168,291 captions, and on 99.9% of texts made to be hard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from capeval_core.phrases.english import TREEBANK_ABBREVIATIONS, TREEBANK_STARTERS, TREEBANK_STATES
from capeval_core.phrases.treebank_characters import DIGIT, LETTER, MARK, UNKNOWN, Kinds

PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
"""Tokens that COCO's evaluation leaves out. Brackets stay, as `-lrb-`: it looks for them in capitals."""


def ptb_tokens(text: str) -> list[str]:
    """The words of one caption, in lower case, without punctuation.

    Line breaks count as spaces, and what the tool cannot read (emoji, control and zero-width characters,
    letters that are newer than it) is left out. The few tokens that hold a space, such as telephone numbers,
    are several words here, as they are to scorers. Each caption is read by itself; the tool reads a whole
    file, so that there a single letter at the end of a caption ("the letter A.") keeps its full stop or not
    by what the next caption begins with.

    >>> ptb_tokens("Two dogs don't run (a man's cat can't).")
    ['two', 'dogs', 'do', "n't", 'run', '-lrb-', 'a', 'man', "'s", 'cat', 'ca', "n't", '-rrb-']
    """
    return " ".join([token for token in _tokens(text) if token not in PUNCTUATION]).split()


def ptb_text(texts: Iterable[str]) -> list[str]:
    """Each caption as its tokens with one space between, the form in which token files hold them."""
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
    found: list[str] = []
    at, end = 0, len(text)
    while at < end:
        plain = _PLAIN.match(kinds, at)
        if plain:
            found.append(plain[0].lower())
            at = plain.end()
            continue
        if kinds[at] in _NOTHING or (kinds[at] == "." and at + 1 == end):  # a full stop is left out
            at += 1
            continue
        best: re.Match[str] | None = None
        for rule in _RULES:
            match = rule.match(kinds, at)
            if match and (best is None or match.end() > best.end()):
                best = match
        if best is None:
            found.append(_spell(_SINGLE.get(text[at], text[at])))
            at += 1
        elif best.re.groups:
            # What lies beyond the groups is read again: it was only needed to recognise them.
            found += [_spell(text[slice(*span)]) for span in best.regs[1:] if span[0] < span[1]]
            at = best.end(best.lastindex or 0)
        else:
            found.append(_spell(text[at : best.end()]))
            at = best.end()
    return found


def _spell(token: str) -> str:
    if not token:
        return token
    token = token.lower()
    if token[0] == "’" and token[1:] in ("s", "m", "d", "ll", "re", "ve"):
        return "'" + token[1:]
    if len(token) == 2 and not token.isalnum() and token[1] in _QUOTES:
        return _QUOTES.get(token[0], token[0]) + _QUOTES[token[1]]
    if len(token) > 1 and (token[-1] in "()" or token[0] == "("):  # a face or the number of a telephone
        return token.replace("(", "-lrb-").replace(")", "-rrb-")
    if token.startswith("..."):
        return "..."
    return _SPELT.get(token, token)


_KINDS = Kinds()
_ORDINARY = re.compile(r"[ -~]*").fullmatch
_NOTHING = f" \xa0{UNKNOWN}"
_SAME = str.maketrans(
    {"\x80": "€", "¤": "€", "₠": "€", "\x85": "…", "\x91": "‘", "‛": "‘", "‹": "‘", "\x92": "’", "›": "’"}
    | {"\x93": "“", "\x94": "”", "\x96": "–", "\x97": "—", "\u00ad": None}
)
"""Read as if the other was written: Windows' own codes and rare signs. Soft hyphens are not there at all."""
_ENTITIES = {"amp": "&", "apos": "'", "quot": '"', "nbsp": " "}
_ENTITY = re.compile(
    r"&\s?((?i:amp|nbsp)|apos|quot)\s?;(?=((?:#[0-9]+|(?i:amp|nbsp|lt|gt|quot|apos|md|[mn]dash));)?)"
)
"""What is read as the character that it names; what that character would begin stays a word (`&amp;lt;`)."""
_ACCENTED = re.compile(r"&[aeiou](?:acute|grave|uml);", re.IGNORECASE)
_SINGLE = {
    "‐": "-", "‑": "-", "֊": "-", "٫": "", "٬": "",
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    '"': "''", "“": "``", "”": "''", "«": "``", "»": "''", "‘": "`", "’": "'",
    "–": "--", "—": "--", "―": "--", "…": "...",
    "£": "#", "€": "$", "¢": "cents", "½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
}  # fmt: skip

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


_STARTER = "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in sorted(TREEBANK_STARTERS))
_PLAIN = re.compile(
    r"(?!(?:cannot|gonna|gotta|gimme|lemme|wanna)\b)[a-z0-9]+(?=\s|$|,\s)", re.ASCII | re.IGNORECASE
)
# The longest match counts, among equals the first. Groups, where a rule has them, are the tokens.
_RULES = tuple(
    re.compile(rule)
    for rule in (
        rf"(?i:(can)(not)|(gon)(na)|(got)(ta)|(gim)(me)|(lem)(me)|(wan)(na))(?!{_A}|{_Q}{_CONTRACTED})",
        r"((?i:ph\.d)\.)[A-Za-z-]+",
        # Words: joined by stops inside, by hyphens (with stops and commas before them), by underlines.
        rf"{_L}{_A}*(?:[.!?]{_L}{_A}*)*",
        rf"{_T}+",
        rf"{_JOINED}(?:[-‐]{_JOINED})+",
        r"[A-Za-z0-9][A-Za-z0-9.,]{0,100}(?:-[A-Za-z0-9]+)+",
        r"[A-Za-z0-9]+-(?:[A-Za-z0-9]+-)*[A-Za-z](?:\.[A-Za-z])+\.(?:-[A-Za-z0-9]+)*",
        r"(?i:anti|pro)-",
        rf"{_T}+(?:[_-]{_T}+)+",
        r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}",
        r"[A-Z]+(?:[+&][A-Z]+)+",
        r"[cC]\+\+|[cCfF]#",
        # Apostrophes.
        rf"({_L}+?(?<!n))n['’`‘]t",
        rf"({_L}+?(?<!N))N['’`‘]T",
        rf"[nN]['’`‘][tT]{_A}*",
        rf"'{_CONTRACTED}",
        r"’(?i:s|m|d|ll|re|ve)",
        rf"[A-HJ-XZdoln]{_WITHIN}{_A}{{2,}}",
        rf"[dDlL]{_Q}(?!{_CONTRACTED})",
        rf"([jJyY]{_Q})(?!{_CONTRACTED}){_L}",
        rf"{_L}+[aeiouyAEIOUY]{_WITHIN}[aeiouA-Z]{_L}*",
        rf"(?i:(?:n?e|o){_Q}er|cap{_Q}n|ol{_Q}|li{_Q}l|ma{_Q}am|c{_Q}mon|c{_Q}est|s{_Q}mores|(?:pres)?qu{_Q}{_L}+)(?!{_A})",
        rf"{_Q}(?i:em|[0-9][0-9]s|n{_Q})",
        rf"’[nN]|{_Q}(?:[nN]|[0-9][0-9])(?=\s|$)",
        rf"{_Q}(?i:till?|cause)(?!{_A})",
        rf"({_Q}[tT])(?i:is|was)",
        # Stops that belong to the word.
        rf"(?i:ph\.d|{_any(TREEBANK_ABBREVIATIONS)})\.",
        rf"(?:{'|'.join(f'{word[0].upper()}(?i:{word[1:]})' for word in sorted(TREEBANK_STATES))})\.",
        r"(?i:((?:art|ca|figs?|nos?|op|pp|prop)\.)\s?\d)",
        rf"[A-Za-z]\.(?!\s+(?:(?:{_STARTER})(?:\s|$)|M[rs]\.)|\s*<)",
        r"[A-Za-z](?:\.[A-Za-z])+\.",
        rf"((?:{_A}+\.?-)*(?:{_A}+|{_L}{_A}*(?:[.!?]{_L}{_A}*)*)\.)[,;:]",
        r"([A-Z]+(?:[+&][A-Z]+)+\.)[,;:]",
        # Numbers, dates, money.
        rf"[-+]?(?:[0-9{DIGIT}]*(?:[.:,٫٬][0-9{DIGIT}]+)+|[0-9{DIGIT}]+)",
        r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{2,4}",
        rf"[0-9]+\.x(?!{_A})",
        r"(?:[0-9]{1,4}[- \xa0])?[0-9]{1,4}(?:\\?/|⁄)[0-9]{1,4}",
        r"(?:\([0-9]{2,3}\)[ \xa0]?|(?:\+?[0-9]{2,4}[ \xa0-])?[0-9]{2,4}[ \xa0-])"
        r"[0-9]{3,4}[ \xa0/-]?[0-9]{3,5}",
        r"[A-Z]{1,5}\$",
        # Addresses, names on the web, tags, entities.
        rf"(?i:https?)://{_BEYOND}+{_LAST}",
        rf"(?i:www)\.(?:[^\s\"<>|.!?(){{}},]+\.)+[a-zA-Z]{{2,4}}(?:/{_BEYOND}+{_LAST})?",
        rf"(?![0-9])(?:[^\s\"`'<>|.!?(){{}}\[\],;:=^/\\_$@-]+\.)+(?:com|net|org|edu)(?:/{_BEYOND}+{_LAST})?",
        rf"<?[A-Za-z0-9]{_BEYOND}*@(?:[^\s\"<>|().]+\.)*[^\s\"<>|().]+>?",
        r"@[A-Za-z_][A-Za-z0-9_]*",
        rf"#{_L}+",
        r"</?[A-Za-z][\w:.-]*(?:\ +[A-Za-z][\w:.-]*(?:\ *=\ *(?:'[^'\n]*'|\"[^\"\n]*\"))?)*\ */?>",
        r"<[!?][A-Za-z-][^>]*>",
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
