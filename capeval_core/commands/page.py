"""`capeval page`: a metric's page on this machine."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from capeval_core.commands.terminal import Parser, complain, flag, interruptible
from capeval_core.project import install_command
from capeval_core.registry import list_metrics, load, metric_class

_PORTS = range(1, 65_536)


def run(arguments: list[str]) -> int:
    about = "Serve a page on this machine: drop an image, type a caption, see its score."
    parser = Parser("page", None, about)
    flag(parser, "metric METRIC", f"one of {', '.join(list_metrics())}")
    flag(parser, "--media MEDIUM", "what captions are about at first: image or video")
    text = "chosen at first: Hub repository id, folder, or `tiny` (default: the metric's own)"
    flag(parser, "--weights WEIGHTS", text)
    flag(parser, "--port N", "default: the first free one from 7860 on")
    text = "that the page is served at; 0.0.0.0: to other machines, too (default: %(default)s)"
    flag(parser, "--host ADDRESS", text, default="127.0.0.1")
    flag(parser, "--no-browser", "open no browser")
    flags = parser.read(arguments)
    metric = metric_class(flags.metric, flags.media)
    if flags.port is not None and flags.port not in _PORTS:
        parser.error(f"--port {flags.port}: expected a number from 1 to {_PORTS[-1]}")
    try:
        socket.create_server((flags.host, 0)).close()
    except OSError:
        parser.error(f"--host {flags.host}: expected an address of this machine")
    if find_spec("gradio") is None:
        raise ValueError(f"the page needs gradio: {install_command('page')}")
    weights = flags.weights
    from capeval_core.integrations import page

    demo = page.build(metric.name, weights, media=flags.media)
    try:
        if metric.tiny is not None:
            load(metric.name, media=flags.media, weights=weights)
    except ValueError as error:
        if weights is not None:
            raise
        complain(f"{error}\nThe page starts with `tiny`.")
        demo = page.build(metric.name, "tiny", media=flags.media)
    try:
        page.launch(
            demo,
            server_name=flags.host,
            server_port=flags.port,
            inbrowser=not flags.no_browser,
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:
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
