"""A Hub on the loopback interface: as much of its protocol as downloads need, over real files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_API = re.compile(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/?]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """commits: revision name -> folder whose files it has; the commit's hash follows from the name."""

    commits: dict[str, Path]
    gated: bool = False

    def find(self, revision: str) -> tuple[str, Path] | None:
        for name, folder in self.commits.items():
            if revision in (name, commit(name)):
                return commit(name), folder
        return None


def commit(name: str) -> str:
    """The hash of the commit that `name` points to."""
    return hashlib.sha1(name.encode()).hexdigest()


@dataclass
class Hub:
    """A running server; `requests` lists what it was asked."""

    address: str
    repositories: dict[str, Repository]
    requests: list[str] = field(default_factory=list)


@contextmanager
def serving(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """Serve repositories until the block ends."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            asked = _API.match(self.path) or _FILE.match(self.path)
            if not asked or asked[1] not in hub.repositories:
                return self.refuse(401, "RepoNotFound")
            repository = hub.repositories[asked[1]]
            found = repository.find(asked[3] if asked.re is _API else asked[2])
            if found is None:
                return self.refuse(404, "RevisionNotFound")
            sha, folder = found
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            if asked.re is _API:
                names = [path.relative_to(folder).as_posix() for path in files]
                sizes = [path.stat().st_size for path in files]
                tree = [
                    {"type": "file", "path": name, "size": size, "oid": sha}
                    for name, size in zip(names, sizes, strict=True)
                ]
                told = {"id": asked[1], "sha": sha, "siblings": [{"rfilename": name} for name in names]}
                return self.send(json.dumps(told if asked[2] == "revision" else tree).encode(), sha)
            if repository.gated:
                return self.refuse(403, "GatedRepo")
            file = folder / asked[3]
            if file not in files:
                return self.refuse(404, "EntryNotFound")
            return self.send(file.read_bytes(), sha)

        def send(self, content: bytes, sha: str) -> None:
            self.send_response(200)
            self.send_header("X-Repo-Commit", sha)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    hub = Hub(f"http://127.0.0.1:{server.server_port}", repositories)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(code: str, address: str, home: Path, **environment: str) -> Any:
    """What `code` prints as its last line, in JSON, in a process whose Hub is at `address`.

    The endpoint is read when huggingface_hub is imported, hence the process.
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": address,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])
