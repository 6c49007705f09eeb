"""Batches and episodes that do not fit their module: one line says so, before anything is trained on them."""

import gymnasium
import numpy as np
import pytest
import torch
from group_cases import group_config, make_episode, rows_of
from gymnasium import spaces
from learner_cases import ACTIONS, OBSERVATIONS, make_batch, make_learner

from dask_rl.learners.batch import DEFAULT_MODULE_ID
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.iterator import IterableSource
from dask_rl.learners.layout_checks import check_episodes, check_layout, checked_batch
from dask_rl.learners.module import MultiRLModuleSpec, RLModuleSpec
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import ConfigError

SPECS = {kind: MultiRLModuleSpec.of(RLModuleSpec(OBSERVATIONS, space)) for kind, space in ACTIONS.items()}
BOX = spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict({"pose": spaces.Tuple([BOX, spaces.Discrete(3, start=1)]), "keys": spaces.MultiDiscrete([2, 4])})

WRONG = {
    "actions of another shape": (
        "continuous",
        {"actions": torch.zeros(4, 3)},
        r"actions: got shape \(4, 3\).*\(B, 2\)",
    ),
    "actions that would broadcast": ("continuous", {"actions": torch.zeros(4, 1)}, r"actions: got shape \(4, 1\)"),
    "choices with an axis more": ("discrete", {"actions": torch.ones(4, 1).long()}, r"allowed: \(B,\)"),
    "observations of another shape": ("continuous", {"observations": torch.zeros(4, 2)}, r"observations: got shape"),
    "flat ones": ("continuous", {"next_observations": torch.zeros(4)}, r"next_observations: got shape \(4,\)"),
    "choices as floats": ("discrete", {"actions": torch.full((4,), 1.9)}, "actions: got torch.float32; .*integers"),
    "complex observations": ("continuous", {"observations": torch.zeros(4, 3) * 1j}, "got torch.complex64"),
    "complex rewards": ("continuous", {"rewards": torch.zeros(4) * 1j}, "rewards: got torch.complex64"),
}
UNLIKELY = {
    "negative mask": ("continuous", {"mask": -torch.ones(4)}, "mask: got the value -1; allowed: 0 or 1"),
    "mask of NaN": ("continuous", {"mask": torch.full((4,), torch.nan)}, "mask: got the value nan"),
    "many terminations": ("continuous", {"terminations": torch.full((4,), 7.0)}, "terminations: got the value 7"),
    "choices that there are none of": ("discrete", {"actions": torch.full((4,), 4)}, "choice 4; allowed: 1 to 3"),
}
STRANGE = {
    "no axis": ({"observations": torch.tensor(1.0)}, r"observations: got torch.strided, shape \(\)"),
    "sparse": ({"observations": torch.zeros(4, 3).to_sparse()}, "observations: got torch.sparse_coo"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("as_iterator", [False, True])
def test_a_learner_takes_no_step_with_a_batch_of_another_layout(name, as_iterator):
    kind, fields, message = WRONG[name]
    learner, good = make_learner({"name": "iql"}, kind), make_batch(kind, 4)
    bad = {**good, **fields}
    if as_iterator:
        request = {"source": IterableSource([good, bad], "x"), "num_iters": 2}
    else:
        request = {"batch": {DEFAULT_MODULE_ID: bad}}
    with pytest.raises(ConfigError, match=f"^batch: .*{message}"):
        learner.run(UpdateRequest(1, **request))
    assert learner.step == int(as_iterator)


@pytest.mark.parametrize("name", WRONG | UNLIKELY)
def test_the_driver_refuses_what_no_batch_can_be(name):
    kind, fields, message = (WRONG | UNLIKELY)[name]
    checked_batch(make_batch(kind, 4), SPECS[kind])
    with pytest.raises(ConfigError, match=message):
        checked_batch({**make_batch(kind, 4), **fields}, SPECS[kind])


def test_a_batch_is_refused_before_it_is_counted():
    with LearnerGroup(group_config(0), module_spec=SPECS["continuous"]) as group:
        for fields, message in [WRONG["actions that would broadcast"][1:], *STRANGE.values()]:
            with pytest.raises(ConfigError, match=message):
                group.update_from_batch({**rows_of(4), **fields})
        episode = make_episode(4, 0)
        wide = type(episode)(
            episode.observations,
            np.zeros((4, 5), np.float32),
            episode.rewards,
            episode.terminations,
            episode.truncations,
        )
        with pytest.raises(ConfigError, match=r"episodes of module 'default_module': actions: got shape \(4, 5\)"):
            group.update_from_episodes([episode, wide])
        assert group.get_stats()["num_update_calls"] == 0
        group.update_from_episodes([episode])


def test_choices_of_episodes():
    def episode(actions):
        made = make_episode(4, 0)
        return type(made)(made.observations, actions, made.rewards, made.terminations, made.truncations)

    check_episodes([episode(np.array([1, 2, 3, 1]))], SPECS["discrete"])
    with pytest.raises(ConfigError, match="actions: got the choice 0; allowed: 1 to 3"):
        check_episodes([episode(np.array([1, 2, 3, 1])), episode(np.array([1, 2, 3, 0]))], SPECS["discrete"])
    with pytest.raises(ConfigError, match="actions: got float64"):
        check_episodes([episode(np.array([1.0, 2, 3, 1]))], SPECS["discrete"])


def nested_batch(*leading):
    return {
        "observations/pose/0": torch.zeros(*leading, 2),
        "observations/pose/1": torch.ones(leading, dtype=torch.int32),
        "next_observations/keys": torch.ones(*leading, 2, dtype=torch.int64),
        "actions": torch.zeros(*leading, 2),
        "mine": torch.zeros(leading[0], 9),
    }


@pytest.mark.parametrize("leading", [(4,), (4, 5)])
def test_parts_of_nested_spaces_and_sequences(leading):
    spec, good = MultiRLModuleSpec.of(RLModuleSpec(NESTED, BOX)), nested_batch(*leading)
    if len(leading) == 2:
        good |= {"sequence_mask": torch.arange(5).expand(leading) < 3, "timesteps": torch.zeros(leading).long()}
        good["observations/pose/1"][:, 3:] = 0  # padding need not be a choice
    checked_batch(good, spec)
    for name, values, message in [
        ("observations/pose/0", torch.zeros(*leading, 3), r"observations/pose/0: got shape"),
        ("observations/pose/1", torch.zeros(leading), "observations/pose/1: got torch.float32"),
        ("observations/pose/1", torch.zeros(leading).long(), "the choice 0; allowed: 1 to 3"),
        ("next_observations/keys", torch.full((*leading, 2), 3), "the choice 3|the choice .*"),
    ]:
        with pytest.raises(ConfigError, match=message):
            checked_batch({**good, name: values}, spec)


def test_what_never_was_observed_need_not_be_a_choice():
    spec = MultiRLModuleSpec.of(RLModuleSpec(spaces.Discrete(2), BOX))
    batch = {"next_observations": torch.tensor([0, 9]), "next_valid": torch.tensor([True, False])}
    checked_batch(batch, spec)
    with pytest.raises(ConfigError, match="the choice 9"):
        checked_batch({**batch, "next_valid": torch.tensor([True, True])}, spec)


def test_images_and_stacked_frames_are_of_their_space():
    image = spaces.Box(0, 255, (4, 8, 8, 3), np.uint8)
    check_layout("p", {"observations": torch.zeros(2, 4, 8, 8, 3, dtype=torch.uint8)}, RLModuleSpec(image, BOX))
    with pytest.raises(ConfigError, match=r"batch of module 'p': observations: got shape \(2, 8, 8, 3\)"):
        check_layout("p", {"observations": torch.zeros(2, 8, 8, 3, dtype=torch.uint8)}, RLModuleSpec(image, BOX))


@pytest.mark.parametrize("which", ["observation", "action"])
def test_a_box_without_axes_is_refused_when_a_learner_is_built(which):
    scalar = gymnasium.spaces.Box(-1, 1, (), np.float32)
    given = (scalar, BOX) if which == "observation" else (BOX, scalar)
    with pytest.raises(ConfigError, match=f"{which} space: got .* of shape"):
        LearnerGroup(group_config(0, {"name": "bc"}), module_spec=RLModuleSpec(*given))
