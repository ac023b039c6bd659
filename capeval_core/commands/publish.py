"""`capeval publish`: modules, weights and cards to the Hub."""

from __future__ import annotations

from capeval_core import publishing
from capeval_core.commands.terminal import first_named, kinds_of, parser_of, table
from capeval_core.publishing import PYPI, Publication
from capeval_core.registry import METRICS
from capeval_core.weights.catalogue import NAMESPACE

_HOSTING = (
    "a free account hosts Spaces on CPUs; the GPUs of ZeroGPU, which these pages use where there are some,\n"
    "are for PRO accounts (10 Spaces) and Enterprise organisations (50)"
)


def run(arguments: list[str]) -> int:
    kind, arguments_left = first_named(
        arguments, "publish", kinds_of("publish", "modules", "weights", "cards")
    )
    words = {"namespace": NAMESPACE, "pypi": PYPI, "metrics": ", ".join(METRICS)}
    words["cards"] = ", ".join(publishing.cards())
    parser = parser_of(f"publish {kind}", "publish", "publish KIND", f"publish {kind}", **words)
    flags = parser.read(arguments_left)
    space = flags.namespace
    publications: list[Publication] = []
    if kind == "modules":
        for name in flags.names or METRICS:
            publications.append(publishing.metric_space(name, space, flags.install_from))
    elif kind == "cards":
        for name in flags.names:
            publications.append(publishing.card(name, space))
    else:
        weights = publishing.weights(
            flags.folder, space, flags.name, flags.permission, flags.private, flags.install_from
        )
        publications.append(weights)
    if flags.dry_run:
        # The plan first, then everything that would be refused, so that one trial finds all of it.
        print("\n".join(map(_planned, publications)))
        refusals: list[str] = []
        for publication in publications:
            refusals += publication.refusals
        if refusals:
            raise ValueError("\n".join(refusals))
        if kind == "modules":
            print(_HOSTING)
        print("nothing was sent: this is what goes out without --dry-run")
        return 0
    sent = publishing.publish(publications, branch=flags.branch, private=flags.private, message=flags.message)
    for publication, commit, changed in sent:
        lines = [f"{publication.address}: {'commit' if changed else 'unchanged, at'} {commit}"]
        print("\n".join([*lines, *_not_sent(publication)]), flush=True)
    return 0


def _planned(publication: Publication) -> str:
    """The address, the files with their sizes, and what stays here."""
    rows = []
    for path, content in sorted(publication.files.items()):
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        rows.append([path, f"{size:,} bytes"])
    files = table(rows, indent="  ", wrap=False)
    return "\n".join([publication.address, files, *_not_sent(publication)])


def _not_sent(publication: Publication) -> list[str]:
    """One line that names the other files in the folder, where there are any."""
    names = []
    for name in publication.not_sent:
        # A name may hold control characters, which a terminal would obey.
        names.append(name if name.isprintable() else ascii(name))
    return [f"  not sent: {', '.join(names)}"] if names else []
