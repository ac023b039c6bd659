"""Limits on memory, time and input size; none of them changes a number.

A limit is here if a test lowers it, to see with few items what else takes thousands. A constant that no test
lowers is defined next to its only user.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class _Windows:
    """Items that are in memory together, and rows that are written together."""

    texts: int = 65_536  # captions of a window, which bounds memory
    texts_together: int = 8_192  # captions of a window that several metrics share
    texts_between_shards: int = 8_192  # captions encoded before their rows are kept
    hice_texts: int = 4_096  # captions of a window with the features of their regions and phrases
    video_texts: int = 2_048  # captions of a window with the features of their frames
    token_texts: int = 1_024  # captions of a window with the features of their tokens
    items: int = 64  # images whose keys are looked up together; the next ones are read meanwhile
    items_waiting: int = 1_024  # images that may wait for an earlier one
    consensus_words: int = 200_000
    graphs: int = 65_536  # parsed captions that FACTUAL keeps
    shard_rows: int = 65_536  # rows of a kept shard
    shard_seconds: float = 5.0  # between two kept shards of rows
    augmented: dict[str, int] = field(default_factory=lambda: {"caption": 256, "image": 64})  # of a shard
    training_seconds: float = 60.0  # between two kept shards of towers' outputs or positives
    window_bytes: int = 128 << 20  # of a shard that is read at once
    frequent: int = 64  # an n-gram is frequent if more than one image in so many has it
    similarities: int = 1 << 24  # of similar images, at a time


@dataclass
class _Kernels:
    """Sizes of one step of a kernel or a network."""

    matched_rows: dict[str, int] = field(default_factory=lambda: {"cpu": 1 << 16, "cuda": 1 << 22})
    bucket_rows: int = 1536  # rows of a padded bucket
    bucket_pairs: int = 32
    slice_cells: int = (1 << 15) - 1  # similarities of a slice
    norms_from: int = 48  # rows of a set from which its norms are made with the product
    sam_boxes: int = 32
    sam_logits: int = 1 << 25


@dataclass
class _Files:
    """Files of users, and downloads."""

    frames: int = 2**19  # of a video
    file_bytes: int = 2 << 30  # of a file of captions
    settled_seconds: float = 2.0  # age of a file whose time of change can be trusted
    hub_waits: tuple[float, ...] = (1.0, 2.0, 4.0)  # seconds before a busy Hub is asked again
    connect_seconds: float = 10.0  # for a server that files are downloaded from
    download_seconds: float = 60.0  # without a byte of a download
    download_bytes: int = 8 << 30  # of a file whose size nobody states
    unasked_bytes: int = 10 << 30  # of weights that are fetched without being asked for
    longest_wait: float = 120.0  # seconds that a server may ask for before it gives a file


@dataclass
class _Page:
    """One request to the page, which anybody may send."""

    page_seconds: float = 60.0  # for reading an upload
    page_memory: int = 2 << 30  # bytes for reading it
    page_image_pixels: int = 25_000_000  # a photograph of 24 megapixels fits
    page_frames: int = 3_000  # of an uploaded video
    page_pixels: int = 2_000_000_000  # of all its frames
    page_frames_encoded: int = 64
    page_seconds_kept: int = 3_600  # of an upload
    page_seconds_between: int = 300  # looks for old uploads
    page_waiting: int = 64  # requests
    served_captions: int = 4_096  # of a request to the reward server
    served_waiting: int = 16_384  # captions that wait for a batch
    served_header_seconds: float = 10.0  # for the headers of a request
    served_body_bytes: int = 256 << 20  # of a request
    served_values: int = 1_000_000  # of the JSON of a request
    served_characters: int = 100_000  # of a text
    served_bodies_bytes: int = 1 << 30  # of all requests that are in work
    served_image_bytes: int = 1 << 30  # of images that are kept by their digest


@dataclass
class Limits(_Page, _Files, _Kernels, _Windows):
    """Every limit, in texts, rows, words, frames, bytes or seconds; `LIMITS` is the one in use."""


LIMITS = Limits()
