"""What a page's endpoints hand out: of files nothing but what was uploaded, whatever a request says."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from PIL import Image

from capeval_core.demo import FOLDER, demo_set
from capeval_core.registry import METRICS

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

import httpx

from capeval_core.integrations import page as pages

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")

META = {"_type": "gradio.FileData"}
SECRET = "PASSWORD=abcdef"
REFUSAL = "is not among the uploads of this page"
_SESSIONS = count()


@dataclass(frozen=True)
class Served:
    """A page on the loopback interface, and what lies on its machine."""

    client: httpx.Client
    config: dict[str, Any]
    uploads: Path
    outside: Path

    def endpoints(self) -> Iterator[dict[str, Any]]:
        """Every event that runs on the server, as the page's own configuration lists them."""
        return (event for event in self.config["dependencies"] if event["backend_fn"])

    def kinds(self, event: dict[str, Any]) -> list[str]:
        kinds = {component["id"]: component["type"] for component in self.config["components"]}
        return [kinds[given] for given in event["inputs"]]

    def values(self, event: dict[str, Any]) -> list[Any]:
        """What a visitor without an image would send."""
        usual = {"image": None, "textbox": "a red circle and a blue star", "radio": "tiny", "state": None}
        values = [usual[kind] for kind in self.kinds(event)]
        if values == [None, "tiny"] or values == ["tiny"]:  # an example and the kind of its caption
            values[-1] = "good"
        return values

    def upload(self, name: str, data: bytes) -> str:
        """Where the server keeps an uploaded file."""
        (path,) = self.client.post("gradio_api/upload", files={"files": (name, data)}).json()
        return str(path)

    def ask(self, event: dict[str, Any], data: list[Any]) -> str:
        """The answer of `/run`, which takes private events by their number."""
        body = {"data": data, "fn_index": event["id"], "session_hash": f"run{next(_SESSIONS)}"}
        return self.client.post("gradio_api/run/any", json=body).text

    def ask_queue(self, event: dict[str, Any], data: list[Any]) -> str:
        """The answer of the queue, which pages use."""
        session = f"queue{next(_SESSIONS)}"
        body = {"data": data, "fn_index": event["id"], "session_hash": session}
        joined = self.client.post("gradio_api/queue/join", json=body)
        if joined.status_code != 200:
            return joined.text
        told = []
        with self.client.stream("GET", "gradio_api/queue/data", params={"session_hash": session}) as answer:
            for line in answer.iter_lines():
                told.append(line)
                if '"process_completed"' in line or '"close_stream"' in line:
                    break
        return "\n".join(told)

    def ask_call(self, name: str, data: list[Any]) -> str:
        """The answer of `/call`, which programs use."""
        url = f"gradio_api/call/{name}"
        joined = self.client.post(url, json={"data": data})
        if joined.status_code != 200:
            return joined.text
        return self.client.get(f"{url}/{joined.json()['event_id']}").text


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Gradio's upload folder, with links out of it, and a folder beside it."""
    place = tmp_path_factory.mktemp("server")
    uploads, outside = place / "uploads", place / "outside"
    uploads.mkdir()
    outside.mkdir()
    Image.open(demo_set()[1].image).save(outside / "secret.png")
    (outside / "secret.txt").write_text(SECRET)
    (uploads / "link.png").symlink_to(outside / "secret.png")
    (uploads / "link.txt").symlink_to(outside / "secret.txt")
    (uploads / "linked").symlink_to(outside)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(uploads))
        yield uploads, outside


@pytest.fixture(scope="module", params=list(METRICS))
def served(request: pytest.FixtureRequest, folders: tuple[Path, Path]) -> Iterator[Served]:
    """The page of each metric."""
    demo = pages.build(request.param, "tiny")
    pages.launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        with httpx.Client(base_url=demo.local_url, timeout=60) as client:  # one for all: making one is slow
            yield Served(client, client.get("config").json(), *folders)
    finally:
        demo.close(verbose=False)


