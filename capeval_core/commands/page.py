"""`capeval page`: a metric's page on this machine."""

from __future__ import annotations

import socket

from capeval_core.commands.terminal import complain, interruptible, parser_of
from capeval_core.project import needs
from capeval_core.registry import list_metrics, load, metric_class


def run(arguments: list[str]) -> int:
    parser = parser_of("page", metrics=", ".join(list_metrics()))
    flags = parser.read(arguments)
    metric = metric_class(flags.metric, flags.media)
    # Tried on any free port: Gradio takes a wrong host for a port that is taken, and tries the next ones.
    try:
        socket.create_server((flags.host, 0)).close()
    except OSError:
        parser.error(f"--host {flags.host}: expected an address of this machine")
    with needs("gradio", "page"):
        import capeval_core.integrations.page as page

    demo = page.build(metric.name, flags.weights, media=flags.media)
    # Weights that are not here would be missed by the first visitor only; named ones are an error at once.
    try:
        if metric.tiny is not None:
            load(metric.name, media=flags.media, weights=flags.weights)
    except ValueError as error:
        if flags.weights is not None:
            raise
        complain(f"{error}\nThe page starts with `tiny`.")
        demo = page.build(metric.name, "tiny", media=flags.media)
    where = {"server_name": flags.host, "server_port": flags.port, "inbrowser": not flags.no_browser}
    try:
        # Not locked: Gradio's own waiting would swallow Ctrl-C before our message.
        page.launch(demo, **where, quiet=True, prevent_thread_lock=True)
    except OSError as error:
        # Gradio has no error of its own for a port that is taken.
        if flags.port is None or "empty port" not in str(error):
            raise
        raise ValueError(f"--port {flags.port} is taken: pass another") from error
    with interruptible("the page has ended"):
        try:
            print(f"{metric.title} is served at {demo.local_url} (Ctrl-C ends it)", flush=True)
            demo.block_thread()
        except KeyboardInterrupt:  # before Gradio waits for it
            demo.close(verbose=False)
    return 0
