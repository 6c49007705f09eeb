import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_rl.storage.episode import Episode


def episode(length, terminated=True, has_final=True):
    ends = np.arange(length) == length - 1
    return Episode(
        np.arange(length + 1, dtype=np.float32)[:, None],
        np.arange(length),
        np.arange(length, dtype=np.float32) / 7,
        ends & terminated,
        ends & (not terminated),
        infos={"behavior_logp": -np.arange(length, dtype=np.float32)},
        has_final_observation=has_final,
        id=9,
        seed=4,
    )


@given(st.data(), st.integers(1, 30), st.booleans(), st.booleans())
def test_parts_end_only_where_the_episode_does(data, length, terminated, has_final):
    whole = episode(length, terminated, has_final)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    part = whole.part(start, stop)
    assert len(part) == stop - start
    for name in ("actions", "rewards", "terminations", "truncations"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[start:stop])
    np.testing.assert_array_equal(part.observations, whole.observations[start : stop + 1])
    np.testing.assert_array_equal(part.infos["behavior_logp"], whole.infos["behavior_logp"][start:stop])
    at_end = stop == length
    assert part.terminated == (at_end and terminated)
    assert part.truncated == (at_end and not terminated)
    assert part.has_final_observation == (has_final or not at_end)
    assert (part.id, part.seed) == (9, 4)


def test_parts_are_views():
    whole = episode(5)
    part = whole.part(1, 4)
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        assert np.shares_memory(getattr(part, name), getattr(whole, name))


@pytest.mark.parametrize("bounds", [(2, 2), (3, 2), (5, 9)])
def test_a_part_without_steps_is_refused(bounds):
    with pytest.raises(ValueError, match="episode: got 0 steps"):
        episode(5).part(*bounds)