@pytest.fixture(scope="module")
def elsewhere(folders: tuple[Path, Path]) -> Iterator[tuple[str, list[str]]]:
    """The address of an image on another server of this machine, and what was asked of that."""
    asked: list[str] = []
    data = (folders[1] / "secret.png").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret.png", asked
    server.shutdown()
    server.server_close()


def paths(served: Served) -> list[str]:
    """Ways to name a file that was not uploaded."""
    secret, text = served.outside / "secret.png", served.outside / "secret.txt"
    return [
        str(secret),
        str(text),
        str(served.outside),
        "/proc/self/environ",
        os.path.relpath(secret),
        f"{served.uploads}/../outside/secret.png",
        f"file://{secret}",
        str(served.uploads / "link.png"),
        str(served.uploads / "link.txt"),
        str(served.uploads / "linked" / "secret.png"),
        f"{secret}\0.png",
        "x" * 5000,
    ]


def disguises(path: str) -> list[Any]:
    """Ways to hand in a path."""
    return [
        path,
        {"path": path},
        {"path": path, "meta": META},
        {"path": path, "meta": META, "is_stream": True},
        {"path": path, "is_stream": True, "orig_name": "a.png", "mime_type": "image/png"},
        {"path": path, "url": f"/gradio_api/file={path}", "meta": {"_type": "other"}},
        {"path": None, "url": path, "meta": META},
        {"url": f"file://{path}"},
        {"path": {"path": path}},
        {"image": {"path": path, "meta": META}},
        [{"path": path}],
        [{"path": path, "meta": META}],
    ]


def attempts(served: Served, kind: str) -> Iterator[Any]:
    """Values for an input of that kind: all paths in the usual forms and one in all forms, else a few."""
    first, *others = paths(served) if kind == "image" else paths(served)[:1]
    yield from disguises(first) if kind == "image" else disguises(first)[:4]
    for path in others:
        yield from disguises(path)[1:4]


def assert_nothing_is_handed_out(answer: str) -> None:
    assert 'class=\\"score\\"' not in answer and '"mean"' not in answer and "data:image" not in answer
    for part in (SECRET[:8], "PNG\\\\r", "b'\\\\x89", "b'PASS", "Traceback", "HOME="):
        assert part not in answer, answer[:500]


def test_no_event_reads_what_was_not_uploaded(served: Served) -> None:
    tried = 0
    for event in served.endpoints():
        usual = served.values(event)
        for place, kind in enumerate(served.kinds(event)):
            for value in attempts(served, kind):
                answer = served.ask(event, [*usual[:place], value, *usual[place + 1 :]])
                assert_nothing_is_handed_out(answer)
                tried += 1
    assert tried > 100


def test_the_queue_and_calls_read_nothing_either(served: Served) -> None:
    for event in served.endpoints():
        usual = served.values(event)
        for place, kind in enumerate(served.kinds(event)):
            if kind != "image":
                continue
            for path in (paths(served)[0], paths(served)[1], paths(served)[7]):
                for value in ({"path": path}, {"path": path, "meta": META, "is_stream": True}):
                    data = [*usual[:place], value, *usual[place + 1 :]]
                    answers = [served.ask_queue(event, data)]
                    if event["api_visibility"] == "public":
                        answers.append(served.ask_call(event["api_name"], data))
                    for answer in answers:
                        assert_nothing_is_handed_out(answer)
                        # Values with a `meta` are checked by Gradio itself, whose error has no words.
                        failed = '"success":false' in answer or "event: error" in answer
                        assert failed if "meta" in value else REFUSAL in answer, answer


def test_a_refusal_does_not_say_whether_a_file_is_there(served: Served) -> None:
    (event,) = (event for event in served.endpoints() if event["api_visibility"] == "public")
    usual = served.values(event)
    answers = {
        served.ask(event, [{"path": path}, *usual[1:]])
        for path in (str(served.outside / "secret.png"), str(served.outside / "none.png"), "/proc/self/mem")
    }
    assert len(answers) == 1 and REFUSAL in answers.pop()


