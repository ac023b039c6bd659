"""Pickles of plain data are read, and whatever else a pickle can do is refused."""

from __future__ import annotations

import builtins
import collections
import os
import pickle
import struct
import subprocess
import tracemalloc
from typing import Any

import numpy as np
import pytest

from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.plain_pickle import MOST_STEPS, load_plain

PLAIN = {
    "image_id": "COCO_42",
    "float32": np.arange(6, dtype="<f4").reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3)),
    "bytes": np.arange(3, dtype=np.uint8),
    "none": np.zeros((0, 4), dtype=np.float16),
    "scalar": np.float32(2.5),
    "count": np.int64(-3),
    "list": [1, -(2**70), 2.5, None, True, "é", b"\xff", (1,), (1, 2, 3, 4), {}],
}


class Calls:
    """An object whose pickle calls what it is given."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, np.ndarray):
        same_type = ours.dtype.newbyteorder("=") == theirs.dtype.newbyteorder("=")
        return bool(same_type and np.array_equal(ours, theirs))
    return bool(ours == theirs)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_what_pickle_gives(protocol: int) -> None:
    data = pickle.dumps(PLAIN, protocol)
    found, theirs = load_plain(data), pickle.loads(data)
    assert found.keys() == theirs.keys()
    for name, value in theirs.items():
        assert equal(found[name], value), name


def test_an_array_twice_and_texts_of_python_2() -> None:
    array = np.ones(3, dtype=np.float32)
    one, other = load_plain(pickle.dumps([array, array]))
    assert np.array_equal(one, array) and other is one
    in_text = array_of(b"K\x02\x85", b"U\x08" + np.float32([1, -2]).tobytes())
    assert load_plain(in_text).tolist() == [1.0, -2.0]
    out_of_order = b"\x80\x02(K\x01q\x07K\x02q\x05h\x07h\x05t."  # places of the memo
    assert load_plain(out_of_order) == (1, 2, 1, 2)


def test_the_order_of_bytes_may_stand_in_the_name_of_a_type() -> None:
    big = b"cnumpy\ndtype\n(X\x03\x00\x00\x00>f4\x89\x88tR"
    assert load_plain(array_of(b"K\x01\x85", b"C\x04" + struct.pack(">f", 2.5), big)).tolist() == [2.5]


def test_the_bytes_of_an_array_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = array_of(b"K\x02\x85", b"C\x08" + bytes(8))
    monkeypatch.setattr("capeval_core.inputs.plain_pickle.MOST_BYTES", 8)
    assert load_plain(data).tolist() == [0.0, 0.0]
    monkeypatch.setattr("capeval_core.inputs.plain_pickle.MOST_BYTES", 7)
    assert "(2,) of float32, which 8 bytes are not" in refused(data)


HOSTILE = {
    "os.system": Calls(os.system, "touch /tmp/capeval-was-here"),
    "builtins.eval": Calls(builtins.eval, "1 + 1"),
    "builtins.exec": Calls(exec, "x = 1"),
    "builtins.getattr": Calls(getattr, "x", "upper"),
    "subprocess.Popen": Calls(subprocess.Popen, ["true"]),
    "numpy.fromfile": Calls(np.fromfile, "/etc/hostname"),
    "numpy.load": Calls(np.load, "x.npy"),
    "numpy.memmap": Calls(np.memmap, "/tmp/x", "u1", "w+", 0, (3,)),
    "collections.OrderedDict": collections.OrderedDict(a=1),
    "Calls": Calls,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_other_names_are_refused(name: str, protocol: int) -> None:
    data = pickle.dumps({"features": np.ones(2), "boxes": HOSTILE[name]}, protocol)
    with pytest.raises(Refused) as raised:
        load_plain(data)
    found, _ = raised.value.args
    assert name.rpartition(".")[2] in str(found) or protocol == 0
    assert not os.path.exists("/tmp/capeval-was-here")  # noqa: PTH110


def refused(data: bytes) -> str:
    with pytest.raises(Refused) as raised:
        load_plain(data)
    return str(raised.value.args[0])


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
FLOATS = (
    b"cnumpy\ndtype\n(X\x02\x00\x00\x00f4\x89\x88tR(K\x03X\x01\x00\x00\x00<NNN"
    + b"J\xff\xff\xff\xff" * 2
    + b"K\x00tb"
)


def array_of(shape: bytes, data: bytes, dtype: bytes = FLOATS) -> bytes:
    """The pickle of an array with this state."""
    return b"\x80\x03" + ARRAY + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb."


def test_the_pieces_of_these_tests_make_an_array() -> None:
    assert load_plain(array_of(b"K\x02\x85", b"C\x08" + bytes(8))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (array_of(b"J\xff\xff\xff\x7f\x85", b"C\x04abcd"), "(2147483647,) of float32, which 4 bytes"),
        (array_of(b"J\xff\xff\xff\xff\x85", b"C\x04abcd"), "has no shape"),
        (array_of(b"(K\x01K\x01K\x01K\x01K\x01t", b"C\x04abcd"), "has no shape"),
        (array_of(b"X\x01\x00\x00\x00a", b"C\x04abcd"), "an array in an unknown state"),
        (array_of(b"K\x01\x85", b"]"), "holds a list of length 0"),
        (array_of(b"K\x01\x85", b"C\x04abcd", b"N"), "an array in an unknown state"),
        (array_of(b"K\x01\x85", b"]", FLOATS.replace(b"f4", b"O8")), "has an array of objects"),
        (array_of(b"K\x01\x85", b"(Nl", FLOATS.replace(b"f4", b"O8")), "has an array of objects"),
        (array_of(b"K\x01\x85", b"C\x08abcdefgh"), "(1,) of float32, which 8 bytes are not"),
        (array_of(b"K\x01\x85", b"C\x08abcdefgh", FLOATS.replace(b"f4", b"c8")), "is of type 'c8'"),
        (b"\x80\x03cnumpy.core.multiarray\nscalar\n" + FLOATS.replace(b"f4", b"O8") + b"C\x08abcdefgh\x86R.",
         "has no shape"),
        (b"\x80\x03" + ARRAY.replace(b"\nndarray", b"\ndtype") + b".", "calls empty array in an unknown way"),
        (array_of(b"K\x01\x85", b"]", FLOATS.replace(b"f4", b"V9")), "is of type 'V9'"),
        (array_of(b"K\x01\x85", b"]", FLOATS.replace(b"f4", b"U9")), "is of type 'U9'"),
        (b"\x80\x03" + ARRAY.replace(b"K\x00\x85", b"J\xff\xff\xff\x7f\x85") + b".", "calls empty array"),
        (b"\x80\x03cnumpy\nndarray\n(K\x09tR.", "calls ndarray in an unknown way"),
        (b"\x80\x03K\x05K\x05R.", "calls the number 5 in an unknown way"),
        (b"\x80\x03cnumpy\ndtype\n(X\x02\x00\x00\x00f4X\x03\x00\x00\x00numtR}b.", "type in an unknown state"),
        (b"\x80\x03cnumpy\ndtype\n)R.", "is of type nothing"),
        (b"\x80\x04c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.", "calls bytes of a text"),
        (b"\x80\x02}]K\x01s.", "a key of the pickle's dict is a list of length 0"),
        (b"\x80\x02}K\x07Ns.", "a key of the pickle's dict is the number 7"),
        (b"\x80\x02c\x1b[31mos\nsys\x07tem\n.", "the pickle names \\x1b[31mos.sys\\x07tem"),
        (b"\x80\x02c__main__\nX\n.", "the pickle names __main__.X"),
        (b"\x80\x02(i__main__\nX\n.", "the pickle has the instruction INST"),
        (b"\x80\x02(cos\nsystem\no.", "the pickle names os.system"),
        (b"\x80\x02U\x01xQ.", "the pickle has the instruction BINPERSID"),
        (b"\x80\x02\x82\x01.", "the pickle has the instruction EXT1"),
        (b"\x80\x04\x8f.", "the pickle has the instruction EMPTY_SET"),
        (b"\x80\x05\x97.", "the pickle has the instruction NEXT_BUFFER"),
        (b"L" + b"9" * 100_000 + b"L\n.", "the pickle has the instruction LONG"),
        (b"\x80\x02)\x81.", "the pickle has the instruction NEWOBJ"),
        (b"\x80\x02K\x01K\x02.", "the pickle is damaged"),
        (b"\x80\x02h\x07.", "the pickle is damaged"),
        (b"\x80\x02t.", "the pickle is damaged"),
        (b"\x80\x02]K\x01K\x02s.", "items are set in a list of length 0"),
        (b"\x80\x02}K\x01a.", "values are appended to a dict of length 0"),
        (b"\x80\x04K\x01K\x02\x93.", "a name is no text"),
        (b"\xff", "no instruction is"),
        (b"", "it is cut off, or no pickle"),
    ],
)  # fmt: skip
def test_hand_made_pickles_are_refused(data: bytes, message: str) -> None:
    assert message in refused(data)


@pytest.mark.parametrize("data", [pickle.dumps(PLAIN, protocol) for protocol in (2, 4)])
def test_pickles_that_are_cut_off(data: bytes) -> None:
    for end in range(0, len(data), 7):
        assert "pickle" in refused(data[:end])


def test_what_asks_for_memory_gets_none() -> None:
    """A place far out in the memo, lengths without content, and a text that becomes bytes again and again."""
    far = b"\x80\x02K\x01r\xff\xff\xff\x7f."
    text = b"\x80\x02X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"q\x00"
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    lengths = [b"\x80\x04\x8e", b"\x80\x04\x8d", b"\x80\x05\x96"]
    tracemalloc.start()
    assert load_plain(far) == 1
    for start in lengths:
        for length in (1 << 40, (1 << 64) - 1):
            assert "damaged" in refused(start + struct.pack("<Q", length) + b"abc.")
    assert load_plain(text + again + b"\x86.")[1] == b"a" * (1 << 20)
    for times in (2, 400):
        assert "asks for more memory than it has bytes" in refused(text + again * times + b".")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_numbers_of_millions_of_digits_are_not_multiplied() -> None:
    digits = b"\x8b" + struct.pack("<I", 1 << 22) + b"\x11" * (1 << 22)
    assert "has no shape" in refused(array_of(b"(" + digits * 4 + b"t", b"C\x04abcd"))
    limit = (1 << 63).to_bytes(9, "little")
    assert "has no shape" in refused(array_of(b"\x8a\x09" + limit + b"\x85", b"C\x04abcd"))


def test_nesting_and_length_are_bounded() -> None:
    assert "nests more than" in refused(b"\x80\x02" + b"(" * 1000 + b"t" * 1000 + b".")
    deep = load_plain(b"\x80\x02)" + b"\x85" * (MOST_STEPS - 10) + b".")
    assert isinstance(deep, tuple)  # freed without recursion
    assert "a key of the pickle's dict is a tuple" in refused(b"\x80\x02})" + b"\x85" * 90_000 + b"K\x01s.")
    assert "more than 100,000 instructions" in refused(b"\x80\x02" + b"N" * MOST_STEPS + b".")
    loop = load_plain(b"\x80\x02]q\x00h\x00a.")
    assert loop[0] is loop
