"""The scripts in `examples/` run as they stand, with less to do."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import capeval_core
from tests.hub import WRITER, Repository, ask, serving
from tests.integrations.shard_files import rows_of
from tests.integrations.shard_inputs import write_shards
from tests.support.reward_server import reward_server

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.system
def test_a_ray_pipeline_scores_pairs(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install capeval[ray]")
    write_shards(tmp_path / "in", shards=2, rows=50)
    table = pq.read_table(tmp_path / "in" / "00001.parquet")
    images = table["image"].to_pylist()
    broken = {table["uid"][3].as_py(): b"<html>404</html>", table["uid"][9].as_py(): None}
    images[3], images[9] = broken.values()
    column = table.column_names.index("image")
    pq.write_table(table.set_column(column, "image", [images]), tmp_path / "in" / "00001.parquet")
    (tmp_path / "in" / "read.me").write_text("which the pattern leaves out")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ray_data.py"), "in/*.parquet", "scored/"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    assert "100 pairs scored into scored/" in done.stdout
    rows = pq.read_table(tmp_path / "scored")
    assert len(set(rows["uid"].to_pylist())) == 100 and "image" not in rows.column_names
    errors = dict(zip(rows["uid"].to_pylist(), rows["error"].to_pylist(), strict=True))
    assert {uid for uid, error in errors.items() if error} == broken.keys()
    assert np.isfinite(rows["score"].to_numpy()).sum() == 98


@pytest.mark.system
def test_a_captioner_learns_from_a_reward_server(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="needs TRL: pip install capeval[trl]")
    small = ["--scenes", "64", "--warm-up", "2", "--steps", "2", "--picture", str(tmp_path / "reward.png")]
    with reward_server("pacs", "--weights", "tiny") as server:
        done = subprocess.run(
            [sys.executable, "-m", "examples.grpo_captioner", *small],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**ENVIRONMENT, "CAPEVAL_SERVER": server.address},
        )
    assert done.returncode == 0, done.stderr
    assert "true captions" in done.stdout and (tmp_path / "reward.png").stat().st_size > 0


@pytest.mark.system
def test_a_dataset_is_scored_by_map(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", shards=2, rows=50)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "datasets_map.py"), "in/*.parquet"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**ENVIRONMENT, "HF_DATASETS_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert "100 pairs, 0 without a score; the best:" in done.stdout
    assert len(re.findall(r"^\d\.\d{3}  a red square, number \d+$", done.stdout, re.MULTILINE)) == 3


def operator_of(name: str) -> Any:
    """A module of `examples/`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.system
def test_a_stage_of_nemo_curator_keeps_the_score() -> None:
    pytest.importorskip("nemo_curator", reason="needs nemo-curator 1.4")
    from nemo_curator.tasks import InterleavedBatch
    from nemo_curator.tasks.interleaved import INTERLEAVED_SCHEMA

    rows = rows_of(12)
    expected = capeval_core.load("clips", weights="tiny").score(rows["caption"], rows["image"]).scores
    rows["image"][4] = b"<html>"
    records: list[dict[str, Any]] = []
    for uid, caption, image in zip(rows["uid"], rows["caption"], rows["image"], strict=True):
        records.append({"sample_id": uid, "position": 0, "modality": "text", "text_content": caption})
        records.append({"sample_id": uid, "position": 1, "modality": "image", "binary_content": image})
    table = pa.Table.from_pylist(records, schema=INTERLEAVED_SCHEMA)
    threshold = sorted(expected)[6]
    stage = operator_of("nemo_curator_filter").CaptionScoreFilterStage(weights="tiny", min_score=threshold)
    stage.setup()
    kept = stage.process(InterleavedBatch(dataset_name="rows", data=table)).to_pandas()
    images = kept[kept["modality"] == "image"]
    good = [row for row, score in enumerate(expected) if score >= threshold and row != 4]
    assert images["sample_id"].tolist() == [rows["uid"][row] for row in good] and len(kept) == 12 + len(good)
    assert images["score"].tolist() == pytest.approx([expected[row] for row in good], abs=1e-6)


