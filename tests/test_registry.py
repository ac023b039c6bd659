"""Metrics and networks by name: this package's, and metrics that other packages declare."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import capeval_core
from capeval_core.cli import main
from capeval_core.registry import METRICS, list_metrics, metric_class, metric_classes, metric_of
from tests.outside import on_path
from tests.test_import import loaded


def test_the_lists_need_no_model() -> None:
    assert "torch" not in loaded("import capeval_core.registry as r; r.list_metrics()")


def test_a_signature_of_something_else_names_no_metric() -> None:
    with pytest.raises(ValueError, match="unknown metric"):
        metric_of("other:pacs|x:y")


# --- faults of other packages

MODULE = """
from capeval_core.metric import CaptionMetric, Values
from capeval_core.rows import row_schema
class Whole(CaptionMetric):
    name = "mine"; title = "M"; key = "m"; summary = "s"; paper = "p"; range = (0.0, 1.0); ROW = row_schema()
    def encode(self, batch): ...
    def aggregate(self, rows): ...
class Half(CaptionMetric):
    name = "mine"; title = "M"
    def aggregate(self, rows): ...
class Renamed(Whole):
    name = "yours"
number = 7
"""

Declare = Callable[..., None]


@pytest.fixture
def declare(tmp_path: Path) -> Iterator[Declare]:
    """Install a package that declares a metric, by its files on disk."""
    (tmp_path / "someones.py").write_text(MODULE)

    def write(entry: str, distribution: str = "someones-metrics") -> None:
        about = tmp_path / f"{distribution.replace('-', '_')}-3.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.1\n")
        (about / "entry_points.txt").write_text(f"[capeval.metrics]\n{entry}\n")

    with on_path(tmp_path):
        yield write
    sys.modules.pop("someones", None)


def test_a_declared_class_is_found(declare: Declare) -> None:
    declare("mine = someones:Whole")
    assert list_metrics()[-1] == "mine" and metric_class("mine").__name__ == "Whole"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (
            "nowhere:Metric",
            "could not be imported (ModuleNotFoundError: No module named 'nowhere'): update or",
        ),
        ("someones:Missing", "could not be imported (AttributeError: module 'someones' has no attribute"),
        ("someones:number", "is not a subclass of capeval_core.metric.CaptionMetric"),
        ("someones:CaptionMetric", "lacks title, key, summary, paper, range, ROW, aggregate, encode"),
        ("someones:Half", "lacks key, summary, paper, range, ROW, encode"),
        ("someones:Renamed", "has another name in its class: 'yours'"),
    ],
)
def test_a_faulty_metric_is_an_error_that_names_its_package_and_breaks_no_other(
    declare: Declare, value: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(f"mine = {value}")
    message = f"metric 'mine' (capeval.metrics: {value}) of someones-metrics 3.1 {fault}"
    with pytest.raises(ValueError) as raised:
        capeval_core.load("mine")
    assert str(raised.value).startswith(message)
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert list(metric_classes()) == list(METRICS)
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert "\nrefpacs " in out and f"warning: {message}" in err
    assert main(["score", "mine", "--candidates", "x", "--images", "y"]) == 2
    assert "someones-metrics 3.1" in capsys.readouterr().err


def test_a_name_of_ours_stays_ours(declare: Declare) -> None:
    declare("pacs = someones:Whole")
    message = (
        "metric 'pacs' is declared by capeval and by someones-metrics 3.1: capeval's is used; uninstall one"
    )
    with pytest.warns(UserWarning, match=message):
        assert list_metrics() == list(METRICS)
    assert metric_class("pacs").__module__ == "capeval_core.scores.pac"


def test_entry_points_are_read_only_when_other_metrics_are_in_question(
    declare: Declare, recwarn: pytest.WarningsRecorder
) -> None:
    declare("no assignment at all")
    assert metric_class("refpacs").name == "refpacs"
    capeval_core.load("pacs", weights="tiny")
    assert not recwarn.list


def test_every_metric_of_this_package_has_a_module() -> None:
    for name in METRICS:
        folder = Path(capeval_core.module_path(name))
        assert f'metric_name = "{name}"' in (folder / f"{name}.py").read_text(encoding="utf-8")
