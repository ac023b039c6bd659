"""Pools of candidate captions, one pool per image, checked once and flattened into rows."""

from __future__ import annotations

from typing import Any, Literal

from capeval_core.inputs.images import check_decodable, check_images
from capeval_core.inputs.problems import Problems, described
from capeval_core.inputs.samples import Pools
from capeval_core.inputs.sequences import as_list
from capeval_core.inputs.texts import rows_of, text_of, warn_of_written_lists


def check_pools(
    captions: Any,
    images: Any,
    *,
    on_error: Literal["raise", "nan"] = "raise",
    empty: Literal["error", "score"] = "error",
    called: str = "captions",
) -> Pools:
    """Check pools and their images, and raise all complaints at once.

    captions: per image a list of candidates, one or more, each pool of any size.
    images, on_error, empty, called: as for `check_samples`.

    Returns:
        One row per candidate, pool after pool, with its place in the pool in `candidates`.

    Raises ValueError or TypeError; several problems make one exception that lists them.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> samples = check_pools([["a wall", "grey"], ["a door"]], [grey, grey])
    >>> samples.captions, samples.candidates
    (['a wall', 'grey', 'a door'], [0, 1, 0])
    >>> check_pools([["a wall", ""], "a door"], [grey, grey])
    Traceback (most recent call last):
    ValueError: 2 problems with the input:
      captions[0][1] is empty: write a caption, leave it out or pass empty="score"
      captions[1] is a single string: pass the list of its candidates, ['a door', ...]
    """
    problems = Problems()
    rows = rows_of(captions, called, "lists of candidate captions", problems)
    if rows is not None and not rows:
        problems.add(f"{called} is empty: there is nothing to score")
    pools = [_pool(row, f"{called}[{i}]", empty, problems) for i, row in enumerate(rows or [])]
    images = check_images(images, problems)
    if rows is not None and images is not None and (rows or images) and len(rows) != len(images):
        problems.add(
            f"len({called})={len(rows)} but len(images)={len(images)}: give each image one pool, a list "
            "of its candidates"
        )
    if images is not None and on_error == "raise":
        check_decodable([image for image in images if image is not None], problems)
    problems.raise_if_any()
    kept = [text for pool in pools for text in pool]
    warn_of_written_lists(kept, called)
    shown = [image for image in images or [] if image is not None]
    return Pools(
        captions=kept,
        images=[image for image, pool in zip(shown, pools, strict=True) for _ in pool],
        references=None,
        indices=range(sum(map(len, pools))),
        candidates=[place for pool in pools for place in range(len(pool))],
    )


def _pool(row: Any, where: str, empty: str, problems: Problems) -> list[str]:
    if isinstance(row, str):
        short = row if len(row) <= 40 else row[:37] + "..."
        problems.add(
            f"{where} is a single string: pass the list of its candidates, [{short!r}, ...]", kind=TypeError
        )
        return []
    if row is None:
        problems.add(f"{where} is None: every image needs at least one candidate")
        return []
    values = as_list(row)
    if values is None:
        problems.add(f"{where} is {described(row)}: expected a list of candidate captions", kind=TypeError)
        return []
    if not values:
        problems.add(f"{where} is empty: every image needs at least one candidate")
    texts = [
        text_of(value, f"{where}[{place}]", "write a caption, leave it out", empty, problems)
        for place, value in enumerate(values)
    ]
    return [text for text in texts if text is not None]
