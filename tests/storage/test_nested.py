import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_rl.storage.errors import InvalidDataError
from dask_rl.storage.nested import (
    flatten,
    flatten_space,
    is_nested,
    map_columns,
    parts_of,
    stack_elements,
    subspaces,
    take_element,
    unflatten,
)

KEYS = st.text("abcXYZ019_.-", min_size=1, max_size=4).filter(lambda key: key[0] not in ".-")
COLUMNS = st.recursive(
    st.integers(0, 3).map(lambda rows: np.arange(rows)),
    lambda parts: st.dictionaries(KEYS, parts, min_size=1, max_size=3),
    max_leaves=6,
)
SPACE = spaces.Dict(
    {
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3, start=-1))),
        "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
        "flags": spaces.MultiBinary(2),
    }
)


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return not isinstance(b, dict) and np.array_equal(a, b)


@settings(max_examples=50, deadline=None)
@given(COLUMNS)
def test_flattening_and_back(value):
    columns = flatten("observations", value)
    assert all(path == "observations" or path.startswith("observations/") for path in columns)
    others = {"observation": np.zeros(1), "observations2/x": np.zeros(1), "next_observations/x": np.zeros(1)}
    assert same(unflatten("observations", {**others, **columns}), value)
    doubled = flatten("observations", map_columns(lambda column: 2 * column, value))
    assert all(np.array_equal(doubled[path], 2 * column) for path, column in columns.items())


def test_paths_and_no_copies():
    image, angle, rest = np.zeros((3, 4)), np.ones(3), np.arange(3)
    columns = flatten("observations", {"image": image, "pose": {"0": angle, "1": rest}})
    assert list(columns) == ["observations/image", "observations/pose/0", "observations/pose/1"]
    assert columns["observations/image"] is image
    assert flatten("actions", angle) == {"actions": angle}
    assert list(flatten("rewards", [1.0, 2.0])["rewards"]) == [1.0, 2.0]


@pytest.mark.parametrize("key", ["", "a/b", "..", ".a", "-a", "a b", "ä", 3, "zarr.json", "a\n"])
def test_keys_that_can_be_no_part_of_a_path(key):
    with pytest.raises(InvalidDataError, match=r"observations/x: got the key .*; allowed: letters"):
        flatten("observations", {"x": {key: np.zeros(2)}})
    with pytest.raises(InvalidDataError, match=r"observations: got the key"):
        flatten_space("observations", spaces.Dict([(key, spaces.Discrete(2))]))


def test_mappings_without_parts_and_columns_that_are_whole_and_part():
    with pytest.raises(InvalidDataError, match="observations/x: got no parts"):
        flatten("observations", {"x": {}})
    with pytest.raises(InvalidDataError, match="actions: got no parts"):
        flatten_space("actions", spaces.Tuple(()))
    with pytest.raises(InvalidDataError, match="observations: got no such column"):
        unflatten("observations", {"actions": np.zeros(1)})
    with pytest.raises(InvalidDataError, match=r"observations: got both it and \['x'\]"):
        unflatten("observations", {"observations": np.zeros(1), "observations/x": np.zeros(1)})


def test_spaces_of_the_parts():
    found = flatten_space("observations", SPACE)
    assert found == {
        "observations/flags": SPACE["flags"],
        "observations/image": SPACE["image"],
        "observations/pose/0": SPACE["pose"][0],
        "observations/pose/1": SPACE["pose"][1],
    }
    assert flatten_space("actions", spaces.Discrete(3)) == {"actions": spaces.Discrete(3)}
    assert is_nested(SPACE)
    assert not is_nested(SPACE["image"])
    assert subspaces(SPACE["image"]) is None


def test_elements_become_columns_and_elements_again():
    SPACE.seed(0)
    elements = [SPACE.sample() for _ in range(5)]
    columns = stack_elements("observations", SPACE, elements)
    assert columns["image"].shape == (5, 4, 4, 1)
    assert columns["image"].dtype == np.uint8
    assert columns["pose"]["1"].tolist() == [int(element["pose"][1]) for element in elements]
    for row, element in enumerate(elements):
        back = take_element(SPACE, columns, row)
        assert SPACE.contains(back)
        wanted, got = (parts_of("x", SPACE, each) for each in (element, back))
        assert all(np.array_equal(got[path], wanted[path]) for path in wanted)
    assert take_element(spaces.Discrete(3), np.array([2, 1]), 1) == 1
    with pytest.raises(InvalidDataError, match="element: got ndarray; allowed: Dict"):
        take_element(SPACE, np.zeros((5, 2)), 0)


def test_parts_of_an_element_by_path():
    element = {"image": np.zeros((4, 4, 1)), "pose": (np.ones(2), 2), "flags": [0, 1], "more": 3}
    parts = parts_of("x", SPACE, element)
    assert sorted(parts) == ["x/flags", "x/image", "x/pose/0", "x/pose/1"]
    assert parts["x/pose/1"].shape == ()
    assert sorted(parts_of("x", SPACE, {**element, "pose": {"0": np.ones(2), "1": 2}})) == sorted(parts)
    assert parts_of("x", SPACE["image"], element["image"])["x"] is element["image"]
    for broken, words in (
        ({**element, "pose": (np.ones(2),)}, "x/pose: got tuple without part '1'"),
        (3, "x: got int"),
    ):
        with pytest.raises(InvalidDataError, match=words):
            parts_of("x", SPACE, broken)
