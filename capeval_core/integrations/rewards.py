"""A caption metric as the reward of a policy that writes captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capeval_core.cache import DEFAULT_BYTES, FeatureCache, Floats, kind_of
from capeval_core.errors import Problems
from capeval_core.integrations.opening import choose_metrics
from capeval_core.metric import CaptionMetric

TEXT_BYTES = 64 << 20
"""Memory for features of texts: those of a policy rarely come again."""


def reward(metric: Any, **options: Any) -> Reward:
    """A reward function: captions and images in, one float per caption out.

    For TRL pass it as it is, for self-critical training call it:

        GRPOTrainer(reward_funcs=reward("pacs"), ...)      # its dataset has a column `image` or `images`

        rewards = reward("pacs")
        advantages = [a - b for a, b in zip(rewards(sampled, images), rewards(greedy, images))]

    Args:
        metric: a name, a dict such as `{"name": "pacs", "w": 2.5}`, or a metric of `capeval_core.load`.
        **options: of a metric given by name: `weights`, `device`, `batch_size`, ... Empty captions are
            scored as the bare prompt: `empty="score"` is the default here.

    Raises:
        TypeError, ValueError: a metric or an option that does not exist; weights that could not be loaded;
            no `statistics` for a metric that needs those of the whole corpus.

    >>> import torch
    >>> rewards = reward("pacs", weights="tiny")
    >>> [type(value) for value in rewards(["a red circle", "a star"], torch.rand(2, 3, 48, 48))]
    [<class 'float'>, <class 'float'>]
    """
    return Reward(metric, options)


class Reward:
    """The reward function that `reward` makes; it can be pickled."""

    def __init__(self, metric: Any, options: Mapping[str, Any]) -> None:
        chosen = choose_metrics(metric, options, ImageFirst())
        if len(chosen) != 1:
            raise ValueError(f"reward takes one metric, found {len(chosen)}: make one reward of each")
        self.metric = chosen[0].open()
        self.__name__ = self.metric.name  # how TRL calls it in logs

    def __call__(
        self,
        completions: Sequence[Any],
        images: Any = None,
        references: Any = None,
        *,
        image: Any = None,
        **columns: Any,
    ) -> list[float]:
        """The score of each caption.

        Nothing touches the disk. Equal images are encoded once, and kept up to 512 MB whatever number of
        captions is scored; what texts take is bounded by 64 MB.

        Args:
            completions: n captions: texts, or TRL's conversations, whose last message counts.
            images: n images: a tensor (n, 3, height, width) or n tensors on any device, of uint8 or float
                in [0, 1], PIL images, or whatever `CaptionMetric.score` takes; a list of one image is
                that image. Tensors are copied to memory, rounded to 8 bits, and go the way of an image
                file from there: the score is exactly that of the same pixels in a PNG. Pass them as they
                are before normalisation.
            references: n lists of texts, for metrics that compare with references.
            image: TRL's other name for `images`.
            columns: everything else that TRL passes is ignored.

        Raises:
            TypeError, ValueError: everything that is wrong with the input, all of it at once.
        """
        if images is None:
            images = image
        elif image is not None:
            raise TypeError("reward: pass images or image, not both")
        result = self.metric.score(
            _texts(completions),
            _in_memory(images),
            references if self.metric.needs_references else None,
        )
        return result.scores

    def __repr__(self) -> str:
        return f"Reward({shown(self.metric)})"


def shown(metric: CaptionMetric) -> str:
    """An open metric in a log: its key, where it runs, and its signature, which names weights and options.

    >>> import capeval_core
    >>> shown(capeval_core.load("pacs", weights="tiny", device="cpu"))
    "pac_s on cpu: capeval:pacs|weights:tiny@...|dtype:float32|w:2|prompt:'A photo depicts '|v:0.1.0"
    """
    from capeval_core.models.device import resolve_device

    return f"{metric.key} on {resolve_device(metric.options.device)}: {metric.signature()}"


class ImageFirst(FeatureCache):
    """Keeps features of texts apart, so that ever new ones push no image out."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES, text_bytes: int = TEXT_BYTES) -> None:
        super().__init__(max_bytes)
        self._texts = FeatureCache(text_bytes)

    def get(self, keys: Iterable[str]) -> dict[str, Floats]:
        """The features of these keys; a key without features is left out."""
        keys = list(keys)
        texts = [key for key in keys if kind_of(key) == "text"]
        return self._texts.get(texts) | super().get(key for key in keys if kind_of(key) != "text")

    def put(self, rows: Mapping[str, Floats]) -> None:
        """Keep these features, float32 arrays of any shape."""
        self._texts.put({key: row for key, row in rows.items() if kind_of(key) == "text"})
        super().put({key: row for key, row in rows.items() if kind_of(key) != "text"})

    @property
    def nbytes(self) -> int:
        """Bytes of all features in memory, those of texts included."""
        return super().nbytes + self._texts.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageFirst, (self.max_bytes, self._texts.max_bytes)


def _texts(completions: Sequence[Any]) -> Sequence[Any]:
    """Captions of completions; other values than texts and conversations are left for the metric's check."""
    if isinstance(completions, (str, Mapping)) or not isinstance(completions, Sequence):
        return completions
    return [_last_message(completion) for completion in completions]


def _last_message(completion: Any) -> Any:
    if not (isinstance(completion, list) and completion and isinstance(completion[-1], Mapping)):
        return completion
    content = completion[-1].get("content")
    if isinstance(content, list):  # parts, of which the texts count
        return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    return content


def _in_memory(images: Any) -> Any:
    """Images, copied from a device once: their pixels are read several times."""
    if type(images).__module__ == "torch" and hasattr(images, "cpu"):
        return images.detach().cpu()
    if not isinstance(images, (list, tuple)):
        return images
    problems = Problems()
    copied = []
    for i, one in enumerate(images):
        if isinstance(one, (list, tuple)):
            if len(one) != 1:
                problems.add(f"images[{i}] has {len(one)} images: a caption is scored with exactly one")
                continue
            one = one[0]
        copied.append(one.detach().cpu() if type(one).__module__ == "torch" and hasattr(one, "cpu") else one)
    problems.raise_if_any()
    return copied
