"""The list of networks holds every one, and a folder's config finds its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import capeval_core
from capeval_core.models.model import CheckedModel
from capeval_core.networks import NETWORKS, network_of
from capeval_core.weights.folder import WeightsError, WeightsFolder
from tests.test_import import loaded


def networks(base: type[CheckedModel]) -> Iterator[type[CheckedModel]]:
    for found in base.__subclasses__():
        if "kind" in vars(found) and found.__module__.startswith("capeval_core."):
            yield found
        yield from networks(found)


def test_every_network_is_listed_by_its_kind() -> None:
    for room in ("encoders", "regions", "phrases"):
        for module in pkgutil.iter_modules([f"{capeval_core.__path__[0]}/{room}"]):
            import_module(f"capeval_core.{room}.{module.name}")
    assert {
        found.kind: f"{found.__module__}:{found.__qualname__}" for found in networks(CheckedModel)
    } == NETWORKS


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (
            "eclip",
            "weights 'mine': config.json says encoder 'eclip', which is no network here: did you mean '",
        ),
        (None, "config.json says encoder None, which is no network here (known: clip, open_clip, "),
        (["clip"], "config.json says encoder ['clip'], which is no network here"),
    ],
)
def test_a_config_that_names_no_network_is_told(encoder: object, said: str) -> None:
    config = {"format": 1} if encoder is None else {"format": 1, "encoder": encoder}
    folder = WeightsFolder(Path("mine"), "mine", None, config, Path("mine/model.safetensors"), "")
    with pytest.raises(WeightsError) as raised:
        network_of(folder)
    assert said in str(raised.value)


def test_the_list_needs_no_model() -> None:
    assert "torch" not in loaded("import capeval_core.networks")
