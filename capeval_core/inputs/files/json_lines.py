"""JSON lines: one object a line."""

from __future__ import annotations

from capeval_core.inputs.files.gathering import Gatherer
from capeval_core.inputs.files.parsing import decoded, parse_json
from capeval_core.inputs.problems import FileError


def read_json_lines(data: bytes, gatherer: Gatherer) -> None:
    # Not splitlines: a caption may hold U+2028, which JSON does not escape.
    for number, line in enumerate(decoded(gatherer.path, data).split("\n"), start=1):
        if line.strip():
            try:
                row = parse_json(gatherer.path, line, first_line=number)
            except FileError as error:
                gatherer.problems.add(str(error), kind=FileError)
            else:
                gatherer.row(row, f"line {number}")
