"""Documents say what the code does: generated tables are current, and every file they name exists."""

from __future__ import annotations

import re
from pathlib import Path

from capeval_core._version import __version__
from capeval_core.documents import TABLES, filled, options_table
from capeval_core.options import describe_options
from capeval_core.registry import METRICS, metric_class

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_generated_tables_are_current() -> None:
    assert filled(README) == README, "run: python -m capeval_core.documents README.md"
    assert all(f"<!-- {name} -->" in README for name in TABLES)


def test_every_option_is_in_its_metrics_table() -> None:
    for name in METRICS:
        table = options_table(name)
        for option in describe_options(metric_class(name).Options):
            assert f"| `{option.name}` |" in table


def test_files_that_the_readme_links_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_changelog_names_this_version() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
