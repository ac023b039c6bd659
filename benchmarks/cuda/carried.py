"""The wheels that a GPU machine without a network lacks: `python -m benchmarks.cuda.carried FOLDER`.

They are downloaded for Python 3.12 on Linux; pyarrow is packed again without what is not used here, since it
is larger than all others together. What the machine has already may be left out: `--without pyarrow ...`.
Fails where wheels and checkout together exceed the limit.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZIP_LZMA, ZipFile

LACKING = ("pyarrow", "datasets", "dill", "multiprocess", "evaluate", "open_clip_torch", "ftfy", "wcwidth")
"""Packages that machines with torch, Triton and transformers need not have."""
COMPARED = ("late-interaction-kernels==0.4.5", "flash-maxsim==0.3.0")
"""Libraries that matching is measured against."""
LIMIT = 64e6
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
UNUSED = re.compile(
    r"pyarrow/(?:tests|include|includes|src)/"
    r"|pyarrow/(?:libarrow_|_)?(?:python_)?(?:flight|s3|s3fs|gcsfs|azurefs|hdfs|orc|parquet_encryption)\b"
    r"|pyarrow/libarrow_python\w*\.so(?:\.\d+\.\d+\.\d+)?$"  # each stands there three times
    r"|.*\.(?:pxd|pxi|pyx|h|cc)$"
)
"""Files of pyarrow's wheel that neither this project nor `datasets` opens."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda.carried", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the wheels; made if it is not there")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        choices=LACKING,
        metavar="PACKAGE",
        help=f"which the machine has already, of {', '.join(LACKING)}",
    )
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    if others := sorted(given.folder.glob("*.whl")):
        parser.error(f"{given.folder} holds {others[0].name}: pass an empty folder")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "--dest", str(given.folder)]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    subprocess.run(
        [*command, *COMPARED, *(name for name in LACKING if name not in given.without)], check=True
    )
    for wheel in given.folder.glob("pyarrow-*.whl"):
        reduce(wheel)
    wheels = {path.name: path.stat().st_size for path in sorted(given.folder.glob("*.whl"))}
    total = sum(wheels.values()) + (checkout := tracked_bytes())
    for name, size in (*wheels.items(), ("checkout", checkout), ("together", total)):
        print(f"{size / 1e6:8.1f} MB  {name}")
    if total > LIMIT:
        print(
            f"more than {LIMIT / 1e6:.0f} MB: leave out what the machine has with --without", file=sys.stderr
        )
    return int(total > LIMIT)


def reduce(wheel: Path) -> None:
    """Pack a wheel of pyarrow again without what is unused, and tighter; its licences stay."""
    partial = wheel.with_suffix(".partial")
    listed = io.StringIO()
    record = csv.writer(listed, lineterminator="\n")
    with ZipFile(wheel) as whole, ZipFile(partial, "w", ZIP_LZMA) as reduced:
        (place,) = (name for name in whole.namelist() if name.endswith(".dist-info/RECORD"))
        for entry in whole.infolist():
            if entry.is_dir() or entry.filename == place or UNUSED.match(entry.filename):
                continue
            data = whole.read(entry)
            reduced.writestr(entry, data, ZIP_LZMA)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.writerow((entry.filename, f"sha256={digest}", len(data)))
        record.writerow((place, "", ""))
        reduced.writestr(place, listed.getvalue())
    partial.replace(wheel)


def tracked_bytes() -> int:
    """The size of the files that git tracks, and of those that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return sum(Path(name).stat().st_size for name in names if name and Path(name).is_file())


if __name__ == "__main__":
    raise SystemExit(main())
