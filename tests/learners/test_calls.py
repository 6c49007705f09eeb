"""What travels between the caller and a learner's actor."""

import msgpack
from distributed.protocol import dumps, to_serialize

from dask_rl.learners.calls import HEADER_KEYS, pack


def test_the_keys_of_dasks_headers_are_those_that_are_kept():
    arguments = [to_serialize(value) for value in (7, "run", pack(({"a": 1},)))]
    frames = dumps({"op": "actor_execute", "args": arguments})
    keys = set()
    for frame in frames:
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(bytes(frame))
        try:
            for value in unpacker:
                keys |= set(keys_of(value))
        except (msgpack.UnpackException, ValueError):  # a frame of the data
            continue
    assert "type-serialized" in keys
    # Python keeps those that are identifiers: they stand in code.
    assert {key for key in keys if isinstance(key, str) and not key.isidentifier()} <= set(HEADER_KEYS)


def keys_of(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from keys_of(inner)
