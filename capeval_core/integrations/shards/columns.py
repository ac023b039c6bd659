"""Which columns of a shard hold ids, captions, images and references."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from capeval_core.errors import did_you_mean, wrong_option

NAMES: dict[str, tuple[str, ...]] = {
    "uid": ("uid", "__key__", "key", "id", "sample_id", "image_id"),
    "caption": ("txt", "caption", "text", "prediction", "candidate"),
    "image": ("image", "jpg", "jpeg", "png", "webp", "img", "image_bytes", "bytes", "image_path", "path",
              "file_name", "filename", "bmp", "gif", "tif", "tiff"),
    "video": ("video", "mp4", "webm", "mkv", "mov", "avi", "video_bytes", "video_path", "path", "file_name",
              "filename", "gif"),
    "references": ("references", "refs", "reference"),
}  # fmt: skip
"""Names by which columns are found, best first, in any case. Members of a tar are columns by extension."""


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The columns that a user names.

    Raises:
        ValueError, TypeError: they are not names by what they hold.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns.values()):
        fix = 'expected names by what they hold, {"caption": "alt_text"}'
        raise wrong_option("columns", columns, "", fix, verb="", kind=TypeError)
    for role in columns:
        if role not in NAMES:
            fix = f"expected some of {', '.join(NAMES)}{did_you_mean(str(role), NAMES)}"
            raise wrong_option("columns", dict(columns), f"a key {role!r}", fix, verb="has")
    return dict(columns)


def find_columns(
    present: Sequence[str], needed: Iterable[str], chosen: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Columns by what they hold, and what of `needed` is not there.

    >>> find_columns(["URL", "TEXT", "jpg"], ["uid", "caption", "image"], {})
    ({'caption': 'TEXT', 'image': 'jpg'}, ['uid'])
    """
    lower: dict[str, str] = {}
    for name in present:
        lower.setdefault(name.lower(), name)
    found: dict[str, str] = {}
    missing: list[str] = []
    for role in needed:
        if role in chosen:
            names = [chosen[role]] if chosen[role] in present else []
        else:
            names = [lower[known] for known in NAMES[role] if known in lower]
        if names:
            found[role] = names[0]
        else:
            missing.append(role)
    return found, missing


def several_columns(
    present: Iterable[str], needed: Iterable[str], chosen: Mapping[str, str]
) -> dict[str, list[str]]:
    """The columns that may hold the same texts, by what they hold, where none of them is chosen.

    >>> several_columns(["jpg", "png", "text", "Caption"], ["caption", "image"], {})
    {'caption': ['text', 'Caption']}
    """
    texts = [role for role in needed if role in ("caption", "references") and role not in chosen]
    found = {role: [name for name in dict.fromkeys(present) if name.lower() in NAMES[role]] for role in texts}
    return {role: names for role, names in found.items() if len(names) > 1}


def how_several(role: str, names: Sequence[str]) -> str:
    """What is wrong where several columns may hold the same."""
    return f"several columns for {role} ({' and '.join(map(repr, names))})"


def how_missing(role: str, present: Sequence[str], chosen: Mapping[str, str]) -> str:
    """What is wrong where a column is not there.

    >>> how_missing("caption", ["alt", "jpg"], {"caption": "atl"})
    "no column 'atl' for caption: did you mean 'alt'?"
    """
    if role in chosen:
        return f"no column {chosen[role]!r} for {role}{did_you_mean(chosen[role], present)}"
    return f"no column for {role} (known names: {', '.join(NAMES[role])})"
