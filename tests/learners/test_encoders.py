import numpy as np
import numpy.testing as npt
import pytest
import torch
from gymnasium import spaces

from dask_rl.learners.batch import observations_of
from dask_rl.learners.encoders import encode, encoded_size, make_encoder
from dask_rl.learners.images import ImageConfig
from dask_rl.learners.networks import MLP, EnsembleMLP
from dask_rl.learners.observation_networks import ObservationEnsemble, ObservationMLP
from dask_rl.storage.errors import ConfigError

IMAGES = ImageConfig(convolutions=[(2, 2)], num_features=3)
SPACE = spaces.Dict(
    {
        "z": spaces.Box(-1, 1, (2, 2), np.float64),
        "choice": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiDiscrete([2, 3], start=[1, 0]))),
        "flags": spaces.MultiBinary((2, 1)),
        "bytes": spaces.Box(0, 255, (2,), np.uint8),
        "camera": spaces.Box(0, 255, (3, 4, 1), np.uint8),
    }
)
BATCH = {
    "rewards": torch.zeros(2),
    "observations/z": torch.arange(8.0).reshape(2, 2, 2).double(),
    "observations/choice/0": torch.tensor([-1, 1]),
    "observations/choice/1": torch.tensor([[2, 0], [1, 2]]),
    "observations/flags": torch.tensor([[[1], [0]], [[0], [1]]], dtype=torch.int8),
    "observations/bytes": torch.tensor([[0, 255], [7, 8]], dtype=torch.uint8),
    "observations/camera": torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4, 1),
    "next_observations/z": torch.full((2, 2, 2), 9.0).double(),
}


def test_parts_stand_side_by_side_in_the_order_of_their_paths():
    encoder = make_encoder(SPACE, IMAGES).double()
    got = encode(encoder, observations_of(BATCH))
    assert got.dtype == torch.float64
    assert got.shape == (2, encoded_size(encoder, SPACE)) == (2, 2 + 3 + 3 + 5 + 2 + 4)
    camera = encoder.parts[1](BATCH["observations/camera"])
    rest = np.array(
        [
            # 2 bytes, 3 of choice/0, 5 of choice/1, 2 flags, 4 of z
            [0, 255, 1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 2, 3],
            [7, 8, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 4, 5, 6, 7],
        ]
    )
    npt.assert_array_equal(got.detach()[:, [0, 1, *range(5, 19)]].numpy(), rest)
    assert torch.equal(got[:, 2:5], camera)
    assert list(observations_of(BATCH, "next_observations")) == ["z"]
    assert observations_of({"observations": BATCH["rewards"]}) is BATCH["rewards"]


@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        (spaces.Discrete(3, start=5), [5, 7], [[1, 0, 0], [0, 0, 1]]),
        (spaces.MultiDiscrete([[2], [2]]), [[[0], [1]], [[1], [1]]], [[1, 0, 0, 1], [0, 1, 0, 1]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
    ],
)
def test_choices_and_flags_by_themselves(space, values, expected):
    encoder = make_encoder(space, IMAGES)
    for dtype in (torch.int64, torch.float32):  # a learner casts what is not nested
        assert encode(encoder, torch.tensor(values, dtype=dtype)).tolist() == expected
    assert encoded_size(encoder, space) == len(expected[0])


@pytest.mark.parametrize("brightest", [1, 15, 255])
def test_the_largest_value_of_an_image_counts_as_1(brightest):
    def encode_full(high):
        torch.manual_seed(0)
        encoder = make_encoder(spaces.Box(0, high, (3, 4, 1), np.uint8), IMAGES)
        return encode(encoder, torch.full((1, 3, 4, 1), high, dtype=torch.uint8))

    assert torch.equal(encode_full(brightest), encode_full(1))


def test_a_box_of_numbers_costs_nothing():
    """The networks of before: the same parameters by name, the same random numbers, the same outputs."""
    space = spaces.Box(-1, 1, (2, 3), np.float32)
    assert make_encoder(space, IMAGES) is None
    x = torch.randn(4, 2, 3)
    pairs = []
    for make in (
        lambda: (ObservationMLP(space, (5,), 2), ObservationEnsemble(2, space, 1, (5,), 2)),
        lambda: (MLP(6, (5,), 2), EnsembleMLP(2, 7, (5,), 2)),
    ):
        torch.manual_seed(0)
        pairs.append(make())
    for mine, plain in zip(*pairs, strict=True):
        assert list(mine.state_dict()) == list(plain.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), plain.parameters(), strict=True))
    others = torch.randn(4, 1)
    assert torch.equal(pairs[0][0](x), pairs[1][0](x.flatten(1)))
    assert torch.equal(pairs[0][1](x, others), pairs[1][1](torch.cat([x.flatten(1), others], 1)))


def test_every_network_has_an_encoder_of_its_own():
    a, b = ObservationMLP(SPACE, (5,), 2, IMAGES), ObservationEnsemble(2, SPACE, 3, (5,), 2, IMAGES)
    assert not {id(p) for p in a.parameters()} & {id(p) for p in b.parameters()}
    assert {name for name in a.state_dict() if name.startswith("encoder.")} == {
        f"encoder.parts.1.{name}"
        for name in ("convolutions.0.weight", "convolutions.0.bias", "linear.weight", "linear.bias")
    }


def test_parts_that_are_missing_are_named():
    encoder = make_encoder(SPACE, IMAGES)
    some = {"z": BATCH["observations/z"], "flags": BATCH["observations/flags"]}
    with pytest.raises(
        ConfigError, match="batch: observations: got no part bytes, camera, choice/0, choice/1; allowed"
    ):
        encode(encoder, some)
    with pytest.raises(ConfigError, match="batch: observations: got no part bytes"):
        encode(encoder, torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="batch: observations: got parts flags, z; allowed: one tensor"):
        encode(None, dict(sorted(some.items())))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(3), r"observation space: got Text.*allowed: Box, Discrete"),
        (spaces.Dict(a=spaces.Tuple((spaces.Text(3),))), r"observation space: observations/a/0: got Text"),
        (spaces.Dict({"a/b": spaces.Discrete(2)}), "observation space: observations: got the key 'a/b'"),
        (spaces.Dict(a=spaces.Box(0, 255, (2, 2, 1), np.uint8)), "images of observations/a: got 2 × 2 pixels"),
    ],
)
def test_spaces_that_no_network_takes(space, words):
    with pytest.raises(ConfigError, match=words):
        make_encoder(space, ImageConfig())


def test_the_order_of_a_dicts_keys_is_of_no_matter():
    """A space that was saved comes back with sorted keys; the weights must still be those of the same inputs."""
    pairs = [("z", spaces.Box(-1, 1, (2,), np.float32)), ("a", spaces.Discrete(2))]
    batch = {"z": torch.tensor([[3.0, 4.0]]), "a": torch.tensor([1])}
    for space in (spaces.Dict(pairs), spaces.Dict(dict(pairs))):
        assert encode(make_encoder(space, IMAGES), batch).tolist() == [[0, 1, 3, 4]]
