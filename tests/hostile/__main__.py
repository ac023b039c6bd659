"""Make the table again: `python -m tests.hostile --write`; without the flag, show every refusal.

What is stored and still true is kept. Read the new lines before you commit them.
"""

from __future__ import annotations

import argparse
import faulthandler
import tempfile
from pathlib import Path

from tests.hostile.cases import TYPES, every, refusal, stored, told, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write expected.tsv")
    parser.add_argument("only", nargs="?", default="", help="part of a door or input to show")
    arguments = parser.parse_args()
    before, rows = stored(), {}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(every()):
            key = case.at, case.input
            if arguments.only not in "\t".join(key):
                rows |= {key: before[key]} if key in before else {}
                continue
            faulthandler.dump_traceback_later(60, exit=True)
            found = refusal(case, Path(folder, str(number)))
            if found is None:
                print("NOT REFUSED", *key, sep=" | ")
                continue
            if found.type not in TYPES:
                print("ANOTHER ERROR", *key, found.type, found.message[:300], sep=" | ")
                continue
            kept = before.get(key)
            rows[key] = kept if kept and not kept.lacks(found) else told(case, found)
            if lacks := rows[key].lacks(found):
                print(f"{lacks.upper()} | {case.kind}", *key, found.message[:300], sep=" | ")
            elif not arguments.write:
                print(*key, rows[key], found.message[:200], sep=" | ")
    if arguments.write:
        write(rows)


if __name__ == "__main__":
    main()
