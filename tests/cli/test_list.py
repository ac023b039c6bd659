"""`capeval list`, and what all commands share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

import capeval_core
from capeval_core.cli import COMMANDS
from capeval_core.inputs.media import argument_of
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class, variant_classes
from capeval_core.weights.catalogue import WEIGHTS
from tests.cli.conftest import Ran, refuse_token

Capeval = Callable[..., Ran]


def test_the_table_has_every_metric_and_all_weights(capeval: Capeval) -> None:
    ran = capeval("list")
    lines = ran.out.splitlines()
    for name in METRICS:
        metric = metric_class(name)
        line = next(line for line in lines if line.split()[:1] == [name])
        assert metric.title in line
        media = [] if argument_of(metric.media) is None else ["image"]
        assert "+".join([*media, *["refs"] * metric.needs_references]) in line.split()
    for (name, medium), metric in variant_classes().items():
        line = next(line for line in lines if metric.title in line)
        assert (
            line.split()[0] == name
            and "+".join([medium, *["refs"] * metric.needs_references]) in line.split()
        )
    for entry in WEIGHTS:
        text = lines[lines.index(entry.repository) + 1]
        assert (entry.licence or "not stated") in text and entry.title in text
        users = [name for name in METRICS if metric_class(name).default_weights == entry]
        assert text.endswith(f"(default of {', '.join(users)})" if users else (entry.licence or "not stated"))
    assert "https://arxiv.org/abs/2303.12112" in ran.out


def test_the_list_fits_80_columns(capeval: Capeval) -> None:
    assert max(map(len, capeval("list").out.splitlines())) <= 80


def test_json_says_what_the_classes_say(capeval: Capeval) -> None:
    content = json.loads(capeval("list", "--json").out, parse_constant=refuse_token)
    keys = [(metric["name"], metric["variant"]) for metric in content["metrics"]]
    assert keys == [*((name, None) for name in METRICS), *MEDIA_VARIANTS]
    by_name = {metric["name"]: metric for metric in content["metrics"] if metric["variant"] is None}
    assert by_name["refclips"]["needs_references"] is True
    assert by_name["pacs"]["range"] == [0.0, 2.0]
    assert by_name["pacs"]["licence"] is None  # not stated by its authors
    assert by_name["clips"]["licence"] == "MIT"
    assert [entry["repository"] for entry in content["weights"]] == [e.repository for e in WEIGHTS]


def test_parts_of_the_list(capeval: Capeval) -> None:
    whole = capeval("list").out
    metrics, weights = capeval("list", "--metrics").out, capeval("list", "--weights").out
    assert metrics.startswith("METRIC ") and "WEIGHTS" not in metrics and metrics in whole
    assert weights.startswith("WEIGHTS\n") and "METRIC" not in weights and weights in whole
    assert capeval("list", "--metrics", "--weights").out == f"{metrics}\n{weights}"
    assert list(json.loads(capeval("list", "--json", "--weights").out)) == ["weights"]


def test_bibtex_has_each_paper_once(capeval: Capeval) -> None:
    text = capeval("list", "--bibtex").out
    papers = {metric_class(name).paper for name in METRICS}
    entries = re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)
    assert len(entries) == len(set(entries)) == len(papers)
    assert text.count("{") == text.count("}") and "%" not in text


def test_version_and_help(capeval: Capeval) -> None:
    assert capeval("--version").out == f"capeval {capeval_core.__version__}\n"
    ran = capeval("--help")
    assert ran.status == 0
    assert all(f"  {name} " in ran.out for name in COMMANDS)
    assert capeval().status == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_fits(name: str, capeval: Capeval) -> None:
    ran = capeval(name, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"usage: capeval {name}")
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lsit"], "unknown command 'lsit': did you mean 'list'?"),
        (["--verison"], "unknown option --verison: did you mean '--version'?"),
        (["list", "--jsn"], "unknown option --jsn: did you mean '--json'?"),
        (["list", "pacs"], "unrecognized arguments: pacs"),
    ],
)
def test_a_misspelt_command_or_flag(arguments: list[str], message: str, capeval: Capeval) -> None:
    ran = capeval(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"capeval: {message}")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError("the model needs 9 GB"), 1, "the model needs 9 GB"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "x.json"), 2, "x.json: Permission denied"),
    ],
)
def test_an_error_is_one_line_and_a_status(
    error: BaseException, status: int, message: str, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr("capeval_core.commands.list.run", fail)
    assert capeval("list") == Ran(status, "", f"capeval: {message}\n")
