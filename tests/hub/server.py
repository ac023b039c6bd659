"""The loopback Hub's server: what it is asked, what it answers, and how it fails to order."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from tests.hub.repository import Repository, git_hash

WRITER, READER = "hf_writer", "hf_reader"
"""Tokens of a user who may write to the namespaces someone, capeval and other, and of one who may read."""
_ACCOUNTS = {
    token: {
        "type": "user",
        "name": "someone",
        "orgs": [{"type": "org", "name": name} for name in ("capeval", "other")],
        "auth": {"type": "access_token", "accessToken": {"role": role, "displayName": "test"}},
    }
    for token, role in ((WRITER, "write"), (READER, "read"))
}
_ID = r"([^/]+/[^/?]+)"
_API = re.compile(
    rf"/api/(model|space|dataset)s/{_ID}(?:/(revision|tree|preupload|commit|branch|tag)/([^/?]+)(?:/([^?]+))?)?(?:\?|$)"
)
_FILE = re.compile(rf"/(spaces/|datasets/)?{_ID}/resolve/([^/]+)/(.+)")
_LFS = re.compile(rf"/{_ID}\.git/info/lfs/objects/batch")


def tree(files: Mapping[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """The files and folders below a folder, "" for all, or directly in it."""
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, content in files.items():
        if not path.startswith(prefix):
            continue
        parents = PurePosixPath(path).parents
        names = [name for name in (parent.as_posix() for parent in parents) if name.startswith(prefix)]
        for name in names:
            if name not in (".", folder):
                entries[name] = {"type": "directory", "path": name, "size": 0, "oid": git_hash(name.encode())}
        entries[path] = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
    if not recursive:
        return [entry for name, entry in entries.items() if "/" not in name.removeprefix(prefix)]
    return list(entries.values())


@dataclass
class Fault:
    """What goes wrong with requests such as "GET .*safetensors".

    status: answered instead. cut: the connection breaks at this byte of the file. times: how often.
    after: how many such requests go well before. then: what happens on the Hub as it is asked.
    """

    on: str
    status: int | None = None
    cut: int | None = None
    times: float = math.inf
    after: int = 0
    then: Callable[[], object] | None = None


@dataclass
class Hub:
    """A running server. `requests` lists what it was asked.

    Spaces are called `spaces/org/name`, data sets `datasets/org/name`.
    """

    address: str
    repositories: dict[str, Repository]
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)

    def fault(self, request: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.on, request):
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                if fault.then:
                    fault.then()
                return fault
        return None


@contextmanager
def serving(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """Serve repositories until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.hub = hub = Hub(f"http://127.0.0.1:{server.server_port}", repositories)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for an acknowledgement, 40 ms

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined, no-any-return]

    @property
    def account(self) -> dict[str, Any] | None:
        return _ACCOUNTS.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = f"{self.command} {unquote(self.path)}"
        self.hub.requests.append(request)
        self.failing = self.hub.fault(request)
        if self.failing and self.failing.status:
            return self.refuse(self.failing.status)
        if asked := _FILE.fullmatch(self.path):
            return self.file(asked)
        if asked := _API.match(self.path):
            return self.api(asked, body)
        if asked := _LFS.match(self.path):
            return self.large_files(json.loads(body))
        if self.path.startswith("/stored/"):
            self.hub.stored[self.path.rsplit("/", 1)[-1]] = body
            return self.say({})
        if self.path == "/api/whoami-v2":
            return self.say(self.account) if self.account else self.refuse(401)
        if self.path == "/api/repos/create":
            return self.create(json.loads(body))
        if self.path == "/api/validate-yaml":
            return self.validate(json.loads(body)["content"])
        return self.refuse(404)

    def file(self, asked: re.Match[str]) -> None:
        kind, name, revision, path = asked.groups()
        repository = self.repository((kind or "") + name)
        if repository is None:
            return self.refuse(401, "RepoNotFound")
        found = repository.find(unquote(revision))
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        if repository.gated:
            return self.refuse(403, "GatedRepo")
        if path not in found[1]:
            return self.refuse(404, "EntryNotFound")
        return self.content(found[1][path], found[0])

    def content(self, content: bytes, sha: str) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("X-Repo-Commit", sha)
        self.send_header("ETag", f'"{git_hash(content)}"')
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            cut = self.failing.cut if self.failing else None
            self.wfile.write(content[start:cut])
            self.close_connection = cut is not None

    def api(self, asked: re.Match[str], body: bytes) -> None:
        kind, name, what, revision, folder = asked.groups()
        key = f"{kind}s/{name}" if kind in ("space", "dataset") else name
        repository = self.repository(key)
        if repository is None:
            return self.refuse(401 if self.account is None else 404, "RepoNotFound")
        revision = unquote(revision or "main")
        if self.command == "POST":
            return self.change(key, repository, what, revision, body)
        found = repository.find(revision)
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        sha, files = found
        if what == "tree":
            return self.say(tree(files, unquote(folder or ""), "recursive=true" in self.path.lower()))
        siblings = [{"rfilename": path} for path in files]
        return self.say({"id": name, "sha": sha, "private": repository.private, "siblings": siblings})

    def change(self, key: str, repository: Repository, what: str, revision: str, body: bytes) -> None:
        if not self.may_write(key):
            return self.refuse(403 if self.account else 401)
        if what == "branch":
            if revision in repository.names:
                return self.refuse(409)
            repository.names[revision] = repository.names["main"]
            return self.say({})
        found = repository.find(revision)
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        if what == "preupload":
            files = json.loads(body)["files"]
            return self.say({"files": [self.mode(repository, found[1], file["path"]) for file in files]})
        header, *lines = (json.loads(line) for line in body.splitlines())
        changes = {}
        for line in lines:
            path = line["value"]["path"]
            if line["key"] == "lfsFile":
                changes[path] = self.hub.stored[line["value"]["oid"]]
                repository.large.add(path)
            else:
                changes[path] = base64.b64decode(line["value"]["content"])
        message = "\n\n".join(filter(None, [header["value"]["summary"], header["value"]["description"]]))
        sha = repository.add(revision, changes, message)
        url = f"{self.hub.address}/{key}/commit/{sha}"
        return self.say({"success": True, "commitOid": sha, "commitUrl": url})

    @staticmethod
    def mode(repository: Repository, files: dict[str, bytes], path: str) -> dict[str, Any]:
        """How a file is to be sent, and what there is: git's hash, or LFS's of what is stored there."""
        content = files.get(path)
        hashed = hashlib.sha256(content).hexdigest() if content and path in repository.large else None
        return {
            "path": path,
            "uploadMode": "lfs" if path.endswith(".safetensors") else "regular",
            "shouldIgnore": False,
            "oid": hashed or (git_hash(content) if content is not None else None),
        }

    def large_files(self, asked: dict[str, Any]) -> None:
        """Where to put what is not stored yet."""
        files = asked["objects"]
        for file in files:
            if file["oid"] not in self.hub.stored:
                file["actions"] = {"upload": {"href": f"{self.hub.address}/stored/{file['oid']}"}}
        return self.say({"transfer": "basic", "objects": files})

    def create(self, asked: dict[str, Any]) -> None:
        key = f"{asked.get('organization') or 'someone'}/{asked['name']}"
        if asked.get("type") in ("space", "dataset"):
            key = f"{asked['type']}s/{key}"
        if not self.may_write(key):
            return self.refuse(403 if self.account else 401)
        url = f"{self.hub.address}/{key}"
        if key in self.hub.repositories:
            return self.say({"url": url}, status=409)
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        made = Repository(private=private, sdk=asked.get("sdk"))
        made.add("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self.hub.repositories[key] = made
        return self.say({"url": url})

    def validate(self, card: str) -> None:
        if card.startswith("---\n") and "\n---\n" in card:
            return self.say({"errors": [], "warnings": []})
        return self.say({"errors": [{"message": "metadata block is missing"}], "warnings": []}, status=400)

    def repository(self, key: str) -> Repository | None:
        found = self.hub.repositories.get(key)
        return found if found and (self.account or not found.private) else None

    def may_write(self, key: str) -> bool:
        account = self.account
        if account is None or account["auth"]["accessToken"]["role"] != "write":
            return False
        return key.split("/")[-2] in {account["name"], *(org["name"] for org in account["orgs"])}

    def say(self, content: Any, *, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text if self.command != "HEAD" else b"")

    def refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
