"""Captions of segments of videos, as in ActivityNet: of a record with time stamps, one of each segment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from capeval_core.inputs import names
from capeval_core.inputs.records import KEY, LOOKED_AT, VALUE, Record, Records, all_are

_NOTE = "captions have time stamps: each segment is an id, joined where times are equal (no tIoU)"


def by_segment(records: Records) -> Records:
    """The same records, where captions have time stamps one of each segment, whose id ends with its times."""
    if not any(map(_has_times, records.rows[:LOOKED_AT])):
        return records
    rows = list(chain.from_iterable(map(_segments, records.rows)))
    # Without unit and numbers: a record is no longer a line of the file, and is called by its key.
    return Records(records.path, f"{records.form}, by segment", rows, notes=[*records.notes, _NOTE])


def _has_times(row: Record) -> bool:
    """Whether a record has captions with time stamps."""
    spans = row.get("timestamps")
    if isinstance(spans, list) and isinstance(row.get("sentences"), list):
        return all(map(_is_span, spans))
    captions = _captions_with_times(row) or [row]
    return all(_is_span(caption.get("timestamp")) for caption in captions)


def _is_span(value: object) -> bool:
    """Whether a value is the begin and the end of a segment, in seconds."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all_are((int, float), value)


def _captions_with_times(row: Record) -> list[Record]:
    """The objects under the id of a video; none where there is anything else."""
    captions = row.get(VALUE)
    if not isinstance(captions, list) or not all_are(dict, captions):
        return []
    return captions


def _segments(row: Record) -> list[Record]:
    """A record for each caption with a time stamp: `sentences` with `timestamps`, or one `sentence`."""
    video = _video(row)
    if video is None:
        return [row]
    spans = row.get("timestamps")
    sentences = row.get("sentences")
    if isinstance(spans, list) and isinstance(sentences, list):
        if len(spans) != len(sentences):
            return [row]  # which sentence belongs to which time is unknown
        # Of the other values, such as the `duration`, none is about one segment.
        split = {name: value for name, value in row.items() if names.is_name(name, "split")}
        segments = []
        for span, sentence in zip(spans, sentences, strict=True):
            segments.append({**split, KEY: f"{video} {_times(span)}", VALUE: sentence})
        return segments
    if _is_span(row.get("timestamp")):
        return [{**row, KEY: f"{video} {_times(row['timestamp'])}"}]
    segments = []
    for caption in _captions_with_times(row):
        segments.append({**caption, KEY: f"{video} {_times(caption.get('timestamp'))}"})
    return segments or [row]


def _video(row: Record) -> str | None:
    """The id of the video of a record: its key, or the value of the best name of an id."""
    if KEY in row:
        return str(row[KEY])
    ids: dict[str, str] = {}
    for name, value in row.items():
        image_id = names.as_id(value)
        if image_id is not None and names.is_name(name, "id"):
            ids[name] = image_id
    if not ids:
        return None
    best_name = min(ids, key=lambda name: names.rank(name, "id"))
    return ids[best_name]


def _times(span: object) -> str:
    """The times of a segment, in seconds."""
    if not isinstance(span, Sequence) or isinstance(span, str):
        return str(span)
    times = []
    for time in span:
        # 12 and 12.0 are one time, and the ids of two files are compared as texts.
        times.append(f"{time:g}" if isinstance(time, (int, float)) else str(time))
    return "-".join(times)
