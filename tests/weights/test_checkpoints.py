"""Files of checkpoints: every form, damage, and that nothing in one is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.seams import convert
from tests.weights.conftest import manifest


def test_safetensors_and_legacy_files_are_read(tmp_path: Path) -> None:
    tensors = manifest("pacs-vit-tiny")
    save_file(tensors, tmp_path / "a.safetensors")
    torch.save({"state_dict": tensors}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    first = convert("clip", tmp_path / "a.safetensors", activation="quick_gelu")
    second = convert("clip", tmp_path / "a.bin")
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_torchscript_is_refused_with_a_recipe_that_works(tmp_path: Path) -> None:
    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.conv1(x)
            return y

    path = tmp_path / "jit.pt"
    torch.jit.save(torch.jit.script(Tower()), path)
    with pytest.raises(ValueError, match="TorchScript") as caught:
        convert("clip", path)
    code = str(caught.value).splitlines()[1].strip().removeprefix('python -c "').removesuffix('"')
    exec(code, {})
    extracted = torch.load(tmp_path / "jit.pt.pth", weights_only=True)["state_dict"]
    assert set(extracted) == {"conv1.weight", "conv1.bias"}


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.victim,)


@pytest.mark.parametrize("how", ["zip", "legacy", "plain"])
@pytest.mark.parametrize("network", ["clip", "faster_rcnn"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(network: str, how: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "evil.pth"
    if how == "plain":
        path.write_bytes(pickle.dumps({"state_dict": {}, "extra": Trap(victim)}, protocol=2))
    else:
        content = {"state_dict": manifest("pacs-vit-tiny"), "extra": Trap(victim)}
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(ValueError, match=r"evil\.pth") as caught:
        convert(network, path)
    assert not victim.exists() and "weights_only=False" not in str(caught.value)
