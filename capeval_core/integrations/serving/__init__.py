"""A reward server: scores over HTTP for trainers that run elsewhere, in JSON both ways."""

from capeval_core.integrations.serving.app import Server, build
from capeval_core.integrations.serving.endpoint import Endpoint

__all__ = ["Endpoint", "Server", "build"]
