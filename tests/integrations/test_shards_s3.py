"""Shards in an object store: S3, as a server on the loopback interface speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from capeval_core.integrations.shards import (
    BatchScorer,
    check_shards,
    merge_shards,
    score_histogram,
    score_shard,
)
from tests.integrations.shard_files import rows_of, tar_members, write_lines, write_parquet, write_tar

pytestmark = pytest.mark.system

BUCKET = "s3://pairs"


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """The file system of an empty bucket."""
    server = pytest.importorskip("moto.server", reason='needs moto: pip install "capeval[s3test]"')
    s3fs = pytest.importorskip("s3fs", reason='needs s3fs: pip install "capeval[s3]"')
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir(BUCKET)
        yield system
        s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


def test_a_collection_in_a_store(store: Any, tmp_path: Path, weights: str) -> None:
    scorer = BatchScorer("refpacs", weights=weights)
    rows = rows_of(12)
    sources = [
        write_parquet(tmp_path / "0.parquet", rows),
        write_tar(tmp_path / "1.tar", tar_members(rows_of(12, 12), fields=True)),
        write_lines(tmp_path / "2.jsonl", rows_of(12, 24), tmp_path / "pictures"),
    ]
    store.put(str(tmp_path / "pictures"), f"{BUCKET}/in/pictures", recursive=True)
    (tmp_path / "pictures" / f"{rows_of(1, 24)['uid'][0]}.png").unlink()
    store.rm_file(f"{BUCKET}/in/pictures/{rows_of(1, 24)['uid'][0]}.png")
    for i, source in enumerate(sources):
        store.put_file(str(source), f"{BUCKET}/in/{source.name}")
        images = f"{BUCKET}/in/pictures" if i == 2 else None
        result = score_shard(f"{BUCKET}/in/{source.name}", f"{BUCKET}/out/{i}.parquet", scorer, images=images)
        score_shard(source, tmp_path / "out" / f"{i}.parquet", scorer, images=tmp_path / "pictures")
        assert (result.rows, result.failed) == (12, i // 2)
    for i in range(3):
        with store.open(f"{BUCKET}/out/{i}.parquet") as file:
            found = pq.read_table(file).to_pydict()
        local = pq.read_table(tmp_path / "out" / f"{i}.parquet").to_pydict()
        reasons = [reason for reason in found.pop("error") if reason]
        assert reasons == ([] if i < 2 else [reasons[0]]) and len(local.pop("error")) == 12
        assert found == local
    assert "row-000024.png" in reasons[0]
    assert check_shards(f"{BUCKET}/out").ok
    assert merge_shards(f"{BUCKET}/out", f"{BUCKET}/all.parquet") == 36
    found, local = (score_histogram(folder, keep=0.5) for folder in (f"{BUCKET}/out/", tmp_path / "out"))
    assert found.quantiles == local.quantiles and (found.threshold, found.kept) == (
        local.threshold,
        local.kept,
    )
