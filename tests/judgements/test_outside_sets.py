"""Judged sets that other packages declare by an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from capeval_core.cli import main
from tests.judgements.conftest import Judge
from tests.judgements.data import write_json, write_lines

MODULE = """
from capeval_core.judgements.sets import SetEntry
SET = SetEntry(
    name="menus",
    title="Menus",
    summary="ratings of menus",
    files=["rated.jsonl", "references.json"],
    form="rated.jsonl and references.json",
    fields={"image": "text", "candidate": "text"},
    loader="captions",
    columns={"rho": {"statistic": "spearman"}},
)
OF_OURS = SET._replace(name="foil")
NAME = "menus"
"""


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package that declares a set and something that is not one."""
    (tmp_path / "menu_sets.py").write_text(MODULE)
    about = tmp_path / "menu_sets-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: menu-sets\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[capeval.sets]\nabsent = menu_sets:ABSENT\nnone = menu_sets:NAME\nmenus = menu_sets:SET\n"
        "taken = menu_sets:OF_OURS\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("declare")
def test_a_declared_set_is_judged_by_its_own_columns(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = ["a red circle", "two stars", "a circle"]
    rows = [
        {"image": "a.png", "candidate": caption, "rating": rating}
        for caption, rating in zip(captions, (1, 3, 2), strict=True)
    ]
    write_lines(tmp_path / "menus" / "rated.jsonl", rows)
    write_json(tmp_path / "menus" / "references.json", {"a.png": ["a red circle"]})
    judged = judge("menus", tmp_path, {"M": [0.1, 0.9, 0.5]})
    assert judged.values() == {"rho": 100.0} and "Menus" in judged.text
    assert main(["judge", "nothing", "--data", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "menus" in output.err and "'none' (menu_sets:NAME) is a str" in output.err
    assert "'absent' (menu_sets:ABSENT) could not be loaded" in output.err
    # A set of this package stays what it is, whatever another one declares by its name.
    assert main(["judge", "foil", "--metrics", "rougel", "--data", str(tmp_path / "menus")]) == 2
    assert "pairs.jsonl" in capsys.readouterr().err
