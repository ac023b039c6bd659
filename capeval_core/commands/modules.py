"""`capeval modules`: the modules of all metrics in a folder, for `evaluate.load("capeval/pacs")` beside."""

from __future__ import annotations

import shutil

from capeval_core.commands.common import check_folder
from capeval_core.commands.terminal import parser_of
from capeval_core.registry import METRICS, module_path
from capeval_core.store import whole_folder


def run(arguments: list[str]) -> int:
    flags = parser_of("modules").read(arguments)
    check_folder(flags.folder, set(METRICS), "modules", flag="FOLDER")
    with whole_folder(flags.folder) as partial:
        for name in METRICS:
            shutil.copytree(module_path(name), partial / name, ignore=shutil.ignore_patterns("__pycache__"))
    print(f"{flags.folder}: {', '.join(METRICS)}")
    example = f"{flags.folder.name}/{next(iter(METRICS))}"
    print(f'beside it: evaluate.load("{example}")')
    return 0
