"""The tokeniser beside COCO's Java tool: on captions, on texts that are hard to tokenise, and how fast it is.

    python -m benchmarks.ptb [CAPTIONS ...] [--count 2800] [--seed 0] [--write FILE]

CAPTIONS are folders or files of JSON, JSON lines or CSV, of which every text is read. Needs Java
(`apt install default-jre-headless`) and the jar that `pip install pycocoevalcap` brings along (about 100 MB),
or that `--jar` names. `--write` keeps the hard texts with the tool's tokens, which the tests compare with.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capeval_core.phrases.ptb import ptb_text

_PIECES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("ptb_pieces.json").read_text(encoding="utf-8")
)
_REMOVED = {"''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-"} | set(".?!,:-;") | {"--", "..."}
"""What pycocoevalcap leaves out. The tool spells brackets in lower case, so they stay."""
_ENDS = ["", "", "", "", ".", ",", "!", "?", ";", ":", "...", '"', "'", ")", "…", " .", ".)", '."', "?!"]
_STARTS = ["", "", "", "", "(", '"', "'", "“", "‘", "-", "#", "`", "$", "[", "...", "pre-", "non-", "/"]
_JOINTS = [
    "",
    "-",
    "/",
    ".",
    "'",
    "’",
    ",",
    ":",
    "&",
    "_",
    "–",
    "—",
    "...",
    "\u00a0",
    "\u200b",
    "+",
    "  ",
    "(",
]
_LINE_BREAK = re.compile("[\n\r\v\f\u2028\u2029]")
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


def java_text(texts: Sequence[str], jar: Path) -> list[str]:
    """What pycocoevalcap makes of each text, by the tool itself, run once.

    Each text stands between lines of one plain word, so that none is read on into the next. Line breaks
    become spaces first: pycocoevalcap does so with line feeds, any other would part a text into several.
    """
    lines = [line for i, text in enumerate(texts) for line in (f"zzmark{i}zz", _LINE_BREAK.sub(" ", text))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts"
        file.write_bytes("\n".join([*lines, f"zzmark{len(texts)}zz"]).encode())
        tool = "edu.stanford.nlp.process.PTBTokenizer"
        command = ["java", "-cp", str(jar), tool, "-preserveLines", "-lowerCase", str(file)]
        done = subprocess.run(
            command, check=True, capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
    answers = done.stdout.decode().split("\n")[1 : 2 * len(texts) : 2]
    if len(answers) != len(texts):
        raise RuntimeError(f"the tool gave {len(answers):,} lines for {len(texts):,} texts")
    return [
        " ".join(token for token in line.split(" ") if token and token not in _REMOVED) for line in answers
    ]


def captions_of(paths: Iterable[Path]) -> list[str]:
    """Every distinct text of at least two words in these files of JSON, JSON lines and CSV."""
    texts: dict[str, None] = {}
    for path in paths:
        for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
            if file.suffix == ".csv":
                with file.open(encoding="utf-8", newline="") as stream:
                    values: list[Any] = list(csv.reader(stream))
            elif file.suffix == ".jsonl":
                values = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
            elif file.suffix == ".json":
                values = [json.loads(file.read_text(encoding="utf-8"))]
            else:
                continue
            texts |= dict.fromkeys(text for text in _strings(values) if len(text.split()) > 1)
    return list(texts)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def differing(texts: Sequence[str], expected: Sequence[str]) -> list[str]:
    """The texts of which our words are not those of the tool, as scorers part them."""
    return [
        text
        for text, theirs, ours in zip(texts, expected, ptb_text(texts), strict=True)
        if theirs.split() != ours.split()
    ]


def _jar() -> Path:
    package = importlib.util.find_spec("pycocoevalcap")
    for folder in package.submodule_search_locations or [] if package else []:
        for jar in Path(folder).glob("tokenizer/stanford-corenlp-*.jar"):
            return jar
    sys.exit("the Java tool is not here: pip install pycocoevalcap (about 100 MB), or give it by --jar")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ptb", description=__doc__.splitlines()[0])
    parser.add_argument("captions", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=2800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jar", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    jar = given.jar or _jar()
    if shutil.which("java") is None:
        sys.exit("there is no Java: apt install default-jre-headless")

    kinds = hard_texts(given.count, given.seed)
    texts = list(kinds)
    expected = java_text(texts, jar)
    others = differing(texts, expected)
    print(f"hard texts  {len(others):6,} of {len(texts):9,} differ")
    for kind, count in Counter(kinds[text] for text in others).most_common():
        print(f"  {kind:14}{count:6,}")
    if given.write:
        rows = [[kinds[text], text, tokens] for text, tokens in zip(texts, expected, strict=True)]
        content = json.dumps(rows, ensure_ascii=False, indent=0).encode()
        given.write.write_bytes(gzip.compress(content, mtime=0))
    captions = captions_of(given.captions)
    if captions:
        others = differing(captions, java_text(captions, jar))
        print(f"captions    {len(others):6,} of {len(captions):9,} differ")
        for text in others[:10]:
            print(f"  {text!r}")
    for name, timed in (("hard texts", texts), ("captions", captions)):
        if timed:
            best = min(_seconds(timed) for _ in range(5))
            print(f"{name:12}{len(timed) / best:9,.0f} a second")


def _seconds(texts: Sequence[str]) -> float:
    start = time.process_time()
    ptb_text(texts)
    return time.process_time() - start


if __name__ == "__main__":
    main()
