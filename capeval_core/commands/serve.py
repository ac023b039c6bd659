"""`capeval serve`: scores over HTTP, for trainers that run elsewhere."""

from __future__ import annotations

import os
import socket

from capeval_core.commands.common import chosen
from capeval_core.commands.terminal import add_options, complain, interruptible, parser_of
from capeval_core.metric import CommonOptions
from capeval_core.project import needs
from capeval_core.registry import list_metrics

_SERVED_OPTIONS = ("weights", "device", "dtype", "batch_size", "exif")
_REQUESTS = 256  # that are in work at once; more are answered with 503
_BACKLOG = 2048  # connections that wait to be accepted, as of uvicorn
_LOCAL = ("127.0.0.1", "::1", "localhost")


def run(arguments: list[str]) -> int:
    parser = parser_of("serve", metrics=", ".join(list_metrics()))
    not_served = [name for name in CommonOptions.describe() if name not in _SERVED_OPTIONS]
    add_options(parser, "options of the metrics", {"": CommonOptions}, not_served)
    flags = parser.read(arguments)
    if flags.wait < 0:
        parser.error("--wait: expected 0 or more milliseconds")
    # By its name in the environment: the arguments of a process can be read by every user of a machine.
    token = None
    if flags.token is not None:
        token = os.environ.get(flags.token)
        if not token or not token.isascii():
            raise ValueError(
                f"--token {flags.token}: the environment has no variable of this name with a token in ASCII"
            )
    elif flags.host not in _LOCAL:
        complain(
            f"warning: --host {flags.host} without --token lets everyone who reaches it use this machine"
        )
    # The port is taken before weights are opened, which takes a while.
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    # A server that was killed can be started again at once, though old connections linger in TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((flags.host, flags.port))
    except OSError as error:
        raise ValueError(
            f"--host {flags.host} --port {flags.port}: cannot be served at ({error.strerror}): choose others"
        ) from error
    with needs("uvicorn", "serve"):
        import uvicorn
    with needs("starlette", "serve"):
        from capeval_core.integrations import serving
        from capeval_core.integrations.serving.connections import HeaderDeadline

    options = chosen(flags, CommonOptions)
    batches = {"batch_captions": flags.batch_captions, "seconds": flags.wait / 1000}
    media = {} if flags.media is None else {"media": flags.media}
    server = serving.build(flags.metrics, token=token, **options, **media, **batches)
    for name, metric in server.metrics.items():
        print(f"{name}: {metric.signature()}", flush=True)
    config = uvicorn.Config(
        server.app,
        http=HeaderDeadline,
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=_REQUESTS,
        timeout_keep_alive=30,
    )
    listening.listen(_BACKLOG)  # so that who reads the next line is not refused
    host = f"[{flags.host}]" if ":" in flags.host else flags.host
    print(f"served at http://{host}:{flags.port} (Ctrl-C ends it)", flush=True)
    with interruptible("the server has ended"):
        uvicorn.Server(config).run(sockets=[listening])
    return 0
