"""What a page's endpoints hand out: of files nothing but what was uploaded, whatever a request says."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from PIL import Image

from capeval_core.demo import demo_set
from capeval_core.registry import metric_class
from tests.inputs.photographs import encoded, photograph
from tests.inputs.video_writing import video
from tests.support.seams import LIMITS
from tests.support.seeded import siglip_repository

pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")

import httpx

from capeval_core.integrations import page as pages

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio.queueing")]

META = {"_type": "gradio.FileData"}
SECRET = "PASSWORD=abcdef"
FILES = {"image": ("a.png", demo_set()[1].image.read_bytes()), "video": ("a.mp4", video("mp4"))}
"""An upload for each component that takes one."""
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

    def names(self, event: dict[str, Any]) -> list[str]:
        """What each input is called on the page."""
        names = {
            component["id"]: component["props"].get("elem_id") for component in self.config["components"]
        }
        return [names[given] for given in event["inputs"]]

    def values(self, event: dict[str, Any], about: str = "image") -> list[Any]:
        """What a visitor without an image or a video would send."""
        text = "a red circle and a blue star"
        weights = next(c for c in self.config["components"] if c["props"].get("elem_id") == "weights")
        usual = {"caption": text, "references": text, "kind": "good", "about": about}
        usual["weights"] = weights["props"]["value"]
        return [usual.get(name) for name in self.names(event)]

    def public(self) -> dict[str, Any]:
        """The event for programs."""
        (event,) = (event for event in self.endpoints() if event["api_visibility"] == "public")
        return event

    def visuals(self, event: dict[str, Any]) -> dict[str, int]:
        """The places of what takes files: `image`, `video`."""
        return {name: place for place, name in enumerate(self.names(event)) if name in FILES}

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


@pytest.fixture(scope="module", params=["refpacs", "hices", "vilbertscore", "eco", "ciderd"])
def served(request: pytest.FixtureRequest, folders: tuple[Path, Path]) -> Iterator[Served]:
    """A page of each form: with videos, of an image, with references, of a pool, of texts alone."""
    demo = pages.build(request.param, "tiny" if metric_class(request.param).default_weights else None)
    pages.launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        with httpx.Client(base_url=demo.local_url, timeout=600) as client:  # one for all: making one is slow
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
    takes_files = kind in ("image", "file")
    first, *others = paths(served) if takes_files else paths(served)[:1]
    yield from disguises(first) if takes_files else disguises(first)[:4]
    for path in others:
        yield from disguises(path)[1:4]


def assert_nothing_is_handed_out(answer: str) -> None:
    assert 'class=\\"score\\"' not in answer and '"mean"' not in answer and "data:image" not in answer
    for part in (SECRET[:8], "PNG\\\\r", "b'\\\\x89", "b'PASS", "Traceback", "HOME="):
        assert part not in answer, answer[:500]


def test_no_event_reads_what_was_not_uploaded(served: Served) -> None:
    tried = 0
    for event in served.endpoints():
        for place, (kind, name) in enumerate(zip(served.kinds(event), served.names(event), strict=True)):
            usual = served.values(event, name if name in FILES else "image")
            for value in attempts(served, kind):
                answer = served.ask(event, [*usual[:place], value, *usual[place + 1 :]])
                if name in FILES or '"path"' in json.dumps(value):
                    assert_nothing_is_handed_out(answer)
                tried += 1
    assert tried > 20


def test_what_was_uploaded_is_scored_by_each_way(served: Served) -> None:
    """The same requests with an upload: what the other tests refuse would work."""
    for event in served.endpoints():
        public = event["api_visibility"] == "public"
        for name, place in served.visuals(event).items():
            path = served.upload(*FILES[name])
            packaged = str(demo_set()[1].image) if public and name == "image" else path
            usual = served.values(event, name)
            given = {"path": packaged} | ({"meta": META} if name == "video" else {})
            answer = served.ask_queue(event, [*usual[:place], given, *usual[place + 1 :]])
            assert '"mean"' in answer or 'class=\\"score\\"' in answer, answer[-500:]
            data = [*usual[:place], {"path": path, "meta": META}, *usual[place + 1 :]]
            if public:
                assert '"mean"' in served.ask(event, data)
                assert '"mean"' in served.ask_call(event["api_name"], data)


def test_an_example_fills_the_boxes(served: Served) -> None:
    (about,) = (one for one in served.config["components"] if one["props"].get("elem_id") == "about")
    fills = [event for event in served.endpoints() if served.names(event) == ["about", "kind"]]
    for event in fills[:1]:
        assert demo_set()[0].good in served.ask(event, [about["props"]["value"], "good"])
    assert fills


def test_an_upload_that_names_other_files_opens_none(
    served: Served, elsewhere: tuple[str, list[str]]
) -> None:
    """Playlists and scripts that FFmpeg would follow, under the name of a video."""
    event, (address, asked) = served.public(), elsewhere
    if "video" not in served.visuals(event):
        return
    place, usual = served.visuals(event)["video"], served.values(event, "video")
    video_beside = served.outside / "secret.mp4"
    video_beside.write_bytes(FILES["video"][1])
    for target in (address, str(video_beside), f"file://{video_beside}"):
        for content in (
            f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n",
            f"ffconcat version 1.0\nfile '{target}'\n",
            f"<?xml version='1.0'?><MPD><Period><BaseURL>{target}</BaseURL></Period></MPD>",
            f"v=0\nc=IN IP4 127.0.0.1\na=control:{target}\nm=video 9 RTP/AVP 96\n",
        ):
            for name in ("a.mp4", "a.gif", "a.mkv"):
                path = served.upload(name, content.encode())
                answer = served.ask(
                    event, [*usual[:place], {"path": path, "meta": META}, *usual[place + 1 :]]
                )
                assert "is not a video that can be read" in answer, answer[:300]
                assert_nothing_is_handed_out(answer)
    assert not asked


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


def test_regions_that_no_phrase_mentions_are_folded_and_a_photograph_meets_no_drawings(
    served: Served,
) -> None:
    """Means of the drawn examples stand beside a drawn example alone."""
    score, *_ = (event for event in served.endpoints() if "caption" in served.names(event)[:2])
    if not served.visuals(score):
        return
    drawn = served.upload("a.png", demo_set()[1].image.read_bytes())
    Image.open(demo_set()[1].image).convert("RGB").rotate(3).save(own := served.outside / "own.png")
    answers = {}
    for name, path in (("drawn", drawn), ("own", served.upload("own.png", own.read_bytes()))):
        data = served.values(score)
        data[served.visuals(score)["image"]] = {"path": path, "meta": META}
        data[served.names(score).index("caption")] = "a big blue circle\na blue circle"
        answers[name] = served.ask_queue(score, data)
        assert 'class=\\"score\\"' in answers[name], answers[name][-500:]
    assert "drawn examples" not in answers["own"]
    if "HICE-S" in served.config["title"]:
        assert "drawn examples" in answers["drawn"]
        folded = answers["drawn"].partition("<details><summary>")[2].partition("</details>")[0]
        assert "that no phrase mentions" in folded and 'aria-label=\\"region' in folded


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_that_is_to_be_turned_has_a_note(served: Served, orientation: int) -> None:
    score, *_ = (event for event in served.endpoints() if "caption" in served.names(event)[:2])
    if "image" not in served.visuals(score):
        return
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = served.values(score)
    path = served.upload("a.jpg", encoded(photograph(seed=orientation), exif=exif))
    data[served.visuals(score)["image"]] = {"path": path, "meta": META}
    assert ("to be turned (EXIF)" in served.ask_queue(score, data)) is (orientation > 1)


def test_no_function_of_a_component_answers_and_the_log_stays_short(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradio raises for each such request, and prints its traceback."""
    with caplog.at_level("ERROR"):
        for component in (1, 10**9):
            body = {"session_hash": "s", "component_id": component, "fn_name": "ls", "data": ["/"]}
            for route in ("component_server", "component_server/"):
                assert served.client.post(f"gradio_api/{route}", json=body).status_code == 404
    assert not caplog.records


