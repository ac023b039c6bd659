"""The application: routes, limits, the token, counters."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from capeval_core.cache import TEXT_BYTES, FeatureCache
from capeval_core.integrations.metric_specs import open_one
from capeval_core.integrations.serving.batching import Batcher, Job, QueueFullError
from capeval_core.integrations.serving.requests import (
    ImageStore,
    RefusedError,
    checked_request,
    read_json,
    read_remote,
    read_verify,
    reply_of,
)
from capeval_core.limits import LIMITS
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.project import __version__

_READERS = 4  # threads that read and check requests while another one scores


def open_metrics(metrics: Sequence[str], options: Mapping[str, Any]) -> dict[str, CaptionMetric]:
    """Metrics by name, open; a broken image costs its own row. Raises ValueError."""
    # One for all: metrics of the same weights share what they encode, and the bounds hold for the process.
    cache = FeatureCache(text_bytes=TEXT_BYTES)
    opened: dict[str, CaptionMetric] = {}
    for name in metrics:
        if name in opened:
            raise ValueError(f"{name} is named twice")
        metric = open_one(name, {"on_error": "nan", "cache": cache, **options}, "serve")
        if isinstance(metric, Reranker) or metric.formula is not None:
            raise ValueError(
                f"{name} has no score of a caption of its own, which a reward is: serve another metric"
            )
        metric.check_separable(metric.options)  # else a score would depend on who else asks at the moment
        opened[name] = metric
    return opened


class Server:
    """Metrics behind HTTP: `app` is what an ASGI server runs.

    metrics: open ones by name. token: that every request but `/health` has to bring. batch_captions, seconds:
    see `Batcher`.
    """

    def __init__(
        self,
        metrics: Mapping[str, CaptionMetric],
        *,
        token: str | None = None,
        batch_captions: int = 512,
        seconds: float = 0.005,
    ) -> None:
        self.metrics = dict(metrics)
        self.images = ImageStore(LIMITS.served_image_bytes)
        self.batcher = Batcher(
            self.metrics,
            batch_captions=batch_captions,
            seconds=seconds,
            waiting_captions=LIMITS.served_waiting,
        )
        self._token = token
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="capeval requests")
        self._statuses: Counter[int] = Counter()
        self._seconds = 0.0
        self._body_bytes = 0  # of requests that are in work, which are in memory together
        self.app = Starlette(
            routes=[
                Route("/score", partial(self._answered, self._score), methods=["POST"]),
                Route("/verify", partial(self._answered, self._verify), methods=["POST"]),
                Route("/reward", partial(self._answered, self._reward), methods=["POST"]),
                Route("/signature", partial(self._answered, self._signature)),
                Route("/metrics", partial(self._answered, self._counters)),
                Route("/health", self._health),
            ],
            lifespan=self._running,
        )

    @asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncIterator[None]:
        self.batcher.start()
        yield
        self.batcher.end()
        self._readers.shutdown(wait=False, cancel_futures=True)

    # ---- answers

    async def _answered(self, answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        """An answer, or the error that took its place; counted."""
        started = time.monotonic()
        try:
            self._check_token(request)  # before the body is read: strangers may not fill the memory
            response = await answer(request)
        except RefusedError as refusal:
            response = JSONResponse(refusal.content, refusal.status)
        except QueueFullError:
            response = JSONResponse({"error": "too many captions wait: ask again"}, 429, {"Retry-After": "1"})
        except ClientDisconnect:
            response = Response(status_code=499)  # nobody reads it; it is counted as in nginx
        except MemoryError as error:
            response = JSONResponse({"error": f"out of memory: {error}"}, 503, {"Retry-After": "5"})
        # Without its traceback, which shows the server's code and folders.
        except Exception as error:
            response = JSONResponse({"error": f"{type(error).__name__}: {error}"[:2_000]}, 500)
        finally:
            self._body_bytes -= getattr(request.state, "body_bytes", 0)
        self._statuses[response.status_code] += 1
        self._seconds += time.monotonic() - started
        return response

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        header = request.headers.get("authorization", "")
        # In a time that does not tell how many characters are right.
        if not hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode()):
            raise RefusedError(401, "the token is missing or wrong: send Authorization: Bearer TOKEN")

    async def _health(self, _: Request) -> Response:
        alive = self.batcher.is_alive()
        return JSONResponse({"status": "ok" if alive else "down"}, 200 if alive else 503)

    async def _signature(self, _: Request) -> Response:
        signatures = {name: metric.signature() for name, metric in self.metrics.items()}
        return JSONResponse({"capeval": __version__, "signatures": signatures})

    async def _counters(self, _: Request) -> Response:
        counts = self.batcher.counts
        lines = []
        for status, count in sorted(self._statuses.items()):
            lines.append(f'capeval_requests_total{{status="{status}"}} {count}')
        lines += [
            f"capeval_request_seconds_total {self._seconds:.6f}",
            f"capeval_captions_total {counts.captions}",
            f"capeval_batches_total {counts.batches}",
            f"capeval_batch_seconds_total {counts.seconds:.6f}",
            f"capeval_captions_waiting {self.batcher.waiting}",
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def _score(self, request: Request) -> Response:
        content, results = await self._scored(request, lambda content: content)
        return JSONResponse(await self._read(reply_of, content, results))

    async def _verify(self, request: Request) -> Response:
        """NeMo Gym's door: its own request, and the reward beside it."""
        name = self._metric_of(request)
        body = await self._body(request)
        sent = await self._read(read_json, body)
        scored, results = await self._results(read_verify(sent, name))
        reply = reply_of(scored, results)["results"][name]
        content = {**sent, "reward": reply["scores"][0], "flags": reply["flags"][0]}
        # What was sent may hold a lone surrogate, which only an escape can write.
        return Response(json.dumps(content, allow_nan=False), media_type="application/json")

    async def _reward(self, request: Request) -> Response:
        """OpenRLHF's door for remote reward models."""
        name = self._metric_of(request)
        scored, results = await self._scored(request, lambda content: read_remote(content, name))
        reply = reply_of(scored, results)["results"][name]
        marks: Counter[str] = Counter()
        for flags in reply["flags"]:
            marks.update(flags)
        # `scores` are what OpenRLHF filters prompts by, `extra_logs` go to its own log of the training.
        logs = {"repetitive": marks["repetitive"], "unread": marks["unread"]}
        return JSONResponse({"rewards": reply["scores"], "scores": reply["scores"], "extra_logs": logs})

    def _metric_of(self, request: Request) -> str:
        """The metric of a protocol that has one reward: `?metric=`, else the first one that is served."""
        name = request.query_params.get("metric", next(iter(self.metrics)))
        if name not in self.metrics:
            raise RefusedError(422, f"metric: expected one of {', '.join(self.metrics)}")
        return name

    # ---- work

    async def _scored(self, request: Request, read: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        body = await self._body(request)
        content = await self._read(read_json, body)
        return await self._results(read(content))

    async def _results(self, content: Mapping[str, Any]) -> Any:
        """A request and its results by metric."""
        scored, samples = await self._read(checked_request, content, self.metrics, self.images)
        future = self.batcher.submit(Job(samples))
        return scored, await asyncio.wrap_future(future)

    async def _read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function makes, in a thread that reads."""
        # Base64 and JSON of some MB take their time, in which the event loop could answer nobody.
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(function, *arguments))

    async def _body(self, request: Request) -> bytes:
        """The body, as far as a request may have. Raises RefusedError."""
        body = bytearray()
        try:
            # A body that trickles in would hold its connection, of which there are so many only.
            async with asyncio.timeout(LIMITS.page_seconds):
                async for part in request.stream():
                    body += part
                    # By what has come, not by Content-Length, which a client may leave out or get wrong.
                    self._body_bytes += len(part)
                    request.state.body_bytes = len(body)
                    if len(body) > LIMITS.served_body_bytes:
                        most = f"{LIMITS.served_body_bytes >> 20:,} MB"
                        raise RefusedError(413, f"the body has more than {most}: send several requests")
                    if self._body_bytes > LIMITS.served_bodies_bytes:
                        raise QueueFullError
        except TimeoutError:
            raise RefusedError(408, f"the body did not come within {LIMITS.page_seconds:.0f} s") from None
        return bytes(body)


def build(metrics: Sequence[str], *, token: str | None = None, **options: Any) -> Server:
    """A server of metrics by name.

    options: of the metrics (`weights`, `device`, ...), and `batch_captions`, `seconds` of the batches.

    Raises:
        ValueError: a metric is unknown, or a caption has no score of its own in it (BLEU, ECO).
    """
    of_batches = {}
    for name in ("batch_captions", "seconds"):
        if name in options:
            of_batches[name] = options.pop(name)
    return Server(open_metrics(metrics, options), token=token, **of_batches)
