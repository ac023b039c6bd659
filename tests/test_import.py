"""What importing costs: next to nothing until something is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import capeval_core

ROOT = Path(__file__).parents[1]
HEAVY = ["torch", "numpy", "pyarrow", "PIL", "datasets", "transformers", "open_clip", "evaluate", "scipy"]


def loaded(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has imported after `code`."""
    code += f"\nimport json, sys; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    # Without `site`, since an editable install or a coverage hook may import packages of its own there.
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_package_imports_nothing_heavy() -> None:
    assert loaded("import capeval_core; capeval_core.__version__; dir(capeval_core)") == set()


@pytest.mark.parametrize(
    "use",
    [
        "capeval_core.list_metrics()",
        "capeval_core.Result",
        "from capeval_core.registry import METRICS as M, metric_class as c; [c(m).Options() for m in M]",
        "from capeval_core.metric import CommonOptions; CommonOptions.describe()",
        "from capeval_core.cli import main; main(['train', '--help']); main(['shards', '--help'])",
    ],
)
def test_lists_and_descriptions_need_no_model(use: str) -> None:
    found = loaded(f"import capeval_core; {use}")
    assert not found & {"torch", "datasets", "transformers", "open_clip", "evaluate", "scipy"}


def test_scores_of_texts_alone_need_no_pytorch(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text('{"a": "a dog runs", "b": "two cats"}')
    (tmp_path / "references.json").write_text('{"a": ["a dog"], "b": ["two cats sit"]}')
    files = ["--candidates", f"{tmp_path}/captions.json", "--references", f"{tmp_path}/references.json"]
    line = ["score", "bleu,rougel,ciderd", *files, "--json", f"{tmp_path}/out"]
    found = loaded(f"from capeval_core.cli import main; main({line!r})")
    assert not found & {"torch", "transformers", "open_clip"}


def test_the_public_face_is_what_it_says() -> None:
    assert set(capeval_core.__all__) <= set(dir(capeval_core))
    for name in capeval_core.__all__:
        assert getattr(capeval_core, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        capeval_core.laod  # noqa: B018