def test_files_beyond_the_limit_are_not_taken(served: Served) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.client, "timeout", 600)
        answer = served.client.post("gradio_api/upload", files={"files": ("a.png", bytes(21_000_000))})
    assert answer.status_code == 413


def test_no_event_asks_another_server(served: Served, elsewhere: tuple[str, list[str]]) -> None:
    address, asked = elsewhere
    for event in served.endpoints():
        for place, name in enumerate(served.names(event)):
            usual = served.values(event, name if name in FILES else "image")
            for value in disguises(address)[:8]:
                answer = served.ask(event, [*usual[:place], value, *usual[place + 1 :]])
                if isinstance(value, dict):
                    assert_nothing_is_handed_out(answer)
    assert not asked


def chosen(client: httpx.Client) -> str:
    """Where the server keeps the image of the first example, once its button is pressed."""
    events = client.get("config").json()["dependencies"]
    number = next(event["id"] for event in events if event["backend_fn"] and len(event["inputs"]) == 2)
    body = {"data": ["image", "good"], "fn_index": number, "session_hash": "example"}
    return str(client.post("gradio_api/run/any", json=body).json()["data"][0]["path"])


def test_uploads_are_deleted_after_their_time_and_examples_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    assert LIMITS.page_seconds_kept == 3600
    monkeypatch.setattr(LIMITS, "page_seconds_kept", 1)
    monkeypatch.setattr(LIMITS, "page_seconds_between", 1)
    page = pages.build("pacs", "tiny")
    pages.launch(page, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        with httpx.Client(base_url=page.local_url) as client:
            (path,) = client.post("gradio_api/upload", files={"files": ("a.png", b"some bytes")}).json()
            while Path(path).exists():
                time.sleep(0.1)
            for _ in range(2):
                copy = chosen(client)
                while (answer := client.get(f"gradio_api/file={copy}")).status_code == 404:
                    copy = chosen(client)  # a busy machine asked after its second
                assert answer.content == demo_set()[0].image.read_bytes()
                while Path(copy).exists():
                    time.sleep(0.1)
    finally:
        page.close(verbose=False)
    assert all(item.image.is_file() for item in demo_set())


@pytest.mark.parametrize(("weights", "crops"), [("tiny", True), ("siglip", False)])
def test_only_a_network_that_crops_is_said_to_see_the_centre(
    weights: str, crops: bool, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = weights if weights == "tiny" else str(siglip_repository(tmp_path / weights))
    Image.new("RGB", (400, 100), "red").save(tmp_path / "wide.png")
    demo = pages.build("clips", folder)
    pages.launch(demo, prevent_thread_lock=True, quiet=True, inline=False)
    try:
        with httpx.Client(base_url=demo.local_url, timeout=600) as client:
            page = Served(client, client.get("config").json(), *folders)
            answers = []
            for event in page.endpoints():
                if event["api_visibility"] != "public" and "caption" in page.names(event):
                    path = page.upload("wide.png", (tmp_path / "wide.png").read_bytes())
                    values = page.values(event)
                    values[page.visuals(event)["image"]] = {"path": path, "meta": META}
                    answers.append(page.ask_queue(event, values))
    finally:
        demo.close(verbose=False)
    scored = [answer for answer in answers if 'class=\\"score\\"' in answer]
    assert scored
    for answer in scored:
        assert ("centre only" in answer) == crops
