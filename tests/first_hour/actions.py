"""The actions of `actions.txt`."""

from __future__ import annotations

import re
from pathlib import Path

from tests.first_hour.hour import Action

_HEAD = re.compile(r"== (?P<name>.*?)(?: \((?P<notes>[^()]*)\))?")
_PROMPTS = ("$ ", ">>> ")


def read_actions(text: str) -> dict[str, Action]:
    """Actions by their names.

    >>> read_actions("== list (status 2)\\n$ capeval\\nusage: capeval\\n")["list"]
    Action(name='list', typed='capeval', reads=['usage: capeval'], status=2, after=[], without='')
    """
    actions: dict[str, Action] = {}
    for block in re.split(r"\n\n+", text.strip()):
        head, *lines = block.split("\n")
        if not (match := _HEAD.fullmatch(head)):
            continue  # a heading, or the introduction
        notes = dict(note.split(" ", 1) for note in (match["notes"] or "").split("; ") if note)
        typed = [
            line.removeprefix(prompt) for line in lines for prompt in _PROMPTS if line.startswith(prompt)
        ]
        reads = [line for line in lines if not line.startswith(_PROMPTS)]
        after = [name for name in notes.get("after", "").split(", ") if name]
        assert match["name"] not in actions and typed and reads, block
        actions[match["name"]] = Action(
            match["name"],
            "\n".join(typed),
            reads,
            int(notes.get("status", 0)),
            after,
            notes.get("without", ""),
        )
    return actions


ACTIONS = read_actions(Path(__file__).with_name("actions.txt").read_text(encoding="utf-8"))
