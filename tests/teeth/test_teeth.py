"""Every fault of the list still has its place in the package."""

from __future__ import annotations

from collections import Counter

from tests.teeth.faults import ROOT, read_faults, read_sources


def test_every_fault_applies() -> None:
    sources = read_sources()
    for fault in read_faults():
        path, text = fault.put(sources)
        assert text != sources[path], fault.id


def test_every_room_has_its_faults() -> None:
    faults = read_faults()
    assert len({fault.id for fault in faults}) == len(faults) >= 120
    counts = Counter(fault.room for fault in faults)
    rooms = {path.parent.name for path in (ROOT / "capeval_core").glob("*/__init__.py")} - {"demo"}
    assert set(counts) == {"root", *rooms}
    assert {room for room in counts if counts[room] < 8} <= {"publishing"}
