"""A Hub on the loopback interface: what downloads and uploads need of its protocol, and faults to order."""

from tests.hub.client import ask, ask_here, log_in
from tests.hub.repository import Repository, commit
from tests.hub.server import READER, WRITER, Fault, Hub, serving

__all__ = ["READER", "WRITER", "Fault", "Hub", "Repository", "ask", "ask_here", "commit", "log_in", "serving"]
