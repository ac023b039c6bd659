"""The tokeniser beside COCO's Java tool: on captions, on texts that are hard to tokenise, and how fast it is.

    python -m benchmarks.ptb [CAPTIONS ...] [--count 2800] [--seed 0] [--write tests/phrases/ptb_hard.json.gz]

CAPTIONS are folders or files of JSON, JSON lines or CSV, of which every text is read. Needs Java
(`apt install default-jre-headless`) and the jar that `pip install pycocoevalcap` brings along (about 100 MB); or
give the jar by `--jar`. `--write` keeps the hard texts with the tool's tokens, which the tests compare with.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from capeval_core.phrases.ptb import ptb_text

_PIECES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("ptb_pieces.json").read_text(encoding="utf-8")
)
_REMOVED = set("'' ' `` ` -LRB- -RRB- -LCB- -RCB- . ? ! , : - -- ... ;".split())
"""What pycocoevalcap leaves out of the tool's tokens. Brackets are spelt in lower case by then, so they stay."""
_ENDS = ["", "", "", "", ".", ",", "!", "?", ";", ":", "...", '"', "'", ")", "…", " .", ".)", '."', "?!"]
_STARTS = ["", "", "", "", "(", '"', "'", "“", "‘", "-", "#", "`", "$", "[", "...", "pre-", "non-", "/"]
_JOINTS = ["", "-", "/", ".", "'", "’", ",", ":", "&", "_", "–", "—", "...", "\u00a0", "\u200b", "+", "  ", "("]
_CHARACTERS = "aAbst.'’`-–,:;()/&$#@1290½…\u0301\u00ad\u200b\u00a0😀éж日 \"!?<>_*%+=~|[]"


def hard_texts(count: int, seed: int = 0) -> dict[str, str]:
    """Distinct texts, each with its kind: the pieces by themselves first, then drawn ones in turn by kind."""
    rng = random.Random(seed)
    texts = {piece: kind for kind, pieces in _PIECES.items() for piece in pieces}
    kinds = [*_PIECES, "capitals", "characters", "mixed"]
    while len(texts) < count:
        for kind in kinds:
            texts.setdefault(_drawn(kind, rng), kind)
    return dict(list(texts.items())[:count])


def _drawn(kind: str, rng: random.Random) -> str:
    if kind == "characters":
        return "".join(rng.choices(_CHARACTERS, k=rng.randint(2, 12)))
    if kind == "capitals":
        return _drawn(rng.choice(list(_PIECES)), rng).upper()
    if kind == "mixed":
        parts = [rng.choice(_PIECES[rng.choice(list(_PIECES))]) for _ in range(rng.randint(2, 5))]
        return "".join(part + rng.choice([" ", " ", " ", *_JOINTS]) for part in parts).strip()
    piece = rng.choice(_STARTS) + rng.choice(_PIECES[kind]) + rng.choice(_ENDS)
    before, after = ([rng.choice(_PIECES["word"]) for _ in range(rng.randint(0, 3))] for _ in range(2))
    return " ".join([*before, piece, *after])


