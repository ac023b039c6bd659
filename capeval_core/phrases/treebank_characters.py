"""What the Penn Treebank's tool takes each character for; beyond ASCII it knows the Unicode of its time.

Found by asking it about every character up to U+FFFF: between letters, between digits, and alone.
"""

from __future__ import annotations

import re
import unicodedata

LETTER, DIGIT, MARK, SYMBOL, HYPHEN, SPACE, UNKNOWN = "é", "٣", "\u0301", "§", "‐", "\xa0", "\ufffd"
"""One character for each kind, so that a rule names seven characters where there are 65,536."""

_NEWER = (
    r"\u037f-\u0383\u0528-\u0530\u0560\u0588\u05eb-\u05ef\u085f-\u088f\u08a1\u08ad-\u08c9\u0978\u0980"
    r"\u09fc\u0af2-\u0af9\u0c34\u0c5a-\u0c5f\u0c80\u0cd7-\u0cdd\u0d04\u0d50-\u0d5f\u0de0-\u0df1"
    r"\u0e85-\u0e86\u0e89\u0e8b-\u0e8c\u0e8e-\u0e93\u0e98\u0ea0\u0ea8-\u0ea9\u0eac\u13f5-\u13ff"
    r"\u16f1-\u16ff\u170d\u1716-\u171f\u1878-\u187f\u191d-\u191f\u19ac-\u19c0\u19c8-\u19cf\u1b4c-\u1b4f"
    r"\u1c80-\u1cbf\u1cf2-\u1cf3\u1cfa-\u1cff\u2c2f\u2c5f\u312e-\u3130\u31bb-\u31bf\u4db6-\u4dbf"
    r"\u9fcd-\u9fff\ua698-\ua69d\ua78f\ua794-\ua79f\ua7ab-\ua7f7\ua8fd-\ua8fe\ua9e0-\ua9ff\uaa7e-\uaa7f"
    r"\uab2f-\uabbf"
)
"""Letters and digits newer than the tool, which leaves them out, and gaps where newer ones may come."""
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
"""What goes on with a word but begins none after a digit: accents and other signs on letters."""
_SYMBOLS = (
    r"\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6\u05f3-\u05f4\u0600-\u0603\u0606-\u060c\u0614\u061b"
    r"\u061e-\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964-\u0965\u0e3f\u0e4f\u1fbd"
    r"\u2016-\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2070\u2074-\u207e\u2080-\u208e"
    r"\u20a4\u2100-\u2101\u2103-\u2106\u2108-\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129"
    r"\u212e\u213a-\u213b\u2140-\u2144\u214a-\u214d\u214f\u2155-\u215e\u2190-\u2bff\u3001-\u3002\u3012"
    r"\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\uffe0-\uffe1\uffe5-\uffe6"
)
"""What is a token by itself, beyond Latin-1."""


class Kinds(dict[int, str]):
    """The table of `str.translate` that gives each character the one that stands for its kind."""

    def __missing__(self, code: int) -> str:
        if code > 0xFFFF:  # emoji and the like: the tool knows none of them
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
