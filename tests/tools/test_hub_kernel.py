"""The folder of the Hub's `kernels` library: one source, loaded from a path of its own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from capeval_core.matching import triton_kernels
from tools.hub_kernel import MODULE, SOURCE, write


def loaded(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def check(module: ModuleType) -> None:
    if not (torch.cuda.is_available() or triton_kernels.INTERPRETED):
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.eye(3, device=device), torch.tensor([[2.0, 0, 0], [1, 1, 0]], device=device)
    sides = [module.Side(np.array([len(rows)]), np.array([0])) for rows in (x, y)]
    (maxima, indices), (other, _) = module.match(x, y, *sides, indices=True)
    assert maxima.tolist() == pytest.approx([1, 0.5**0.5, 0]) and indices.tolist() == [0, 1, 0]
    assert other.tolist() == pytest.approx([1, 0.5**0.5])


def test_the_layout_is_that_of_a_noarch_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "someone/capeval-matching")
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    package = {"__init__.py", "triton_kernels.py"}
    assert names == {
        "build.toml", "README.md", "build/torch-cuda/metadata.json",
        *(f"{place}/{name}" for name in package for place in (f"torch-ext/{MODULE}", "build/torch-cuda")),
    }  # fmt: skip
    build = (tmp_path / "build.toml").read_text(encoding="utf-8")
    for line in ('name = "capeval-matching"', 'backends = ["cuda"]', 'repo-id = "someone/capeval-matching"'):
        assert line in build.splitlines()
    assert "[torch-noarch]" in build
    metadata = json.loads((tmp_path / "build/torch-cuda/metadata.json").read_text(encoding="utf-8"))
    assert (metadata["name"], metadata["backend"]) == ("capeval-matching", {"type": "cuda"})
    for place in (f"torch-ext/{MODULE}", "build/torch-cuda"):
        folder = tmp_path / place
        assert (folder / "triton_kernels.py").read_bytes() == SOURCE.read_bytes()
        check(loaded(folder, f"elsewhere_{folder.name.replace('-', '_')}", monkeypatch))


def test_the_library_loads_it(tmp_path: Path) -> None:
    kernels = pytest.importorskip("kernels")
    write(tmp_path)
    check(kernels.get_local_kernel(tmp_path, backend=None if torch.cuda.is_available() else "cuda"))
