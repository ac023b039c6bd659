"""Do the actions of these names, or all, and show what there is to read."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.first_hour.actions import ACTIONS
from tests.first_hour.hour import Hour, narrow

narrow()
with tempfile.TemporaryDirectory() as folder:
    hour = Hour(Path(folder))
    for number, action in enumerate(ACTIONS, start=1):
        if not sys.argv[1:] or any(name in action.name for name in sys.argv[1:]):
            outcome = hour.do(action)
            print(
                f"--- {number}. {action.name}\n$ {action.typed}\n{outcome.text}[{outcome.status}]\n",
                flush=True,
            )
