import torch

from dask_rl.learners.noise import NoiseBuffers


def buffers(seed=0, module_id="m"):
    return NoiseBuffers({"b": (3,), "a": ()}, seed, torch.float64, torch.device("cpu"), module_id=module_id)


def draw(noise, *args):
    return {name: tensor.clone() for name, tensor in noise.draw(*args).items()}


def test_noise_depends_on_shards_and_not_on_who_owns_them():
    whole = draw(buffers(), 5, (0, 1, 2, 3), 2)
    for shards in ((0, 2), (1, 3)):
        part = draw(buffers(), 5, shards, 2)
        rows = torch.cat([torch.arange(2) + 2 * shard for shard in shards])
        for name, tensor in whole.items():
            assert torch.equal(part[name], tensor[rows])


def test_every_step_shard_seed_module_and_name_has_noise_of_its_own():
    one = draw(buffers(), 5, (0, 1), 4)
    assert one["a"].shape == (8,)
    assert one["b"].shape == (8, 3)
    assert not torch.equal(one["a"][:4], one["a"][4:])
    assert not torch.equal(one["a"], one["b"][:, 0])
    assert not torch.equal(one["a"], draw(buffers(), 6, (0, 1), 4)["a"])
    assert not torch.equal(one["a"], draw(buffers(1), 5, (0, 1), 4)["a"])
    assert not torch.equal(one["a"], draw(buffers(module_id="n"), 5, (0, 1), 4)["a"])
    noise = buffers()
    draw(noise, 4, (1,), 3)
    assert torch.equal(draw(noise, 5, (0, 1), 4)["a"], one["a"])


def test_noise_is_uniform():
    values = buffers().draw(0, (0,), 20_000)["b"]
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    buffers().draw(0, (0,), 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_shapes_no_noise():
    assert NoiseBuffers({}, 0, torch.float32, torch.device("cpu"), module_id="m").draw(0, (0,), 4) == {}