def test_what_was_uploaded_is_scored_by_each_way(served: Served) -> None:
    """The same requests with an upload: what the other tests refuse would work."""
    path = served.upload("a.png", demo_set()[1].image.read_bytes())
    for event in served.endpoints():
        usual, kinds = served.values(event), served.kinds(event)
        if "image" not in kinds:
            continue
        public = event["api_visibility"] == "public"
        data = [{"path": str(demo_set()[1].image)} if public else {"path": path}, *usual[1:]]
        answer = served.ask_queue(event, data)
        assert '"mean"' in answer or 'class=\\"score\\"' in answer, answer[-500:]
        data[0] = {"path": path, "meta": META}
        if public:
            assert '"mean"' in served.ask(event, data) and '"mean"' in served.ask_call(
                event["api_name"], data
            )


def test_an_upload_that_is_no_image_is_not_quoted(served: Served) -> None:
    (event,) = (event for event in served.endpoints() if event["api_visibility"] == "public")
    broken = demo_set()[0].image.read_bytes()[:90] + b"PASSWORD" * 20
    for data in (SECRET.encode(), broken):
        path = served.upload("own.png", data)
        answer = served.ask(event, [{"path": path}, *served.values(event)[1:]])
        assert "own.png" in answer
        assert_nothing_is_handed_out(answer)


def test_files_are_served_from_the_upload_folder_only(
    served: Served, elsewhere: tuple[str, list[str]]
) -> None:
    address, asked = elsewhere
    for route in ("file=", "file/"):
        for path in [*paths(served)[:-2], address]:
            answer = served.client.get(f"gradio_api/{route}{path}")
            assert answer.status_code in (403, 404), path
            assert SECRET not in answer.text and b"PNG" not in answer.content
    assert not asked


def test_a_page_tells_no_path_of_the_installation(served: Served) -> None:
    told = [served.client.get("config").text, served.client.get("").text]
    for event in served.endpoints():
        if "image" not in served.kinds(event):  # an example among them
            told.append(served.ask(event, served.values(event)))
    assert any("0.png" in answer for answer in told[2:]), "no example was chosen"
    for answer in told:
        assert str(FOLDER) not in answer and str(Path(pages.__file__).parents[2]) not in answer


def test_icons_are_the_examples_and_need_no_request(served: Served) -> None:
    icons = [c["props"]["icon"]["url"] for c in served.config["components"] if c["props"].get("icon")]
    data = [base64.b64decode(icon.removeprefix("data:image/png;base64,")) for icon in icons]
    assert data == [item.image.read_bytes() for item in demo_set()]


def test_files_beyond_the_limit_are_not_taken(served: Served) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.client, "timeout", 120)
        answer = served.client.post("gradio_api/upload", files={"files": ("a.png", bytes(21_000_000))})
    assert answer.status_code == 413


def test_no_event_asks_another_server(served: Served, elsewhere: tuple[str, list[str]]) -> None:
    address, asked = elsewhere
    for event in served.endpoints():
        usual = served.values(event)
        for place in range(len(usual)):
            for value in disguises(address)[:8]:
                answer = served.ask(event, [*usual[:place], value, *usual[place + 1 :]])
                assert_nothing_is_handed_out(answer)
    assert not asked


@pytest.mark.parametrize("odd", [3, True, ["a"], {"a": 1}, None])
def test_values_of_other_types_are_told(served: Served, odd: Any) -> None:
    path = served.upload("a.png", demo_set()[1].image.read_bytes())
    (event,) = (event for event in served.endpoints() if event["api_visibility"] == "public")
    for place, name in ((1, "caption"), (3, "weights")):
        data = [{"path": path}, *served.values(event)[1:]]
        data[place] = odd
        error = json.loads(served.ask(event, data))["error"]
        assert error is not None and name in error.lower(), error
