"""Uploads that are made to hold a page: each is refused in time, and the next visitor gets a score."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from capeval_core.demo import demo_clips, demo_set
from tests.inputs.photographs import encoded
from tests.inputs.video_writing import of_many_samples
from tests.support.seams import LIMITS

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

import httpx

from capeval_core.integrations import page as pages

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")]


def jpeg_of_scans(count: int) -> bytes:
    """Few bytes a scan, each of which costs as much as the whole image."""
    data = encoded(Image.new("RGB", (3000, 3000), "grey"), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + b"\xff\xd9"


def png_with(*chunks: tuple[bytes, bytes]) -> bytes:
    data = encoded(Image.new("L", (64, 64)), "PNG")
    own = [
        len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        for kind, content in chunks
    ]
    return data[:33] + b"".join(own) + data[33:]


HOSTILE: dict[str, Callable[[], bytes]] = {
    "scans.jpg": lambda: jpeg_of_scans(100_000),
    "huge.png": lambda: encoded(Image.new("L", (16_000, 16_000)), "PNG"),
    "bomb.png": lambda: png_with(*[(b"zTXt", b"k\0\0" + zlib.compress(bytes(1 << 26)))] * 40),
    "samples.mp4": of_many_samples,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        patch.setattr(LIMITS, "page_seconds", 15.0)  # a busy machine reads a clip in 6
        patch.setattr(LIMITS, "page_memory", 1 << 30)
        page = pages.build("pacs", "tiny")
        pages.launch(page, prevent_thread_lock=True, quiet=True, inline=False)
        try:
            with httpx.Client(base_url=page.local_url, timeout=600) as client:
                yield client
        finally:
            page.close(verbose=False)


def answer(client: httpx.Client, name: str, data: bytes) -> str:
    """What a program is told of an upload."""
    (path,) = client.post("gradio_api/upload", files={"files": (name, data)}).json()
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    video = name.endswith((".mp4", ".gif"))
    about: list[Any] = ["video", file] if video else ["image", None]
    given = [None if video else file, "a red circle", "tiny", *about]
    event = client.post("gradio_api/call/score", json={"data": given}).json()["event_id"]
    return client.get(f"gradio_api/call/score/{event}").text


@pytest.mark.parametrize("name", HOSTILE)
def test_the_page_answers_the_next_visitor(client: httpx.Client, name: str) -> None:
    before, start = _memory(), time.monotonic()
    told = answer(client, name, HOSTILE[name]())
    assert "event: error" in told and "scores" not in told, told
    assert time.monotonic() - start < 40 and _memory() - before < 400 << 20
    for good in (demo_set()[0].image, demo_clips()[0].image):
        told = answer(client, Path(good).name, Path(good).read_bytes())
        assert "event: complete" in told, told
        (line,) = (line for line in told.splitlines() if line.startswith("data: ["))
        assert json.loads(line.removeprefix("data: "))[0]["scores"]


def _memory() -> int:
    """Bytes of memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
