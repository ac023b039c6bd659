"""Captions of segments of videos, as in ActivityNet: of a record with time stamps, one of each segment."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from capeval_core.inputs import names
from capeval_core.inputs.records import KEY, LOOKED_AT, VALUE, Record, Records

_NOTE = "captions have time stamps: each segment is an id, joined where times are equal (no tIoU)"


def by_segment(records: Records) -> Records:
    """The same records, where captions have time stamps one of each segment, whose id ends with its times."""
    if not any(_has_times(row) for row in records.rows[:LOOKED_AT]):
        return records
    rows = list(chain.from_iterable(map(_segments, records.rows)))
    return Records(records.path, f"{records.form}, by segment", rows, notes=[*records.notes, _NOTE])


def _has_times(row: Record) -> bool:
    """Whether a record has captions with time stamps."""
    spans = row.get("timestamps")
    if isinstance(spans, list) and isinstance(row.get("sentences"), list):
        return all(map(_is_span, spans))
    captions = _captions_with_times(row)
    if captions:
        return all(_is_span(caption.get("timestamp")) for caption in captions)
    return _is_span(row.get("timestamp"))


def _is_span(value: object) -> bool:
    """Whether a value is the begin and the end of a segment, in seconds."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(isinstance(time, (int, float)) for time in value)


def _captions_with_times(row: Record) -> list[Record]:
    """The objects under the id of a video; none where there is anything else."""
    captions = row.get(VALUE)
    if not isinstance(captions, list) or not all(isinstance(caption, dict) for caption in captions):
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
            return [row]
        split = {name: value for name, value in row.items() if names.is_name(name, "split")}
        pairs = zip(spans, sentences, strict=True)
        return [{**split, KEY: f"{video} {_times(span)}", VALUE: sentence} for span, sentence in pairs]
    if _is_span(row.get("timestamp")):
        return [{**row, KEY: f"{video} {_times(row['timestamp'])}"}]
    captions = _captions_with_times(row)
    if captions:
        return [{**caption, KEY: f"{video} {_times(caption.get('timestamp'))}"} for caption in captions]
    return [row]


def _video(row: Record) -> str | None:
    """The id of the video of a record: its key, or the value of the best name of an id."""
    if KEY in row:
        return str(row[KEY])
    fields = [name for name in row if names.is_name(name, "id") and names.as_id(row[name]) is not None]
    if not fields:
        return None
    return names.as_id(row[min(fields, key=lambda name: names.rank(name, "id"))])


def _times(span: object) -> str:
    """The times of a segment, in seconds."""
    if not isinstance(span, Sequence) or isinstance(span, str):
        return str(span)
    return "-".join(f"{time:g}" if isinstance(time, (int, float)) else str(time) for time in span)
