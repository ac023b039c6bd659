"""What hostile input gets: an error that names argument and index, before any weights are opened."""

from __future__ import annotations

import faulthandler
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evaluate
import pytest
from PIL import Image

import capeval_core
from capeval_core.cli import main
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.integrations import CaptionMetrics, reward
from capeval_core.matching.greedy import greedy_match
from capeval_core.metric import CaptionMetric
from tests.adversarial import file_cases, model_cases, python_cases
from tests.adversarial.case import KINDS, Case, World

CASES = [*python_cases.CASES, *file_cases.CASES, *model_cases.CASES]
CHECKOUT = Path(__file__).parents[2]
Door = Callable[[Any], object]


class Words:
    """The smallest processor of a Trainer."""

    def batch_decode(self, ids: Any, skip_special_tokens: bool) -> list[str]:
        return ["a dog" for _ in ids]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A case that waits for ever ends the run, with a trace of where it waits."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def refpacs(weights: str) -> CaptionMetric:
    return capeval_core.load("refpacs", weights=weights, device="cpu")


@pytest.fixture(scope="module")
def eco() -> CaptionMetric:
    return capeval_core.load("eco", weights="tiny", members="tiny", device="cpu")


@pytest.fixture
def module(weights: str) -> Any:
    return evaluate.load(str(CHECKOUT / "metrics" / "refpacs"), weights=weights)


@pytest.fixture(scope="module")
def unopened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that can't be opened: an error about anything else was raised before they were."""
    folder = tmp_path_factory.mktemp("unopened")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def doors(
    refpacs: CaptionMetric, eco: CaptionMetric, module: Any, weights: str, unopened: Path
) -> dict[str, Door]:
    def load(given: Any) -> object:
        metric, options = given
        return capeval_core.load(metric, **{"weights": unopened} | options)

    def command(arguments: list[Any]) -> object:
        own = ["--weights", unopened] if arguments[0] == "score" and len(arguments) > 2 else []
        status = main([str(argument) for argument in [*arguments[:2], *own, *arguments[2:]]])
        assert status == 2
        return None

    def trainer(given: Any) -> object:
        processor, images, evaluation = given
        metrics = CaptionMetrics(
            Words() if processor == "words" else processor,
            images=images,
            metrics=["pacs"],
            weights=unopened if evaluation is None else weights,
        )
        return metrics(evaluation)

    return {
        "score": lambda given: refpacs.score(**given),
        "rerank": lambda given: eco.score(**given),
        "load": load,
        "command": command,
        "weights": lambda folder: ClipEncoder.from_pretrained(folder, device="cpu"),
        "match": lambda given: greedy_match(*given[0], **given[1]),
        "reward": lambda given: reward("pacs", weights=weights)(*given),
        "trainer": trainer,
        "module": lambda given: module.compute(**given),
    }


def test_there_are_enough_kinds_and_none_twice() -> None:
    names = [str(case) for case in CASES]
    assert len(set(names)) == len(names) >= 150
    assert {case.kind for case in CASES} == KINDS.keys()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_names_argument_and_place(
    case: Case,
    doors: dict[str, Door],
    weights: str,
    seeded_weights: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "case").mkdir()
    image = tmp_path / "images" / "0.png"
    Image.effect_noise((40, 30), 50).save(image)
    monkeypatch.chdir(tmp_path / "case")
    given = case.given(World(tmp_path / "case", image, seeded_weights))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.door == "command":
            doors[case.door](given)
            message = capfd.readouterr().err
            assert message.startswith("capeval") or "usage:" in message
        else:
            with pytest.raises((ValueError, TypeError, OSError)) as caught:
                doors[case.door](given)
            message = str(caught.value)
    message = message.replace(str(tmp_path), "")  # whose words are not the message's
    assert case.argument + case.index in message, message
    assert re.search(KINDS[case.kind], message, re.IGNORECASE), message
    assert "Traceback" not in message and len(message) < 2_000
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not Path(__file__).with_name("ran").exists()
