"""Networks: their classes, original releases and tiny models (`networks.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_name("networks.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class NetworkFacts:
    """One row of `networks.toml`, whose head says what each value is."""

    class_: str
    converted_as: str
    purpose: str | None = None
    command: str | None = None
    tiny: str | None = None
    signs: Sequence[str] = ()
    hidden: Mapping[str, Any] = field(default_factory=dict)
    release: Mapping[str, Any] = field(default_factory=dict)
    """Everything else: how the original release is told and translated, for its `Conversion`."""


def _facts(row: Mapping[str, Any]) -> NetworkFacts:
    common: dict[str, Any] = {"class_": row["class"]}  # `class` is a word of Python
    release: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("converted_as", "purpose", "command", "tiny", "signs", "hidden"):
            common[name] = value
        elif name != "class":
            release[name] = value
    return NetworkFacts(release=release, **common)


NETWORKS: Mapping[str, NetworkFacts] = {name: _facts(row) for name, row in _TABLES.items()}
"""Every network by its `kind`, which is `encoder` in the config of its weights."""
PARTS = {facts.converted_as: name for name, facts in NETWORKS.items() if facts.purpose}
"""Networks that are no metric's own weights, by their names in `capeval convert`."""


def kind_of(config: Mapping[str, Any]) -> str:
    """The network that a config is of: its `encoder`, or the one with most signs in another format."""
    # The most signs count: a SigLIP's config has all that a CLIP's of open_clip has, and more.
    kind = str(config.get("encoder"))
    most_signs = 0
    for name, facts in NETWORKS.items():
        if len(facts.signs) > most_signs and all(_has(config, sign) for sign in facts.signs):
            kind = name
            most_signs = len(facts.signs)
    return kind


def _has(config: object, sign: str) -> bool:
    """Whether a config has something under a dotted key, or the very value of `key=value`."""
    key, _, value = sign.partition("=")
    for part in key.split("."):
        # Configs are files of strangers: a key may hold a number where another network has a table.
        config = config.get(part) if isinstance(config, Mapping) else None
    return config == value if value else bool(config)
