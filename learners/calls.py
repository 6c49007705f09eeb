"""What actors are called with and what they answer, as it travels between processes."""

import sys
from dataclasses import dataclass
from typing import Any

from distributed.protocol.pickle import dumps, loads

from dask_rl.storage.errors import DaskRLError

from .collective import Rendezvous
from .request import Position

HEADER_KEYS = tuple(
    map(sys.intern, ("sub-header", "num-sub-frames", "split-num-sub-frames", "split-offsets", "type-serialized"))
)
"""Keys of the headers of Dask's messages. They are interned whenever a message comes in; where nobody keeps them, each
call uses up places in Python's table of interned strings, which doubles, by 4 MB, when there are none left."""


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or the error with its traceback as text."""

    value: Any = None
    error: DaskRLError | None = None
    traceback: str = ""


@dataclass(frozen=True)
class Membership:
    """A learner's place in a generation of its group."""

    rank: int
    size: int
    rendezvous: Rendezvous | None = None
    """None: alone."""
    source: int = 0
    """The rank whose tensors all take over."""
    position: Position | None = None
    """Where that rank stands; None: all stand at the start."""


def pack(value: Any) -> bytes:
    """Serialise for the other side of a call.

    Dask's own actor calls stay pending for ever when an argument or a result cannot be serialised; this raises.
    """
    packed: bytes = dumps(value)
    return packed


def unpack(packed: bytes) -> Any:
    """Read back `pack`."""
    return loads(packed)
