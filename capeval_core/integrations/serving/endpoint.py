"""A handler of Hugging Face Inference Endpoints: the requests and replies of the reward server, without one.

`capeval publish weights --install-from` puts a `handler.py` beside the weights. The endpoint makes its class
with the folder of the repository, and calls it with the JSON of each request, one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from capeval_core.integrations.serving.app import open_metrics
from capeval_core.integrations.serving.batching import Job, results_of
from capeval_core.integrations.serving.requests import ImageStore, RefusedError, checked_request, reply_of
from capeval_core.limits import LIMITS


class Endpoint:
    """The handler that an endpoint makes once and calls for each request.

    Args:
        path: the folder of the repository, whose weights are those of the metrics.

    The class attribute `metrics` holds names with blanks between them; the variable CAPEVAL_METRICS of the
    environment replaces them.

    Raises:
        ValueError: a name of no metric, or weights that it cannot open.
    """

    metrics: ClassVar[str] = "pacs"

    def __init__(self, path: str = "") -> None:
        names = os.environ.get("CAPEVAL_METRICS") or self.metrics
        self._metrics = open_metrics(names.split(), {"weights": path})
        self._images = ImageStore(LIMITS.served_image_bytes)

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to `{"inputs": {"captions": [...], "images": [...]}}`.

        Raises:
            ValueError: the reply of the reward server to such a request, as JSON: an endpoint answers with
                status 400 and the text of the exception.
        """
        try:
            # An endpoint makes parameters of what stands behind `?` in an address, which nothing here reads.
            if data.get("parameters"):
                raise RefusedError(422, "parameters: none is read: put what you mean into inputs")
            content = data.get("inputs")
            if not isinstance(content, Mapping):
                raise RefusedError(422, "inputs: expected the object of a request to capeval serve")
            scored, samples = checked_request(content, self._metrics, self._images)
            (results,) = results_of(self._metrics, [Job(samples)])
            return reply_of(scored, results)
        except RefusedError as refusal:
            raise ValueError(json.dumps(refusal.content)) from None
