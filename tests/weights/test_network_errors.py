"""What a Python user reads where no network is: a few lines, the last of which say what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOAD = "import capeval_core\nmetric = capeval_core.load({})\n"
JUDGE = "from capeval_core.judgements.sets import load_set\nload_set('nebula', 'org/nebula')\n"
TRAIN = "from capeval_core.training.captioned import load_rows\nload_rows('org/captions', 'train', {})\n"
PUBLISH = """
from pathlib import Path
from capeval_core.publishing.publication import Publication, publish
list(publish([Publication("me/mine", "model", {"README.md": b"x"}, "first")]))
"""


def failing(code: str, home: Path) -> list[str]:
    """The lines of standard error of a script without a network."""
    script = home / "script.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=home,
        capture_output=True,
        text=True,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "HF_HOME": str(home),
            "HF_TOKEN": "hf_none",
            "PYTHONPATH": str(ROOT),
        },
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (LOAD.format("'pacs'"), ["Connection refused", "capeval convert pacs", 'pass weights="tiny"']),
        (LOAD.format("'clips'"), ["Connection refused", "hf download timm/", 'pass weights="tiny"']),
        (
            LOAD.format("'eco', weights='tiny', members=['timm/vit_base_patch16_clip_224.openai']"),
            ["members: 'timm/vit_base_patch16_clip_224.openai'", "Connection refused"],
        ),
        (
            LOAD.format("'pacs', weights='~nosuchuser/x'"),
            ["weights='~nosuchuser/x' is neither a folder, nor a Hub id"],
        ),
        (JUDGE, ["org/nebula: the data set could not be loaded from the Hub"]),
        (TRAIN, ["dataset='org/captions' could not be loaded"]),
        (PUBLISH, ["me/mine: http://127.0.0.1:9 cannot be reached", "Connection refused: try again later"]),
    ],
    ids=["to convert", "on the Hub", "a member", "no such user", "a judged set", "a dataset", "publish"],
)
def test_a_traceback_without_a_network_is_short_and_ends_with_the_cause(
    code: str, parts: list[str], tmp_path: Path
) -> None:
    lines = failing(code, tmp_path)
    text = "\n".join(lines)
    assert len(lines) <= 40 and text.count("Traceback") == 1, text
    assert all(part in text for part in parts), text
    assert "httpx" not in text and "urllib3" not in text and "requests/" not in text
