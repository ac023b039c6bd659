"""Pickles of plain data, read without running anything: NumPy arrays, dicts, lists, texts and numbers.

Python's `pickle` imports and calls what a file names. Here a file is walked by hand: of all its instructions
those for plain data are known, and of all names the few that stand for an array, its type, a number of it,
and bytes. Everything else is refused before it is looked at.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np

from capeval_core.inputs.box_arrays import MOST_BYTES
from capeval_core.inputs.decoding import Refused
from capeval_core.values import described

MOST_STEPS = 100_000
"""Instructions of a pickle."""
_DEEPEST = 32
"""Open marks: containers that are being filled."""
_FIX = "expected NumPy arrays, dicts, texts and numbers only"
_NUMBERS = re.compile(r"[<>|=]?(?:f[248]|[iu][1248]|b1)")
_AXES = 4
_KEYS = (str, bytes)
"""Keys of dicts. Equal hashes of numbers are easily made, and a dict of many such takes minutes."""
_LONGEST_AXIS = 1 << 63
"""Products of larger numbers, which a file can write with millions of digits, take minutes."""


@dataclass(frozen=True)
class Name:
    """A name that a pickle may use; it is never imported."""

    meaning: str


_DTYPE, _NDARRAY, _EMPTY, _BUFFER, _SCALAR = map(
    Name, ("dtype", "ndarray", "empty array", "array of bytes", "number")
)
_BYTES, _ENCODE = Name("bytes"), Name("bytes of a text")
_NAMES = {
    ("numpy", "dtype"): _DTYPE,
    ("numpy", "ndarray"): _NDARRAY,
    ("_codecs", "encode"): _ENCODE,
    **dict.fromkeys([("__builtin__", "bytes"), ("builtins", "bytes")], _BYTES),
    **{
        (f"numpy.{core}.{module}", name): meaning
        for core in ("core", "_core")
        for module, name, meaning in (
            ("multiarray", "_reconstruct", _EMPTY),
            ("multiarray", "scalar", _SCALAR),
            ("numeric", "_frombuffer", _BUFFER),
        )
    },
}


@dataclass
class _Type:
    """A dtype: a code such as f4, and the order of its bytes."""

    code: str
    order: str = "="

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(f"{self.order}{self.code}")
        return dtype


@dataclass
class _Array:
    """An array that a later instruction fills."""

    filled: bool = False
    value: Any = None


def load_plain(data: bytes) -> Any:
    """What a pickle holds, if it is plain data; an array of one object without axes is that object.

    Arrays are views of the pickle's bytes.

    Raises:
        Refused: it names anything else, is damaged, or asks for more than its own size in memory.

    >>> import pickle
    >>> load_plain(pickle.dumps({"boxes": np.ones((1, 4), np.float32), "image_id": 42}))
    {'boxes': array([[1., 1., 1., 1.]], dtype=float32), 'image_id': 42}
    >>> load_plain(pickle.dumps(len))
    Traceback (most recent call last):
    capeval_core.inputs.decoding.Refused: the pickle names builtins.len: expected NumPy arrays, dicts, texts
    and numbers only
    """
    try:
        return _Machine(data).run()
    except Refused:
        raise
    except Exception as error:  # a damaged file may trip over anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise Refused(f"the pickle is damaged ({reason})", "write or download it again") from None


@dataclass
class _Machine:
    """The stack, the marks in it and the memo of a pickle that is read."""

    data: bytes
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    encoded: int = 0

    def run(self) -> Any:
        file = BytesIO(self.data)
        for _ in range(MOST_STEPS):
            code = file.read(1).decode("latin-1")
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise ValueError("it is cut off, or no pickle" if not code else f"no instruction is {code!r}")
            name = instruction.name
            if name == "STOP":
                (value,) = self.stack
                return _whole(value)
            if name not in _STEPS and name not in _VALUES and name not in _CONSTANTS:
                raise Refused(f"the pickle has the instruction {name}", _FIX)
            argument = instruction.arg.reader(file) if instruction.arg else None
            if name in _STEPS:
                _STEPS[name](self, argument)
            else:
                self.stack.append(_CONSTANTS.get(name) if argument is None else argument)
        raise Refused(f"the pickle has more than {MOST_STEPS:,} instructions", "write fewer images per file")

    def pop(self) -> Any:
        return _whole(self.stack.pop())

    def since_mark(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        start = self.marks.pop()
        values = [_whole(value) for value in self.stack[start:]]
        del self.stack[start:]
        return values

    def mark(self, _: Any) -> None:
        if len(self.marks) >= _DEEPEST:
            raise Refused(f"the pickle nests more than {_DEEPEST} containers", _FIX)
        self.marks.append(len(self.stack))

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(_whole(self.memo[index]))

    def tuple_of(self, n: int) -> None:
        values = tuple(self.pop() for _ in range(n))[::-1]
        self.stack.append(values)

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError(f"values are appended to {described(self.stack[-1])}")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError(f"items are set in {described(target)}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, _KEYS):
                raise Refused(f"a key of the pickle's dict is {described(key)}", "expected texts")
            target[key] = value

    def item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def dict_of(self, values: list[Any]) -> None:
        self.stack.append({})
        self.set_items(values)

    def name(self, module: str, name: str) -> None:
        known = _NAMES.get((module, name))
        if known is None:
            shown = ascii(f"{module[:60]}.{name[:60]}")[1:-1]  # without control characters of a terminal
            raise Refused(f"the pickle names {shown}", _FIX)
        self.stack.append(known)

    def name_of_stack(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a name is no text")
        self.name(module, name)

    def call(self, _: Any) -> None:
        """A call of one of the known names, done here."""
        arguments, called = self.pop(), self.pop()
        match called, arguments:
            case Name(), _ if called is _DTYPE:
                self.stack.append(_type_of(arguments))
            case Name(), (Name() as kind, (0,), bytes() | str()) if called is _EMPTY and kind is _NDARRAY:
                self.stack.append(_Array())
            case Name(), (_Type() as type_, data) if called is _SCALAR:
                self.stack.append(_array_of((), type_, False, self.bytes_of(data)).item())
            case Name(), (data, _Type() as type_, shape, ("C" | "F") as order) if called is _BUFFER:
                self.stack.append(_array_of(shape, type_, order == "F", self.bytes_of(data)))
            case Name(), () if called is _BYTES:
                self.stack.append(b"")
            case Name(), (str() as text, "latin1" | "latin-1") if called is _ENCODE:
                self.stack.append(self.bytes_of(text))
            case _:
                what = called.meaning if isinstance(called, Name) else described(called)
                raise Refused(f"the pickle calls {what} in an unknown way", _FIX)

    def build(self, _: Any) -> None:
        """The state of a type, or of an array."""
        state, target = self.pop(), self.stack[-1]
        match target, state:
            case _Type(), (int(), ("<" | ">" | "|" | "=") as order, None, None, None, *_):
                target.order = order
            case _Array(filled=False), (
                1,
                tuple() as shape,
                _Type() as type_,
                bool() | int() as fortran,
                data,
            ):
                if type_.code == "O":
                    target.value = _object_of(shape, data)
                else:
                    target.value = _array_of(shape, type_, bool(fortran), self.bytes_of(data))
                target.filled = True
                self.stack[-1] = target.value
            case _:
                what = {_Type: "a type", _Array: "an array"}.get(type(target), described(target))
                raise Refused(f"the pickle has {what} in an unknown state", _FIX)

    def bytes_of(self, data: Any) -> bytes | bytearray:
        """Bytes, also where older protocols write them as text, which takes memory once more."""
        if isinstance(data, str):
            self.encoded += len(data)
            if self.encoded > len(self.data):
                raise Refused("the pickle asks for more memory than it has bytes", _FIX)
            return data.encode("latin-1")
        if not isinstance(data, (bytes, bytearray)):
            raise Refused(f"an array of the pickle holds {described(data)}", "expected numbers")
        return data


def _whole(value: Any) -> Any:
    """A value from the stack or the memo; an array that has been filled is its content."""
    return value.value if isinstance(value, _Array) and value.filled else value


def _type_of(arguments: Any) -> _Type:
    match arguments:
        case (str() as code, *_) if code in ("O", "O8"):
            return _Type("O")
        case (str() as code, *_) if _NUMBERS.fullmatch(code):
            return _Type(code.lstrip("<>|="), code[0] if code[0] in "<>" else "=")
    shown = ascii(arguments[0])[:40] if isinstance(arguments, tuple) and arguments[:1] else "nothing"
    raise Refused(f"an array of the pickle is of type {shown}", "expected numbers")


def _array_of(shape: Any, type_: _Type, fortran: bool, data: bytes | bytearray) -> Any:
    """The array of these bytes, if there are as many as its shape says."""
    axes = shape if isinstance(shape, tuple) and len(shape) <= _AXES else (None,)
    if not all(isinstance(axis, int) and 0 <= axis < _LONGEST_AXIS for axis in axes) or type_.code == "O":
        raise Refused("an array of the pickle has no shape", "write it again")
    if len(data) > MOST_BYTES or math.prod(axes) * type_.dtype.itemsize != len(data):
        found = f"shape {tuple(axes)} of {type_.dtype}, which {len(data):,} bytes are not"
        raise Refused(f"an array of the pickle has {found}", "write it again")
    array = np.frombuffer(data, type_.dtype)
    return array.reshape(axes, order="F" if fortran else "C")


def _object_of(shape: tuple[Any, ...], values: Any) -> Any:
    """The object in an array without axes, as `numpy.save` wraps a dict."""
    if shape == () and isinstance(values, list) and len(values) == 1:
        return values[0]
    raise Refused("the pickle has an array of objects", _FIX)


_INSTRUCTIONS = {instruction.code: instruction for instruction in pickletools.opcodes}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    [
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        "BYTEARRAY8",
    ]
)
"""Instructions whose argument is the value."""
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, argument: None),
    "MARK": _Machine.mark,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "LIST": lambda machine, _: machine.stack.append(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "DICT": lambda machine, _: machine.dict_of(machine.since_mark()),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": _Machine.item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "GLOBAL": lambda machine, argument: machine.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": _Machine.name_of_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
