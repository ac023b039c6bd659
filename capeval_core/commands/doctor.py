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
from capeval_core.fetching import FETCH
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
    states = {name: metric_state(name) for name in [*list_metrics(), *JAVA_METRICS]}
    missing_packages = extras()
    about_machine = machine()
    if flags.json:
        content = {"machine": about_machine, "metrics": states, "extras": missing_packages}
        print(json_text(content), end="")
        return 0
    metrics = [["METRIC", "RUNS", "WHAT IT LACKS"]]
    for name, state in states.items():
        metrics.append([name, "yes" if state["runs"] else "no", state["fix"]])
    installed: list[str] = []
    lacking: list[str] = []
    for extra, packages in missing_packages.items():
        (lacking if packages else installed).append(extra)
    rows = [["extras", ", ".join(installed) or "none"]]
    if lacking:
        rows.append(["not installed", f"{', '.join(lacking)}: {install_command(lacking[0])}, ..."])
    print(table(list(about_machine.items())))
    print(f"\n{table(metrics)}\n\n{table(rows)}")
    return 0


def machine() -> dict[str, str]:
    """The software and the processors of this machine, in words."""
    # Imported here: torch takes seconds, which `capeval doctor --help` need not wait for.
    import torch

    from capeval_core.models.device import has_bfloat16

    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"{name} is not installed")
    # Where a processor has no instructions for bfloat16, torch converts every number to float32 and back.
    fastest = "bfloat16" if has_bfloat16() else "float32"
    cpu: Any = torch.backends.cpu
    processor = f"{os.cpu_count()} cores, {cpu.get_cpu_capability()}; {fastest} is the fastest dtype on it"
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    # huggingface_hub reads the variable when it is imported, and takes these values for true.
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
    """State of a metric: True under `runs` if its weights are here, else the command that brings them."""
    if name in JAVA_METRICS:
        return _java_state()
    items = plan([name]) if name in metrics_with_weights() else []
    missing = [item for item in items if item.place is None]
    if not missing:
        return {"runs": True, "fix": "", "bytes": 0}
    size = 0  # 0 where no file's size is stated
    closed_licences = []
    for item in missing:
        for file in item.files:
            size += file.size or 0
        if not is_open(item.licence):
            closed_licences.append(item.licence or "licence not stated")
    details = [f"{size / 1e6:,.0f} MB"] if size else []
    details += closed_licences[:1]  # `capeval fetch` lists them all, and asks
    fix = f"capeval fetch {name}"
    if details:
        fix += f" ({', '.join(details)})"
    return {"runs": False, "fix": fix, "bytes": size}


def _java_state() -> dict[str, Any]:
    """State of METEOR and SPICE, which run a program of pycocoevalcap in Java."""
    lacks = []
    if shutil.which("java") is None:
        lacks.append("Java")
    if find_spec("pycocoevalcap") is None:
        lacks.append(install_command("ngram"))
    return {"runs": not lacks, "fix": ", ".join(lacks), "bytes": 0}


def extras() -> dict[str, list[str]]:
    """The packages that each extra of capeval still lacks."""
    missing: dict[str, list[str]] = {}
    # As the wheel states them, e.g. `gradio>=5.0; extra == "page"`: setup.cfg is not installed.
    for requirement in requires("capeval") or []:
        extra = re.search(r"extra == [\"']([\w-]+)[\"']", requirement)
        if extra is None or extra[1] in _FOR_DEVELOPERS:
            continue
        lacks = missing.setdefault(extra[1], [])
        package = requirement.partition(";")[0]
        name = re.split(r"[^\w.-]", package, maxsplit=1)[0]  # without a version, or an extra in brackets
        try:
            version(name)
        except PackageNotFoundError:
            lacks.append(name)
    return missing
