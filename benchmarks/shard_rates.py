"""`capeval shards score` beside the plain ways, on the same tars in one run: rows a second, and memory.

    python -m benchmarks.shard_rates [--rows 2000] [--nemo PYTHON] [--out FILE.md]

CLIP-S of JPEGs of 500x375, by the small weights and by a seeded ViT-B/32, in float32 and bfloat16, by one and
two workers. open_clip loop: one over webdataset, two workers are two processes with half of the shards each.
NeMo Curator: its CLIP filter stage, in the Python that `--nemo` names, in float32, which is all that it has.
Memory is the largest sum of resident memory of all processes, looked at five times a second.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import capeval_core
from capeval_core.project import __version__

_SHARDS = 4
_BATCH = 32
_TINY = Path(capeval_core.__file__).parent / "weights" / "tiny" / "pacs"


def write_tars(folder: Path, rows: int) -> None:
    """Write shards of JPEGs with a caption each, all different."""
    from benchmarks.workload import make_workload, sentences

    folder.mkdir()
    (folder / "images").mkdir()
    images = make_workload(folder / "images", rows / 1000).images
    captions = sentences(rows)
    for shard in range(_SHARDS):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as tar:
            for row in range(shard, rows, _SHARDS):
                data = images[row % len(images)].read_bytes() + str(row).encode()  # so that no two are equal
                for extension, content in (("jpg", data), ("txt", captions[row].encode())):
                    about = tarfile.TarInfo(f"{row:08}.{extension}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


# ---- the plain ways, each in a process of its own


def plain(weights: Path, dtype: str, tars: Sequence[str]) -> int:
    """Cosines of an open_clip model over webdataset; the number of rows."""
    import open_clip
    import torch
    import webdataset
    from safetensors.torch import load_file
    from torchvision import transforms

    config = json.loads((weights / "config.json").read_text())
    architecture = config["architecture"]
    scaling = config["preprocessing"]
    quick = config["activation"] == "quick_gelu"
    model = open_clip.model.CLIP(
        architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=quick
    )
    missing, unknown = model.load_state_dict(load_file(weights / "model.safetensors"), strict=False)
    assert not unknown and set(missing) <= {"logit_scale"}, "not open_clip's names"
    kind = getattr(torch, dtype)
    model = model.eval().to(kind)
    tokenize = open_clip.SimpleTokenizer(context_length=architecture["text"]["context_length"])
    side = scaling["image_size"]
    preprocess = transforms.Compose(
        [
            transforms.Resize(side, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(side),
            transforms.ToTensor(),
            transforms.Normalize(scaling["mean"], scaling["std"]),
        ]
    )
    rows = 0
    data = webdataset.WebDataset(list(tars), shardshuffle=False).decode("pilrgb").to_tuple("jpg", "txt")
    with torch.inference_mode():
        for images, captions in data.batched(_BATCH, collation_fn=lambda samples: tuple(zip(*samples))):  # noqa: B905
            pixels = torch.stack([preprocess(image) for image in images]).to(kind)
            image = model.encode_image(pixels, normalize=True)
            tokens = tokenize([f"A photo depicts {caption}" for caption in captions])
            text = model.encode_text(tokens, normalize=True)
            rows += len((image * text).sum(dim=1))
    return rows


def nemo(models: Path, tars: Sequence[str]) -> int:
    """Rows through NeMo Curator's stage, a hundred at a time."""
    import pyarrow as pa
    from nemo_curator.stages.interleaved.filter.clip_score_filter import InterleavedCLIPScoreFilterStage
    from nemo_curator.tasks import InterleavedBatch
    from nemo_curator.tasks.interleaved import INTERLEAVED_SCHEMA

    stage = InterleavedCLIPScoreFilterStage(model_dir=str(models), min_score=-1.0)
    stage.setup()
    rows = 0
    for path in tars:
        records: list[dict[str, Any]] = []
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, extension = member.name.partition(".")
                content = tar.extractfile(member)
                assert content is not None
                record: dict[str, Any] = {"sample_id": key, "position": len(records) % 2}
                if extension == "txt":
                    text = content.read().decode()
                    record |= {"modality": "text", "content_type": "text/plain", "text_content": text}
                else:
                    data = content.read()
                    record |= {"modality": "image", "content_type": "image/jpeg", "binary_content": data}
                records.append(record)
        for start in range(0, len(records), 200):
            table = pa.Table.from_pylist(records[start : start + 200], schema=INTERLEAVED_SCHEMA)
            stage.process(InterleavedBatch(dataset_name="rates", data=table))
            rows += len(table) // 2
    return rows


def write_models(folder: Path) -> None:
    """The seeded ViT-B/32 where NeMo Curator looks for its model."""
    from transformers import CLIPImageProcessor, CLIPProcessor

    from benchmarks.other_tools import clip_model, tokenizer

    place = folder / "openai" / "clip-vit-large-patch14"
    clip_model().save_pretrained(place)
    CLIPProcessor(image_processor=CLIPImageProcessor(), tokenizer=tokenizer()).save_pretrained(place)