@pytest.mark.system
def test_an_operator_of_data_juicer_keeps_the_score(tmp_path: Path) -> None:
    pytest.importorskip("data_juicer", reason="needs py-data-juicer 1.6")
    from data_juicer.core.data import NestedDataset

    rows = rows_of(12)
    expected = capeval_core.load("clips", weights="tiny").score(rows["caption"], rows["image"]).scores
    rows["image"][4] = b"<html>"
    samples = []
    for row, caption in enumerate(rows["caption"]):
        (tmp_path / f"{row}.png").write_bytes(rows["image"][row])
        samples.append({"text": f"<__dj__image> {caption}", "images": [str(tmp_path / f"{row}.png")]})
    threshold = sorted(expected)[6]
    operator = operator_of("data_juicer_filter").CaptionScoreFilter(weights="tiny", min_score=threshold)
    operator.num_proc = 1
    kept = NestedDataset.from_list(samples).process([operator])
    good = [row for row, score in enumerate(expected) if score >= threshold and row != 4]
    assert list(kept["caption_score"]) == pytest.approx([expected[row] for row in good], abs=1e-6)
    assert list(kept["images"]) == [samples[row]["images"] for row in good]


@pytest.mark.system
def test_the_tasks_of_a_slurm_array_share_the_shards(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    write_shards(tmp_path / "in", shards=3, rows=10)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "capeval"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m capeval_core "$@"\n')
    command.chmod(0o755)
    for task in ("0", "1", "7"):
        done = subprocess.run(
            [bash, str(ROOT / "examples" / "slurm_shards.sh"), "in/*.parquet", "out", "--weights", "tiny"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                **ENVIRONMENT,
                "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
                "SLURM_ARRAY_TASK_ID": task,
                "SLURM_ARRAY_TASK_COUNT": "2",
            },
        )
        assert done.returncode == 0, done.stderr
    assert "no shard for task 7" in done.stdout
    scored = {task: json.loads((tmp_path / f"out/manifest-{task}.json").read_text()) for task in (0, 1)}
    assert [len(scored[task]["shards"]) for task in (0, 1)] == [2, 1]
    assert len(list(tmp_path.glob("out/0*.parquet"))) == 3


@pytest.mark.system
def test_a_captioner_is_trained(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "train_captioner.py"),
            *("--scenes", "32", "--steps", "4", "--evaluations", "2"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr
    evaluations = re.findall(
        r"^step +(\d+) .* PAC-S \d\.\d{3} .* RefPAC-S \d\.\d{3}$", done.stdout, re.MULTILINE
    )
    assert evaluations == ["0", "2", "4", "4"]
    assert "capeval:pacs|weights:tiny@" in done.stdout
    assert not list(tmp_path.iterdir())


SCORE_JOB = """
import contextlib, io, json, runpy, sys
sys.argv = ["score_job.py", *%r]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
    try:
        runpy.run_path(%r, run_name="__main__")
    except SystemExit as ended:
        status = ended.code
print(json.dumps([status, err.getvalue()]))
"""


@pytest.mark.system
def test_a_job_scores_a_data_set_of_the_hub_and_pushes_scores_back(tmp_path: Path) -> None:
    """With a Hub on this machine; an image that cannot be opened costs its own row alone."""
    write_shards(tmp_path / "pairs" / "data", shards=1, rows=20)
    (path,) = (tmp_path / "pairs" / "data").glob("*.parquet")
    table = pq.read_table(path)
    images = table["image"].to_pylist()
    images[3] = b"<html>404</html>"
    column = table.column_names.index("image")
    pq.write_table(
        table.set_column(column, "image", [[{"bytes": each, "path": None} for each in images]]), path
    )
    path.rename(path.with_name("test-00000-of-00001.parquet"))
    script = str(ROOT / "examples" / "score_job.py")
    out = tmp_path / "out"
    flags = ["me/pairs", "--weights", "tiny", "--out", str(out), "--push-to", "someone/scores"]
    with serving({"datasets/me/pairs": Repository.of({"main": tmp_path / "pairs"})}) as hub:
        more = {"HF_TOKEN": WRITER, "HF_DATASETS_CACHE": str(tmp_path / "datasets")}
        status, said = ask(SCORE_JOB % (flags, script), hub.address, tmp_path, **more)
        assert status == 0, said
        wrong = ask(SCORE_JOB % ([*flags, "--caption", "text"], script), hub.address, tmp_path, **more)
        assert "caption" in str(wrong[0])
        pushed = hub.repositories["datasets/someone/scores"].find("main")
    assert pushed is not None and {"README.md", "scores.parquet", "summary.json"} <= pushed[1].keys()
    rows = pq.read_table(out / "scores.parquet").to_pandas()
    metric = capeval_core.load("pacs", weights="tiny", on_error="nan")
    result = metric.score(table["caption"].to_pylist(), images)
    np.testing.assert_allclose(rows["pac_s"], result.scores, atol=2e-6)
    assert list(rows["error"].notna().to_numpy().nonzero()[0]) == [3]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["signature"] == result.signature and summary["counts"]["failed"] == 1
