"""Batches across requests: one thread owns the models and scores what has come meanwhile together.

    request 1 (8 captions)  ──┐
    request 2 (8 captions)  ──┼──> queue, bounded ──> batch of at most N captions ──> results, split again
    request 3 (8 captions)  ──┘

A batch begins when its first request has waited for `seconds`, or when enough captions are there. While it
runs, the next one gathers, so that a busy server never waits. A score does not depend on its batch: rows of
a metric are independent of each other, and metrics for which they are not are refused at the start.

Requests are taken whole, and in the order in which they came. Where no more wait than a batch takes, a
request waits for the rest of the batch that runs and for its own: twice a batch's time at most. Where W
captions wait, it is W / N batches and the rest of one. A larger N would make that two again, of longer
batches: the last request would be answered at the same time, and the first ones later.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from capeval_core.errors import naming
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric
from capeval_core.result import Result


class QueueFullError(Exception):
    """Too many captions wait already."""


@dataclass
class Job:
    """The samples of one request, by metric, and its results to come."""

    samples: Mapping[str, Samples]
    results: Future[dict[str, Result]] = field(default_factory=Future)
    came: float = field(default_factory=time.monotonic)

    @property
    def captions(self) -> int:
        return len(next(iter(self.samples.values())))


@dataclass
class Counts:
    """What a batcher has done: batches, captions in them, and seconds that they took."""

    batches: int = 0
    captions: int = 0
    seconds: float = 0.0


class Batcher(threading.Thread):
    """The thread that scores.

    metrics: by name, open. batch_captions: of a batch at most, unless one request has more. seconds: that the
    first request of a batch waits for others. waiting_captions: that may wait; more are refused.
    """

    def __init__(
        self,
        metrics: Mapping[str, CaptionMetric],
        *,
        batch_captions: int,
        seconds: float,
        waiting_captions: int,
    ) -> None:
        super().__init__(name="capeval batches", daemon=True)  # no batch holds up the end of the process
        self.counts = Counts()
        self._metrics = metrics
        self._batch_captions = batch_captions
        self._seconds = seconds
        self._waiting_captions = waiting_captions
        self._jobs: deque[Job] = deque()
        self._captions = 0
        self._changed = threading.Condition()
        self._ended = False

    @property
    def waiting(self) -> int:
        """Captions that wait for a batch."""
        return self._captions

    def submit(self, job: Job) -> Future[dict[str, Result]]:
        """The results of a job, once they are there. Raises QueueFullError."""
        with self._changed:
            # Alone a request of any size is taken: refused, it would be sent again for ever.
            if self._captions and self._captions + job.captions > self._waiting_captions:
                raise QueueFullError
            self._jobs.append(job)
            self._captions += job.captions
            self._changed.notify()
        return job.results

    def end(self) -> None:
        """Score what waits, then end."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        while jobs := self._gathered():
            started = time.monotonic()
            self._score(jobs)
            self.counts.batches += 1
            for job in jobs:
                self.counts.captions += job.captions
            self.counts.seconds += time.monotonic() - started

    def _gathered(self) -> list[Job]:
        """The jobs of the next batch; none when the thread is to end."""
        with self._changed:
            while not self._jobs and not self._ended:
                self._changed.wait()
            # Each request that comes wakes this loop, and leaves less to wait for. The clock is that of the
            # first one: counted from the last, a steady trickle would keep a batch from ever beginning.
            while self._jobs and not self._ended and self._captions < self._batch_captions:
                seconds = self._jobs[0].came + self._seconds - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(seconds)
            jobs: list[Job] = []
            captions = 0
            # The first one whatever its size. None behind overtakes one that does not fit: it would starve.
            while self._jobs and (not jobs or captions + self._jobs[0].captions <= self._batch_captions):
                job = self._jobs.popleft()
                captions += job.captions
                jobs.append(job)
            self._captions -= captions
        return jobs

    def _score(self, jobs: Sequence[Job]) -> None:
        """Score jobs together; where that fails, each by itself, so that none pays for another one."""
        awaited: list[Job] = []
        for job in jobs:
            # False where it was cancelled meanwhile: to set its result would then raise, and end this thread.
            if job.results.set_running_or_notify_cancel():
                awaited.append(job)
        try:
            results = results_of(self._metrics, awaited)
        except BaseException as error:  # whatever it is, it is the answer to the requests
            if len(awaited) == 1:
                awaited[0].results.set_exception(_answerable(error))
                return
            for job in awaited:
                self._score_alone(job)
            return
        for job, result in zip(awaited, results, strict=True):
            job.results.set_result(result)

    def _score_alone(self, job: Job) -> None:
        try:
            job.results.set_result(results_of(self._metrics, [job])[0])
        except BaseException as error:  # the thread has to outlive it: no other one scores
            job.results.set_exception(_answerable(error))


def results_of(metrics: Mapping[str, CaptionMetric], jobs: Sequence[Job]) -> list[dict[str, Result]]:
    """The results of each job by metric, where a metric scores the captions of all jobs together."""
    results: list[dict[str, Result]] = [{} for _ in jobs]
    for name, metric in metrics.items():
        parts: list[Samples] = []
        labels: list[str] = []  # of each caption the number of its job, as a text, by which a result is split
        for number, job in enumerate(jobs):
            if name in job.samples:
                parts.append(job.samples[name])
                labels += [str(number)] * job.captions
        if not parts:
            continue
        # A note with each batch is noise in the server's log, and no client sees it.
        with naming(notes=False):
            result = metric.combine(metric.encode_all(joined(parts)))
        for label, part in result.by(labels).items():
            results[int(label)][name] = part
    return results


def _answerable(error: BaseException) -> Exception:
    """An error as one that ends no event loop; without memory in torch, a MemoryError."""
    text = str(error)
    # torch raises a plain RuntimeError; as a MemoryError it is answered with 503, which clients try again.
    if isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate" in text):
        return MemoryError(text)
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {text}")


def joined(parts: Sequence[Samples]) -> Samples:
    """Samples one after the other, as if they were one input."""
    captions: list[str] = []
    images: list[object] = []
    references: list[list[str]] = []
    for part in parts:
        captions += part.captions
        images += part.images
        references += part.references or []
    return replace(
        parts[0],
        captions=captions,
        images=images,
        references=None if parts[0].references is None else references,
        # Each part counts its rows from 0, and a row of a table is known by its index.
        indices=range(len(captions)),
    )
