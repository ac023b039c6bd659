"""Files of checkpoints: every form, damage, and that nothing in one is run."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.seams import convert
from tests.weights.conftest import manifest


def saved(path: Path, content: Any = None) -> Path:
    torch.save(manifest("pacs-vit-tiny") if content is None else content, path)
    return path


def test_safetensors_and_legacy_files_are_read(tmp_path: Path) -> None:
    tensors = manifest("pacs-vit-tiny")
    save_file(tensors, tmp_path / "a.safetensors")
    torch.save({"state_dict": tensors}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    first = convert("clip", tmp_path / "a.safetensors", activation="quick_gelu")
    second = convert("clip", tmp_path / "a.bin")
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<!DOCTYPE html><html>",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"\x1f\x8b\x08\x00",
        b"hello there",
        b"PK\x03\x04 and no more",
        b"\x80\x02",
        b"\x80\x04\x95garbage",
        (99).to_bytes(8, "little") + b"{" + b" " * 200,
    ],
)
def test_files_that_are_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.pth"):
        convert("clip", tmp_path / "x.pth")


@pytest.mark.parametrize(
    "content",
    [
        {"epoch": 3, "optimizer": {}},
        [torch.ones(2)],
        torch.ones(2),
        {"state_dict": {}},
        {0: torch.ones(1)},
        {"text_model.embeddings.weight": torch.ones(2), "vision_model.x": torch.ones(1)},
        {"student.visual.conv1.weight": torch.ones(1), "teacher.visual.conv1.weight": torch.ones(1)},
        {"clip.visual.conv1.weight": torch.ones(1), "head.weight": torch.ones(1)},
        {"visual.conv1.weight": torch.ones(1), "visual.proj": torch.ones(1)},
        {**manifest("pacs-vit-tiny"), "visual.positional_embedding": torch.ones(13, 128)},
        {**manifest("pacs-vit-tiny"), "visual.conv1.weight": torch.ones(3)},
        {**manifest("pacs-vit-tiny"), "token_embedding.weight": torch.ones(1, 1).expand(1 << 40, 128)},
    ],
)
def test_checkpoints_of_something_else(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"release\.pth"):
        convert("clip", saved(tmp_path / "release.pth", content))


def test_what_is_not_there_or_cut_short(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        convert("clip", tmp_path / "nowhere.pth")
    with pytest.raises(ValueError):
        convert("clip", tmp_path)
    path = saved(tmp_path / "release.pth")
    save_file(manifest("pacs-vit-tiny"), tmp_path / "x.safetensors")
    for file, kept in ((path, 0.5), (tmp_path / "x.safetensors", 0.999)):
        whole = file.read_bytes()
        file.write_bytes(whole[: int(len(whole) * kept)])
        with pytest.raises(ValueError, match=file.name):
            convert("clip", file, activation="gelu")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("weights.pth", b"...")
    with pytest.raises(ValueError, match=r"x\.zip"):
        convert("clip", tmp_path / "x.zip")


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
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
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
