import json

import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.storage import DatasetError, describe_space, infer_box, space_from_json, space_to_json, spaces_equal

ALL = [
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, 5.0]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 1), np.uint8),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-np.inf, 1.5, (40, 40), np.float32),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.Text(5),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Discrete(4), spaces.Box(0, 1, ())))),
]


@pytest.mark.parametrize("space", ALL, ids=describe_space)
def test_json_round_trip_in_strict_json(space):
    again = space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert again == space
    assert again.dtype == space.dtype
    assert spaces_equal(again, space)


def test_bounds_of_images_are_one_number_and_others_are_listed_as_minari_does():
    image = space_to_json(spaces.Box(0, 255, (84, 84, 4), np.uint8))
    assert (image["low"], image["high"]) == (0, 255)
    assert space_to_json(spaces.Box(-np.inf, 1.5, (40, 40), np.float32))["low"] == "-Infinity"
    low = np.zeros(2000, np.float32)
    low[7] = -1
    assert space_to_json(spaces.Box(low, np.ones(2000, np.float32)))["low"] == low.tolist()
    assert space_to_json(spaces.Box(0, 255, (2, 3), np.uint8))["high"] == [[255] * 3] * 2


def test_reads_what_minari_writes():
    text = '{"type": "Box", "dtype": "float64", "shape": [2], "low": [-Infinity, 0.0], "high": [Infinity, 1.0]}'
    expected = spaces.Box(np.array([-np.inf, 0]), np.array([np.inf, 1]), dtype=np.float64)
    assert space_from_json(json.loads(text)) == expected


def nested(depth):
    space = {"type": "Discrete", "n": 2}
    for _ in range(depth):
        space = {"type": "Tuple", "subspaces": [space]}
    return space


NONSENSE = [
    {},
    {"type": "Sphere"},
    {"type": "Box", "dtype": "float32"},
    {"type": "Discrete"},
    {"type": "Box", "dtype": "uint8", "shape": [1], "low": [-1], "high": [300]},
    {"type": "Box", "dtype": "float32", "shape": [2**40], "low": 0, "high": 1},
    nested(5000),
]


NONSENSE += [
    {"type": kind, "dtype": dtype, "shape": [1], "low": [0], "high": [1], "nvec": [2]}
    for kind in ("Box", "MultiDiscrete")
    for dtype in ("(1,,2)i4", "f4,f4", "S5", "O", ["f4"], {"names": ["a"], "formats": ["f4"]})
]


@pytest.mark.parametrize("obj", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_one_clear_line(obj):
    with pytest.raises(DatasetError, match="allowed: Box, Discrete") as caught:
        space_from_json(obj)
    assert "\n" not in str(caught.value)


def test_different_spaces_differ():
    assert not spaces_equal(spaces.Discrete(2), spaces.Discrete(3))
    assert not spaces_equal(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,), np.float64))


def test_describe_is_short():
    assert describe_space(spaces.Box(-2, 2, (1,), np.float32)) == "Box(-2.0, 2.0, (1,), float32)"
    assert "\n" not in describe_space(spaces.Box(0, np.arange(1, 100, dtype=np.float32), (99,)))


def test_infer_box():
    box = infer_box([-1, 0], [1, 5], (2,), np.float32)
    assert box == spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
