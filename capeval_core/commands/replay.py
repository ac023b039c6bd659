"""`capeval replay`: the scores of a bundle, computed again."""

from __future__ import annotations

from capeval_core.commands import common
from capeval_core.commands.terminal import parser_of
from capeval_core.errors import naming
from capeval_core.inputs.files import load_json
from capeval_core.inputs.text_files import FileOptions
from capeval_core.registry import metric_class
from capeval_core.replay.bundle import check_bundle, replay


def run(arguments: list[str]) -> int:
    parser = parser_of("replay")
    common.add_flags(parser, FileOptions, title="columns and splits of the files")
    flags = parser.read(arguments)
    bundle = load_json(flags.bundle)
    with naming({"bundle": str(flags.bundle)}):
        check_bundle(bundle)
    file, options = common.read_named(
        flags, metric_class(bundle["metric"], bundle["media"]), bundle["options"]
    )
    given = (file.captions, file.images, file.references)
    with common.naming_rows(file.ids):
        outcome = replay(bundle, *given, ids=file.ids, **options)
    print(outcome.sentence)
    return 0 if outcome.equal else 1
