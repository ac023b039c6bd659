"""`python -m tests.transcripts [--write] [NAME ...]`: play all transcripts, or these; show what differs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

names = [name for name in sys.argv[1:] if name != "--write"]
with tempfile.TemporaryDirectory() as folder:
    os.environ["CAPEVAL_CACHE"] = f"{folder}/cache"
    from tests.transcripts.session import NAMES, difference, path_of, played

    different = 0
    for name in names or NAMES:
        place = Path(folder, name)
        place.mkdir()
        text = played(name, place)
        if found := difference(path_of(name).read_text(encoding="utf-8"), text):
            different += 1
            print(found)
            if "--write" in sys.argv:
                path_of(name).write_text(text, encoding="utf-8")
sys.exit(different > 0 and "--write" not in sys.argv)
