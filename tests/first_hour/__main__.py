"""Do what has these words in its name, or everything, and show what there is to read."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.first_hour.actions import ACTIONS
from tests.first_hour.hour import Hour

os.environ["COLUMNS"] = "80"
with tempfile.TemporaryDirectory() as folder:
    hour = Hour(Path(folder), ACTIONS)
    for number, (name, action) in enumerate(ACTIONS.items(), start=1):
        if not sys.argv[1:] or any(word in name for word in sys.argv[1:]):
            outcome = hour.do(name)
            print(f"--- {number}. {name}\n$ {action.typed}\n{outcome.text}[{outcome.status}]\n", flush=True)
