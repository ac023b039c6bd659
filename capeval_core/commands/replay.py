"""`capeval replay`: the scores of a bundle, computed again."""

from __future__ import annotations

from capeval_core.commands import common
from capeval_core.commands.terminal import parser_of
from capeval_core.errors import naming
from capeval_core.inputs.columns import FileOptions
from capeval_core.inputs.files import load_json
from capeval_core.registry import metric_class
from capeval_core.replay.bundle import check_bundle, replay

EQUAL_SCORES = 3
"""The status where all scores are equal, but inputs or parts are not."""


def run(arguments: list[str]) -> int:
    flags = parser_of("replay", options=[FileOptions]).read(arguments)
    bundle = load_json(flags.bundle)
    with naming({"bundle": str(flags.bundle)}):
        check_bundle(bundle)
    metric = metric_class(bundle["metric"], bundle["media"])
    file, options = common.read_named(flags, metric, bundle["options"])
    with common.naming_rows(file.ids):
        outcome = replay(bundle, file.captions, file.images, file.references, ids=file.ids, **options)
    print(outcome.sentence)
    if outcome.equal:
        return 0
    return EQUAL_SCORES if outcome.equal_scores else 1
