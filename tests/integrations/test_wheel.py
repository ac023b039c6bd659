"""The wheel holds everything that an installation needs, the metric folders included."""

from __future__ import annotations

import configparser
import importlib.util
import re
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
FILES = ("pyproject.toml", "setup.cfg", "LICENSE", "README.md")

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("pip")
    or not importlib.util.find_spec("setuptools")
    or int(version("setuptools").split(".")[0]) < 77,
    reason="needs pip and setuptools>=77",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of this checkout unpacks to."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in FOLDERS:
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


def test_every_source_file_is_there(installed: Path) -> None:
    for source, package in FOLDERS.items():
        files = {
            path.relative_to(ROOT / source)
            for path in (ROOT / source).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        missing = sorted(str(path) for path in files if not (installed / package / path).is_file())
        assert not missing, f"{source}: not in the wheel"
    assert not (installed / "metrics").exists()
    assert not (installed / "tests").exists()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_every_package_is_committed() -> None:
    """One that only the working tree has would be built here, and fail to build in a clone."""
    options = configparser.ConfigParser()
    options.read(ROOT / "setup.cfg")
    packages = options["options"]["packages"].split()
    elsewhere = dict(line.split(" = ") for line in options["options"]["package_dir"].strip().splitlines())
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    committed = set(listed.stdout.splitlines())
    wanted = {f"{elsewhere.get(name, name.replace('.', '/'))}/__init__.py" for name in packages}
    assert wanted <= committed
    own = {path for path in committed if re.fullmatch(r"capeval_core/(\w+/)*__init__\.py", path)}
    assert own <= wanted, "packages that setup.cfg does not name"


def test_a_metric_loads_from_its_installed_folder(installed: Path, weights: str, tmp_path: Path) -> None:
    folder = installed / "capeval_core" / "hub_metrics" / "refpacs"
    assert (folder / "README.md").read_text(encoding="utf-8").startswith("---\n")
    module = evaluate.load(str(folder), weights=weights, cache_dir=str(tmp_path))
    assert list(module.features) == ["predictions", "images", "references"]
