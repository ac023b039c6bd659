"""`capeval publish`: modules, weights and cards to the Hub."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from capeval_core import publishing
from capeval_core.commands.terminal import WHOLE_LINES, Parser, paragraph, table
from capeval_core.publishing import PYPI, Publication, Pushed
from capeval_core.registry import METRICS
from capeval_core.weights.catalogue import NAMESPACE

WHAT = {
    "modules": "metrics, as Spaces that evaluate.load reads",
    "weights": "a folder of weights, as a model with its card",
    "cards": "cards of weights that are published already",
}
_EPILOG = (
    "Log in first with `hf auth login`, or set HF_TOKEN. One commit for each repository that changes, none "
    "where nothing does; files that are only on the Hub stay, and nothing is ever tagged."
)


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in WHAT:
        return _introduce(arguments)
    what, *rest = arguments
    given = _PARSERS[what]().read(rest)
    publications = _COLLECT[what](given)
    if given.dry_run:
        print("\n".join(_planned(publication) for publication in publications))
        return 0
    sent = publishing.publish(publications, branch=given.branch, private=given.private, message=given.message)
    for pushed in sent:
        print("\n".join([_told(pushed), *_left(pushed.publication)]), flush=True)
    return 0


def _introduce(arguments: list[str]) -> int:
    parser = Parser(
        prog="capeval publish",
        usage="capeval publish {" + ",".join(WHAT) + "} [options]",
        description=paragraph("Put what this package has onto the Hugging Face Hub, in any namespace."),
        epilog=table(list(WHAT.items()), indent="  ")
        + "\n\n"
        + paragraph("`capeval publish modules --help` shows all options. " + _EPILOG),
    )
    parser.parse_args(arguments[:1] if arguments[:1] in (["-h"], ["--help"]) else [])
    parser.error(f"what comes first: capeval publish {{{','.join(WHAT)}}}")


def _modules_parser() -> Parser:
    parser = _parser("modules", "[NAME ...] --install-from WHERE")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"of {', '.join(METRICS)}; all if none is given"
    )
    parser.add_argument(
        "--install-from",
        metavar="WHERE",
        required=True,
        help="where a Space installs capeval from: an address for pip, e.g. "
        f"git+https://host/org/capeval@COMMIT, or {PYPI}: this version, which has to be there",
    )
    return parser


def _weights_parser() -> Parser:
    parser = _parser("weights", "FOLDER")
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="of `capeval convert`, or in open_clip's format"
    )
    parser.add_argument("--name", metavar="NAME", help="of the repository; the folder's if it is not given")
    parser.add_argument(
        "--permission",
        metavar="TEXT",
        help="who allows to publish weights whose authors state no licence or restrict their use, and where; "
        "told in the commit and on the card",
    )
    return parser


def _cards_parser() -> Parser:
    parser = _parser("cards", "NAME ...")
    parser.add_argument("names", metavar="NAME", nargs="+", help=f"of {', '.join(publishing.cards())}")
    return parser


def _parser(what: str, usage: str) -> Parser:
    parser = Parser(
        prog=f"capeval publish {what}",
        usage=f"capeval publish {what} {usage} [options]",
        description=paragraph(f"Publish {WHAT[what]}."),
        epilog=paragraph(_EPILOG),
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=NAMESPACE,
        help=f"user or organisation on the Hub; {NAMESPACE} (CAPEVAL_NAMESPACE) if it is not given",
    )
    parser.add_argument(
        "--branch", metavar="NAME", default="main", help="of the repositories, main by default"
    )
    parser.add_argument("--private", action="store_true", help="make private repositories")
    parser.add_argument("--message", metavar="TEXT", help="of the commits")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list each file with its size, and what is not sent; send nothing",
    )
    return parser


def _modules(given: argparse.Namespace) -> list[Publication]:
    return [publishing.module(name, given.namespace, given.install_from) for name in given.names or METRICS]


def _weights(given: argparse.Namespace) -> list[Publication]:
    return [
        publishing.weights(
            given.folder,
            given.namespace,
            name=given.name,
            permission=given.permission,
            private=given.private,
        )
    ]


def _cards(given: argparse.Namespace) -> list[Publication]:
    return [publishing.card(name, given.namespace) for name in given.names]


_PARSERS: dict[str, Callable[[], Parser]] = {
    "modules": _modules_parser,
    "weights": _weights_parser,
    "cards": _cards_parser,
}
_COLLECT: dict[str, Callable[[argparse.Namespace], list[Publication]]] = {
    "modules": _modules,
    "weights": _weights,
    "cards": _cards,
}


def _planned(publication: Publication) -> str:
    rows = [[path, f"{size:,} bytes"] for path, size in sorted(publication.sizes().items())]
    return "\n".join([publication.address, table(rows, indent="  ", width=WHOLE_LINES), *_left(publication)])


def _left(publication: Publication) -> list[str]:
    """One line on what else lies in the folder, where there is something."""
    names = ", ".join(name if name.isprintable() else ascii(name) for name in publication.not_sent)
    return [f"  not sent: {names}"] if names else []


def _told(pushed: Pushed) -> str:
    what = "commit" if pushed.changed else "unchanged, at"
    return f"{pushed.publication.address}: {what} {pushed.commit}"
