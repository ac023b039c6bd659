"""The wheel holds everything that an installation needs, the metric folders included."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import evaluate
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "capeval_core": "capeval_core",
    "metrics": "capeval_core/hub_metrics",
    "hub_cards": "capeval_core/hub_cards",
}
"""Where each folder of the checkout lies in the wheel."""
FILES = ("pyproject.toml", "setup.cfg", "setup.py", "LICENSE", "README.md")

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not importlib.util.find_spec("pip")
        or not importlib.util.find_spec("setuptools")
        or int(version("setuptools").split(".")[0]) < 77,
        reason="needs pip and setuptools>=77",
    ),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this checkout unpacks to."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in (*FOLDERS, "tools", "tests/tools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", target, source],
        check=True,
        capture_output=True,
    )
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_the_wheel_holds_every_file_of_its_folders_and_no_other(installed: Path) -> None:
    expected = {
        f"{package}/{path.relative_to(ROOT / source)}"
        for source, package in FOLDERS.items()
        for path in (ROOT / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    about = {name for name in packed if ".dist-info/" in name or name.endswith(".whl")}
    assert packed - about == expected
    assert "capeval_core/weights/tiny/pacs/model.safetensors" in packed and "capeval_core/py.typed" in packed
    assert not any(name.startswith(("tools/", "tests/", "benchmarks/", "metrics/")) for name in packed)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_every_folder_of_modules_is_a_committed_package() -> None:
    """One without `__init__.py` is not in the wheel, and one that only this machine has not in a clone's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    committed = {Path(line) for line in listed.stdout.splitlines()}
    folders = {path.parent for path in committed if path.suffix == ".py" and path.parts[0] in FOLDERS}
    packages = {folder for folder in folders if folder.parts[0] == "capeval_core" or len(folder.parts) == 1}
    assert not [str(folder) for folder in packages if folder / "__init__.py" not in committed]
    assert "setup.py" in {str(path) for path in committed}


def test_a_metric_loads_from_its_installed_folder(installed: Path, weights: str, tmp_path: Path) -> None:
    asked = "import capeval_core; print(capeval_core.module_path('refpacs'))"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=installed, check=True, capture_output=True, text=True
    )
    folder = Path(done.stdout.strip())
    assert folder == installed / "capeval_core" / "hub_metrics" / "refpacs"
    assert (folder / "README.md").read_text(encoding="utf-8").startswith("# RefPAC-S\n")
    module = evaluate.load(str(folder), weights=weights, cache_dir=str(tmp_path))
    assert list(module.features) == ["predictions", "images", "references"]
