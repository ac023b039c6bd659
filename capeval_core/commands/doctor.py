"""`capeval doctor`: what is on this machine, which metrics can run now, and what the others lack."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Any

from capeval_core.commands.terminal import parser_of, table
from capeval_core.fetching import FETCH, Item
from capeval_core.judgements.fetching import metrics_with_weights, plan
from capeval_core.project import __version__, install_command
from capeval_core.registry import JAVA_METRICS, list_metrics
from capeval_core.result import json_text
from capeval_core.store import cache_home
from capeval_core.weights.catalogue import is_open

_FOR_DEVELOPERS = ("test", "dev", "docs", "s3test")
_PACKAGES = ("torch", "transformers", "evaluate", "datasets", "huggingface_hub", "open_clip_torch")


def run(arguments: list[str]) -> int:
    flags = parser_of("doctor").read(arguments)
    content: dict[str, dict[str, Any]] = {
        "machine": machine(),
        "metrics": {name: metric_state(name) for name in [*list_metrics(), *JAVA_METRICS]},
        "extras": extras(),
    }
    if flags.json:
        print(json_text(content), end="")
        return 0
    metrics = [["METRIC", "RUNS", "WHAT IT LACKS"]]
    for name, state in content["metrics"].items():
        metrics.append([name, "yes" if state["runs"] else "no", state["fix"]])
    installed = [name for name, missing in content["extras"].items() if not missing]
    lacking = [name for name, missing in content["extras"].items() if missing]
    rows = [["extras", ", ".join(installed) or "none"]]
    if lacking:
        rows.append(["not installed", f"{', '.join(lacking)}: {install_command(','.join(lacking[:1]))}, ..."])
    print(table([[name, value] for name, value in content["machine"].items()]))
    print(f"\n{table(metrics)}\n\n{table(rows)}")
    return 0


def machine() -> dict[str, str]:
    """The software and the processors of this machine, in words."""
    import torch

    from capeval_core.models.device import has_bfloat16

    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"{name} is not installed")
    fastest = "bfloat16" if has_bfloat16() else "float32"
    cpu: Any = torch.backends.cpu
    processor = f"{os.cpu_count()} cores, {cpu.get_cpu_capability()}; {fastest} is the fastest dtype on it"
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE")
    fetches = {"1": "everything is fetched when it is needed", "0": "nothing is fetched by itself"}
    network = fetches.get(os.environ.get(FETCH, ""), "weights under open licences are fetched when needed")
    return {
        "capeval": f"{__version__}, Python {platform.python_version()}, {platform.system()}",
        "packages": ", ".join(packages),
        "processor": processor,
        "GPU": ", ".join(gpus) or "none that torch can use",
        "cache": str(cache_home()),
        "network": "HF_HUB_OFFLINE is set: only what is here" if offline else network,
    }


def metric_state(name: str) -> dict[str, Any]:
    """Whether a metric's published weights are here, and the command that brings them otherwise."""
    if name in JAVA_METRICS:
        return _java_state(name)
    if name not in metrics_with_weights():
        return {"runs": True, "fix": "", "bytes": 0}
    missing = [item for item in plan([name]) if item.place is None]
    if not missing:
        return {"runs": True, "fix": "", "bytes": 0}
    size = sum(file.size or 0 for item in missing for file in item.files)
    words = f"capeval fetch {name}"
    details = [f"{size / 1e6:,.0f} MB"] if size else []
    details += [_licence(item) for item in missing if not is_open(item.licence)][:1]
    if details:
        words += f" ({', '.join(details)})"
    return {"runs": False, "fix": words, "bytes": size}


def _licence(item: Item) -> str:
    return item.licence or "licence not stated"


def _java_state(name: str) -> dict[str, Any]:
    """METEOR and SPICE run a program of pycocoevalcap in Java."""
    lacks = []
    if shutil.which("java") is None:
        lacks.append("Java")
    if find_spec("pycocoevalcap") is None:
        lacks.append(install_command("ngram"))
    return {"runs": not lacks, "fix": ", ".join(lacks), "bytes": 0}


def extras() -> dict[str, list[str]]:
    """The packages that each extra of capeval still lacks."""
    missing: dict[str, list[str]] = {}
    for requirement in requires("capeval") or []:
        extra = re.search(r"extra == [\"']([\w-]+)[\"']", requirement)
        if extra is None or extra[1] in _FOR_DEVELOPERS:
            continue
        lacks = missing.setdefault(extra[1], [])
        package = re.match(r"[\w.-]+", requirement)
        assert package is not None
        try:
            version(package[0])
        except PackageNotFoundError:
            lacks.append(package[0])
    return missing
