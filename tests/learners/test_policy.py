import gymnasium
import numpy as np
import numpy.testing as npt
import pytest
import torch
from distributed.protocol import deserialize, serialize
from learner_cases import ACTIONS, OBSERVATIONS, make_learner, observation_space

from dask_rl.learners.batch import observations_of
from dask_rl.learners.module import RLModuleSpec
from dask_rl.learners.policy import Policy
from dask_rl.storage.errors import InvalidDataError
from dask_rl.storage.nested import flatten, stack_elements
from dask_rl.storage.transforms import Normalize


def make_policy(kind, normalize=None, **settings):
    learner = make_learner({"name": "iql", **settings}, kind)
    weights = learner.module["default_module"].get_state(inference_only=True)
    spec = RLModuleSpec(OBSERVATIONS, ACTIONS[kind])
    return learner, Policy(spec, learner.config.algorithm, weights, normalize)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_acts_as_the_learners_module_and_travels(kind):
    learner, policy = make_policy(kind, dropout=0.5)
    observations = np.random.default_rng(0).normal(size=(20, 3))
    expected = learner.module["default_module"].forward_inference(torch.from_numpy(observations)).detach().numpy()
    for one in (policy, deserialize(*serialize(policy))):
        actions = one(observations)
        assert actions.dtype == ACTIONS[kind].dtype
        npt.assert_allclose(actions, expected, rtol=1e-5)


def test_discrete_actions_begin_at_the_spaces_start():
    learner, _ = make_policy("discrete")
    module = learner.module["default_module"]
    for choice in range(3):
        bias = np.full(3, -50.0)
        bias[choice] = 50
        module.set_state({"policy.network.layers.2.bias": bias})
        weights = module.get_state(inference_only=True)
        policy = Policy(RLModuleSpec(OBSERVATIONS, ACTIONS["discrete"]), learner.config.algorithm, weights)
        assert policy(np.zeros((2, 3))).tolist() == [choice + 1] * 2


def test_observations_are_normalised_as_in_training():
    normalize = Normalize(mean=np.array([1.0, 2.0, 3.0]), std=np.array([2.0, 0.5, 1.0]))
    _, plain = make_policy("continuous")
    _, policy = make_policy("continuous", normalize)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    npt.assert_array_equal(policy(observations), plain(normalize.apply(observations)))
    assert not np.array_equal(policy(observations), plain(observations))


def test_unbounded_means_are_clipped_to_one_sided_bounds():
    space = gymnasium.spaces.Box(np.array([0.0, -1.0], np.float32), np.array([np.inf, 1.0], np.float32))
    learner = make_learner({"name": "bc"})
    spec = RLModuleSpec(OBSERVATIONS, space)
    module = learner.algorithms["default_module"].build_module(spec)
    module.set_state({"policy.network.layers.2.bias": np.array([-50.0, 50.0])})
    policy = Policy(spec, learner.config.algorithm, module.get_state())
    assert policy(np.zeros((1, 3))).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_one_observation_is_acted_on_as_in_a_batch(kind):
    _, policy = make_policy(kind)
    observations = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    for observation, action in zip(observations, policy(observations), strict=True):
        assert policy.action_space.contains(policy(observation))
        npt.assert_allclose(policy(observation), action, rtol=1e-6)


def test_it_shows_what_it_is():
    _, policy = make_policy("discrete")
    assert repr(policy).startswith("Policy(algorithm=iql, observations=Box(")
    html = policy._repr_html_()
    assert "<caption>policy</caption>" in html
    assert f"<td>{sum(p.numel() for p in policy._module.parameters())}</td>" in html


def test_building_one_takes_none_of_torchs_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    make_policy("continuous")
    assert torch.equal(torch.rand(2), expected)


def nested_policy(normalize=None):
    kind = "continuous-nested"
    learner = make_learner({"name": "iql"}, kind, precision="fp32")
    weights = learner.module["default_module"].get_state(inference_only=True)
    return learner, Policy(
        RLModuleSpec(observation_space(kind), ACTIONS[kind]), learner.config.algorithm, weights, normalize
    )


def test_elements_of_nested_spaces_are_acted_on_one_by_one_or_many_at_once():
    learner, policy = nested_policy()
    policy.observation_space.seed(0)
    elements = [policy.observation_space.sample() for _ in range(4)]
    columns = stack_elements("observations", policy.observation_space, elements)
    actions = policy(columns)
    assert actions.shape == (4, 2)
    batch = {path: torch.from_numpy(column) for path, column in flatten("observations", columns).items()}
    expected = learner.module["default_module"].forward_inference(observations_of(batch)).detach().numpy()
    npt.assert_allclose(actions, expected, rtol=1e-5)
    for element, action in zip(elements, actions, strict=True):  # tuples in mappings, as Gymnasium gives them
        npt.assert_allclose(policy(element), action, rtol=1e-5)
    as_tuples = {**columns, "pose": tuple(columns["pose"].values())}
    npt.assert_array_equal(policy(as_tuples), actions)
    with pytest.raises(InvalidDataError, match="observations: got dict without part 'pose'"):
        policy({key: part for key, part in columns.items() if key != "pose"})


def test_parts_are_normalised_by_path():
    normalize = Normalize(mean=(1.0, 2.0, 3.0), std=(2.0, 0.5, 1.0))
    _, plain = nested_policy()
    _, policy = nested_policy({"observations/pose/0": normalize})
    policy.observation_space.seed(1)
    columns = stack_elements(
        "observations", policy.observation_space, [policy.observation_space.sample() for _ in "abc"]
    )
    changed = {**columns, "pose": {**columns["pose"], "0": normalize.apply(columns["pose"]["0"])}}
    npt.assert_array_equal(policy(columns), plain(changed))
    assert not np.array_equal(policy(columns), plain(columns))


def test_images_stay_bytes_and_may_be_read_only():
    kind = "discrete-images"
    learner = make_learner({"name": "bc"}, kind, precision="fp32")
    spec = RLModuleSpec(observation_space(kind), ACTIONS[kind])
    policy = Policy(spec, learner.config.algorithm, learner.module["default_module"].get_state())
    images = np.random.default_rng(0).integers(0, 256, (3, *spec.observation_space.shape), np.uint8)
    images.flags.writeable = False
    actions = policy(images)
    assert [int(policy(image)) for image in images] == actions.tolist()
