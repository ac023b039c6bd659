"""`capeval replay`: the scores of a bundle, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capeval_core.commands import common
from capeval_core.commands.terminal import parser_of
from capeval_core.errors import naming
from capeval_core.inputs.files import load_json
from capeval_core.inputs.text_files import FileOptions, Joined
from capeval_core.registry import metric_class
from capeval_core.replay.bundle import check_bundle, replay


def run(arguments: list[str]) -> int:
    parser = parser_of("replay")
    common.add_flags(parser, FileOptions, title="columns and splits of the files")
    flags = parser.read(arguments)
    bundle = load_json(flags.bundle)
    with naming({"bundle": str(flags.bundle)}):
        check_bundle(bundle)
    file, options = read(flags, metric_class(bundle["metric"], bundle["media"]), bundle["options"])
    given = (file.captions, file.images, file.references)
    with common.naming_rows(file.ids):
        outcome = replay(bundle, *given, ids=file.ids, **options)
    print(outcome.sentence)
    return 0 if outcome.equal else 1


def read(flags: Any, metric: Any, options: dict[str, Any]) -> tuple[Joined, dict[str, Any]]:
    """The files that a metric needs, as flags name them, and the options that flags set."""
    given = {name: getattr(flags, name, None) for name in ("weights", "regions")}
    chosen = {name: value for name, value in given.items() if value is not None}
    checked = metric.Options.of(metric.name, {**options, **chosen})
    if metric.media and flags.visuals is None and not checked.images_are_ids:
        raise ValueError(
            f"{metric.name} looks at {metric.media[0]}s: name their folder by --images or --videos"
        )
    if metric.needs_references and flags.references is None:
        raise ValueError(f"{metric.name} needs references: name their file by --references")
    folder: Path | None = flags.visuals if metric.media and not checked.images_are_ids else None
    return common.read_files(flags, folder, flags.candidates, medium=(metric.media or ("image",))[0]), chosen
