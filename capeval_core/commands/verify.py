"""`capeval verify`: are these the published weights, and do the published numbers come out?"""

from __future__ import annotations

from pathlib import Path

from capeval_core.commands.arguments import FlagWords, in_words_of_the_user
from capeval_core.commands.interrupts import interruptible
from capeval_core.commands.terminal import WHOLE_LINES, Parser, complain, paragraph, table
from capeval_core.judgements.verification import Check, verify
from capeval_core.registry import metric_class, metric_classes
from capeval_core.weights.folder import WeightsError

NOT_THERE = 1
"""Exit status where there are no weights to verify, or something did not come out."""
NOTHING_CHECKED = 2


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _introduce(arguments)
    class_ = metric_class(arguments[0])
    flags = _parser(class_.name).read(arguments[1:])
    for flag, folder in (("--data", flags.data), ("--images", flags.images)):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{flag} {folder}: there is no such folder")
    keywords = {"weights": flags.weights, "device": flags.device}
    chosen = {name: value for name, value in keywords.items() if value is not None}
    with in_words_of_the_user(class_.Options):
        options = class_.Options.of(class_.name, chosen)
        class_.check_options(options)
    try:
        metric = class_(options)
    except WeightsError as error:
        reason = FlagWords(class_.Options).of(error)
        complain(f"{class_.title} cannot be verified, its weights are not at hand or not whole:\n{reason}")
        return NOT_THERE
    print(f"{class_.title}, {metric.signature()}\n", flush=True)
    # No weights, or those of the catalogue under their own name: what papers print is of these.
    entry = metric.weights_folder().entry if class_.default_weights is not None else None
    of_papers = class_.default_weights is None or (entry is not None and entry == class_.default_weights)
    checks: list[Check] = []
    with interruptible("nothing is kept"):
        for check in verify(metric, flags.data, flags.images, published_weights=of_papers):
            checks.append(check)
            print(table([[check.verdict.ljust(11), check.what, check.found]], width=WHOLE_LINES), flush=True)
    failed = [check for check in checks if check.verdict == "FAIL"]
    left = sum(check.verdict == "not checked" for check in checks)
    passed = len(checks) - len(failed) - left
    print(f"\n{passed} ok, {len(failed)} failed, {left} not checked", flush=True)
    if not passed and not failed:
        complain("nothing was checked: name what the lines above ask for")
        return NOTHING_CHECKED
    return 1 if failed else 0


def _parser(name: str) -> Parser:
    parser = Parser(
        prog=f"capeval verify {name}",
        usage=f"capeval verify {name} [--weights WEIGHTS] [--data FOLDER] [--images FOLDER]",
        description=paragraph(
            "Check weights: the checksum of the file, the outputs that are stored with it (canary), and with "
            "published weights the numbers that papers print."
        ),
    )
    parser.add_argument(
        "--weights", metavar="WEIGHTS", help="folder, Hub id or tiny; default: the published ones"
    )
    parser.add_argument("--device", metavar="NAME", help="torch device; default: CUDA where there is a GPU")
    parser.add_argument(
        "--data", metavar="FOLDER", type=Path, help="folder of pacscore/ or clipscore/ and flickr8k_expert/"
    )
    parser.add_argument("--images", metavar="FOLDER", type=Path, help="the photographs of Flickr8k")
    return parser


def _introduce(arguments: list[str]) -> int:
    metrics = metric_classes()
    parser = Parser(
        prog="capeval verify",
        usage="capeval verify METRIC [options]",
        description="Check weights: checksum, canary, and the published values.",
        epilog="metrics:\n"
        + table([[metric.name, metric.title] for metric in metrics.values()], indent="  "),
    )
    parser.introduce(arguments, f"the metric comes first: capeval verify {{{','.join(metrics)}}} ...")
