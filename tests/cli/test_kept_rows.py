"""`capeval score --rows`: where every row is on disk, no network is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import transformers

from tests.cli.conftest import Capeval, write_json
from tests.phrases.conftest import parser_folder
from tests.regions.conftest import owlv2_folder, sam_folder
from tests.support.seams import networks_held

__all__ = ["owlv2_folder", "parser_folder", "sam_folder"]

# Such a type of numbers is nobody else's here: networks that are in use are shared, and not opened again.
SETTINGS: list[object] = ["--weights", "tiny", "--device", "cpu", "--dtype", "bfloat16"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What reads tensors, a line for each time."""
    names: list[str] = []

    def watch(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counting(path: Any, *arguments: Any, **keywords: Any) -> Any:
            names.append(str(path))
            return original(path, *arguments, **keywords)

        monkeypatch.setattr(owner, name, counting)

    watch(safetensors.torch, "load_file")
    watch(transformers.AutoModelForSeq2SeqLM, "from_pretrained")
    with networks_held(0):
        yield names


@pytest.mark.parametrize(
    "metric",
    ["hices rectangles", pytest.param("hices everything", marks=pytest.mark.system), "umic", "vilbertscore"],
)
def test_no_network_is_opened_where_all_rows_are_kept(
    metric: str,
    opened: list[str],
    capeval: Capeval,
    images: list[Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    name, _, kind = metric.partition(" ")
    arguments: list[object] = [*SETTINGS, "--images", images[0].parent, "--rows", tmp_path / "rows"]
    networks = 3 if name == "hices" else 2
    if name == "hices":
        folder = request.getfixturevalue({"rectangles": "owlv2_folder", "everything": "sam_folder"}[kind])
        arguments += ["--regions", f"{kind}:{folder}", "--phrases", request.getfixturevalue("parser_folder")]
    if name == "vilbertscore":
        references = {path.name: ["a red circle"] for path in images}
        arguments += ["--references", write_json(tmp_path / "references.json", references)]
        arguments += ["--idf", "corpus"]

    def score(captions: dict[str, str]) -> tuple[str, list[str]]:
        opened.clear()
        file = write_json(tmp_path / "captions.json", captions)
        ran = capeval("score", name, "--candidates", file, *arguments)
        assert ran.status == 0, ran.err
        return ran.out, [*opened]

    captions = dict.fromkeys([path.name for path in images], "a red circle")
    first, networks_opened = score(captions)
    assert len(networks_opened) == networks
    assert score(captions) == (first, [])
    assert score({**captions, images[0].name: "a blue square"})[1] != []
