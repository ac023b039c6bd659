"""`capeval`: the command line. Finds the command, and turns its errors into messages and exit statuses."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from capeval_core.commands.terminal import INTERRUPTED, Parser, announce, complain, table
from capeval_core.errors import did_you_mean, naming
from capeval_core.project import __version__

COMMANDS: dict[str, str] = {
    "demo": "score packaged images with a small packaged model, without a network",
    "score": "score a file of captions against a folder of images",
    "rerank": "choose the best of several captions of each image",
    "compare": "test whether one system is better than another",
    "judge": "agreement of metrics with people, beside the tables of the papers",
    "correlate": "agreement of scores with ratings of your own",
    "verify": "check weights: checksum, canary, and the published values",
    "regions": "find the regions of images once, for all metrics on regions",
    "shards": "score a collection of any size, shard by shard, on many workers",
    "page": "serve a page where captions are typed and scored",
    "list": "show the metrics and the known weights",
    "augment": "generate captions of images and images of captions, to train on",
    "train": "train a metric on captions and images",
    "convert": "make a weights folder of an original checkpoint",
    "publish": "put modules, weights and cards onto the Hugging Face Hub",
}
"""Every command and what it does. Command `x` is `capeval_core.commands.x.run(arguments) -> exit status`."""
NO_SCORE, BAD_INPUT, PIPE_CLOSED = 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; `arguments` are the process's own unless given.

    Returns:
        The exit status: 0 done, 1 no score came out (every image failed, or memory ran out),
        2 wrong input, 130 interrupted, 141 the reader of the output went away.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what the terminal cannot show is escaped, not an error
            stream.reconfigure(errors="backslashreplace")
    try:
        with naming(flags=True), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: complain(f"warning: {message}")
            status = _run(list(sys.argv[1:] if arguments is None else arguments))
        print(end="", flush=True)  # what cannot be written shows now
        return status
    except KeyboardInterrupt as interrupt:
        complain(str(interrupt) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more when it ends: let that go nowhere instead of failing loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except MemoryError as error:
        complain(str(error) or "out of memory")
        return NO_SCORE
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return BAD_INPUT
    except (ValueError, TypeError) as error:
        complain(str(error))
        return BAD_INPUT


def _run(arguments: list[str]) -> int:
    commands = "commands:\n" + table(list(COMMANDS.items()), indent="  ")
    hint = "\n\n`capeval COMMAND --help` says more; `capeval demo` is a good start."
    parser = Parser("", "COMMAND ...", "Metrics for image captions.", listed=commands + hint)
    parser.add_argument("--version", action="version", version=f"capeval {__version__}")
    try:
        if not arguments:
            parser.print_help()
            return BAD_INPUT
        name, *rest = arguments
        if name.startswith("-"):
            parser.read(arguments[:1])
            parser.error(f"the command comes first: one of {', '.join(COMMANDS)}")
        if name not in COMMANDS:
            parser.error(f"unknown command {name!r}{did_you_mean(name, COMMANDS)} ({', '.join(COMMANDS)})")
        if (rest or name == "demo") and name != "list" and not {"-h", "--help"} & set(rest):
            announce("loading ...")  # imports may take seconds
        status: int = import_module(f"capeval_core.commands.{name}").run(rest)
        return status
    except SystemExit as stop:  # argparse's own way out: help, version, wrong arguments
        return int(stop.code or 0)
