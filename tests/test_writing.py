"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.writing import write_whole
from tests.seeded import encoder


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which no file grows beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    with largest_file(100), pytest.raises(OSError, match="too large"):
        write_whole(out, "x" * 101)
    with pytest.raises(ValueError, match="surrogates"):
        write_whole(out, "a file name \udcff")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("out.json", "before")]


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("before")
    program = (
        "import os, sys; from pathlib import Path; from capeval_core import writing\n"
        "writing.os.fsync = lambda file: os.kill(os.getpid(), 9)\n"
        "writing.write_whole(Path(sys.argv[1]), 'after')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(out)], cwd=Path(__file__).parents[1])
    assert done.returncode == -9
    assert out.read_text() == "before"


def test_links_permissions_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    out, link, pipe = tmp_path / "out.json", tmp_path / "link.json", tmp_path / "pipe"
    out.write_text("before")
    out.chmod(0o640)
    link.symlink_to(out)
    write_whole(link, "after")
    assert link.is_symlink() and out.read_text() == "after"
    assert out.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    with pytest.raises(OSError, match="no regular file"):
        write_whole(pipe, b"x")
    write_whole(pipe, b"after", into_pipes=True)
    reader.join(10)  # nobody comes where the pipe was replaced
    assert pipe.is_fifo() and read == ["after"]


def test_an_encoder_that_cannot_be_saved_leaves_no_file_that_is_cut(tmp_path: Path) -> None:
    encoder().save_pretrained(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with largest_file(4_000), pytest.raises(Exception, match=r"(?i)too large"):
        encoder().save_pretrained(tmp_path)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert "model.safetensors" in after
    assert after == {name: before[name] for name in after}  # the Hub's client takes config.json away first


def test_a_vocabulary_is_written_whole(tmp_path: Path) -> None:
    blip2 = Blip2Encoder.from_pretrained("tiny", device="cpu")
    blip2.save_beside(tmp_path)
    before = (tmp_path / "vocab.txt").read_text()
    with largest_file(100), pytest.raises(OSError, match="too large"):
        blip2.save_beside(tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("vocab.txt", before)]