# ---- measured


def measured(commands: Sequence[Sequence[object]]) -> tuple[float, float, float]:
    """Seconds of work, seconds of whole processes, and memory in MB of commands that run side by side.

    A command prints `seconds X` if its work is less than all that it does.
    """
    threads = str(max(1, (os.cpu_count() or 1) // len(commands)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "RAY_USAGE_STATS_ENABLED": "0"}
    start = time.monotonic()
    processes = [
        subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for command in commands
    ]
    peak = 0.0
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.2):
            peak = max(peak, sum(map(_memory_of_tree, [process.pid for process in processes])))

    watcher = threading.Thread(target=watch)
    watcher.start()
    outputs = [process.communicate()[0] for process in processes]
    is_over.set()
    watcher.join()
    total = time.monotonic() - start
    if any(process.returncode for process in processes):
        return float("nan"), total, peak
    spent = [
        float(match)
        for output in outputs
        for match in re.findall(r"(?:^seconds|pairs in) ([\d.,]+)", output, re.M)
    ]
    return max(spent, default=total), total, peak


def _memory_of_tree(root: int) -> float:
    """Resident memory in MB of a process and of all below it."""
    parents: dict[int, int] = {}
    memory: dict[int, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(process.name)] = int(fields[1])
        memory[int(process.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    total = 0.0
    for process_id, size in memory.items():
        ancestor = process_id
        while ancestor not in (root, 0):
            ancestor = parents.get(ancestor, 0)
        if ancestor == root:
            total += size
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rows-of-tiny", type=int, default=8000)
    parser.add_argument("--nemo", help="a Python with nemo-curator 1.4")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        way, *values = arguments.way
        start = time.monotonic()
        if way == "nemo":
            nemo(Path(values[0]), values[1:])
        else:
            plain(Path(values[0]), values[1], values[2:])
        print(f"seconds {time.monotonic() - start:.2f}")
        return
    load = os.getloadavg()[0]
    verdict = "the machine was quiet"
    if load > 1:
        verdict = "the machine was NOT quiet: run it again on one that is"
    lines = [
        "# Rows a second beside the plain ways",
        "",
        f"`python -m benchmarks.shard_rates --rows {arguments.rows} "
        f"--rows-of-tiny {arguments.rows_of_tiny}`,",
        f"{datetime.date.today()}, capeval {__version__}, {os.cpu_count()} cores,",
        f"load {load:.1f} at the start, so {verdict}.",
        "",
        "| weights | dtype | way | workers | rows | rows/s | rows/s, whole command | memory, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]

    def add(
        weights: str, dtype: str, way: str, workers: int, rows: int, commands: Sequence[Sequence[object]]
    ) -> None:
        seconds, total, memory = measured(commands)
        rates = f"{rows / seconds:,.0f} | {rows / total:,.0f}"
        lines.append(f"| {weights} | {dtype} | {way} | {workers} | {rows:,} | {rates} | {memory:,.0f} |")
        print(lines[-1], flush=True)
        if arguments.out is not None:
            arguments.out.write_text("\n".join([*lines, ""]), encoding="utf-8")

    with tempfile.TemporaryDirectory() as name:
        from benchmarks.workload import make_weights

        folder = Path(name)
        for weights, path, rows in (
            ("tiny", _TINY, arguments.rows_of_tiny),
            ("ViT-B/32", make_weights("ViT-B-32", folder), arguments.rows),
        ):
            tars = folder / path.name
            tars = tars.with_name(f"tars-{path.name}")
            write_tars(tars, rows)
            shards = sorted(tars.glob("*.tar"))
            for dtype in ("float32", "bfloat16"):
                for workers in (1, 2):
                    output = folder / f"out-{path.name}-{dtype}-{workers}"
                    line = [
                        sys.executable,
                        "-m",
                        "capeval_core",
                        "shards",
                        "score",
                        "clips",
                        "--weights",
                        path,
                    ]
                    line += ["--dtype", dtype, "--device", "cpu", "--workers", workers, "--output", output]
                    add(weights, dtype, "capeval", workers, rows, [[*line, "--input", *shards]])
                    this = [sys.executable, "-m", "benchmarks.shard_rates", "--way", "plain", path, dtype]
                    parts = [[*this, *shards[worker::workers]] for worker in range(workers)]
                    add(weights, dtype, "open_clip loop", workers, rows, parts)
            if arguments.nemo and weights != "tiny":
                write_models(folder / "models")
                this = [arguments.nemo, "-m", "benchmarks.shard_rates", "--way", "nemo", folder / "models"]
                add(weights, "float32", "NeMo Curator", 1, rows, [[*this, *shards]])


if __name__ == "__main__":
    main()
