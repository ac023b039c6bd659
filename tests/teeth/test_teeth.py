"""Every fault of the list still has its place in the package."""

from __future__ import annotations

from collections import Counter

from tests.teeth.__main__ import ROOT, read_faults, read_sources


def test_every_fault_applies_and_every_room_has_some() -> None:
    faults, sources = read_faults(), read_sources()
    for path, text in (fault.put(sources) for fault in faults):
        assert text != sources[path]
    assert len({fault.id for fault in faults}) == len(faults) >= 120
    counts = Counter(fault.room for fault in faults)
    rooms = {path.parent.name for path in (ROOT / "capeval_core").glob("*/__init__.py")} - {"demo"}
    assert set(counts) == {"root", *rooms}
    assert {room for room in counts if counts[room] < 8} <= {"publishing"}
