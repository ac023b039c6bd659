"""What several test modules share: small weights, images, and a home of their own for remembered things."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

# Small models run faster on one thread than on threads that wait for each other; processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # threads that end leave no memory behind

import torch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Without a GPU, Triton's kernels run in its interpreter, which it asks for when something first imports it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# First calls import and load. A change is judged by the same examples each time; `HYPOTHESIS_PROFILE=search`
# looks for new ones, which then become an `@example` of their test.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A job in the background ignores Ctrl-C and hands that on; the processes of tests take it as on a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = Path(__file__).parents[1] / "capeval_core" / "weights" / "tiny" / "pacs"


def pytest_configure(config: pytest.Config) -> None:
    """One folder of seeded networks for all processes of this run, which the first one makes and removes."""
    if "CAPEVAL_TEST_FOLDER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="capeval-tests-")
        os.environ["CAPEVAL_TEST_FOLDER"] = folder.name
        config.add_cleanup(folder.cleanup)


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not go through it again after every few tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a browser or of Ray belong to the second lane."""
    for item in items:
        if {"browser", "cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("system")


@pytest.fixture(scope="session", autouse=True)
def _own_checksums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Checksums are remembered in the user's cache folder: not those of the tests."""
    from tests.support.seams import networks_held, short_synonyms

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPEVAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("CAPEVAL_FETCH", "0")  # nothing is downloaded where there is a network, either
        with short_synonyms(), networks_held(12):
            yield


@pytest.fixture(scope="session")
def seeded_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder of the seeded small CLIP (QuickGELU, images of 64x64); not to be changed."""
    from tests.support.seeded import encoder

    folder = tmp_path_factory.mktemp("seeded") / "weights"
    encoder().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def weights(seeded_weights: Path) -> Iterator[str]:
    """Weights for tests of what holds with any weights: the shipped ones, where they are built."""
    import capeval_core

    name = "tiny" if (TINY / "model.safetensors").is_file() else str(seeded_weights)
    kept = capeval_core.load("pacs", weights=name)  # a loaded encoder is shared as long as someone holds it
    yield name
    del kept


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six different images of several sizes, modes and formats; not to be changed."""
    from capeval_core.testing import write_images

    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BLIP captioner; not to be changed."""
    from tests.training.generative import write_captioner

    return write_captioner(tmp_path_factory.mktemp("models") / "captioner")


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Stable Diffusion; not to be changed."""
    pytest.importorskip("diffusers")
    from tests.training.generative import write_pipeline

    return write_pipeline(tmp_path_factory.mktemp("models") / "pipeline")


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`images`, a folder of seven small images, and `captions.json`, two of each; not to be changed."""
    from tests.training.generative import write_drawn

    return write_drawn(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a disk of 64 KB of its own."""
    from tests.support.small_disk import mounted

    with mounted(tmp_path / "disk") as place:
        yield place


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five videos of 3 to 7 frames, clip1.mp4 to clip5.gif, clip3 a folder of frames; not to be changed."""
    from tests.inputs.video_writing import FORMS, written

    folder = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(8)
    for number, form in enumerate(["mp4", "mkv", "frames", "avi", "gif"]):
        blocks = rng.integers(0, 256, (3 + number, 4, 6, 3), dtype=np.uint8)
        frames = [Image.fromarray(one).resize((48, 32), Image.Resampling.NEAREST) for one in blocks]
        if form == "frames":
            (folder / "clip3").mkdir()
            for i, frame in enumerate(frames):
                frame.save(folder / "clip3" / f"{i}.png")
        else:
            data = written([np.asarray(frame) for frame in frames], **FORMS[form])
            (folder / f"clip{number + 1}.{form}").write_bytes(data)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real browser; no two of it can run in a process."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install capeval[test]")
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = next(filter(None, map(shutil.which, names)), None)
    with api.sync_playwright() as playwright:
        path = installed or playwright.chromium.executable_path
        if not Path(path).is_file():
            pytest.skip("no chromium: apt-get install chromium, or playwright install chromium")
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
