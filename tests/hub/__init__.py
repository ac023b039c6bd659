"""A Hub on the loopback interface: what downloads and uploads need of its protocol, and faults to order."""

from tests.hub.client import ask, log_in
from tests.hub.repository import Repository, commit
from tests.hub.server import READER, WRITER, Fault, Hub, serving

__all__ = ["READER", "WRITER", "Fault", "Hub", "Repository", "ask", "commit", "log_in", "serving"]
