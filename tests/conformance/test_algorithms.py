"""What every algorithm must do, for every kind of action space that it supports.

A new algorithm adds its variants to tests/support/algorithm_cases.py and passes.
"""

import json

import gymnasium
import numpy as np
import pytest
import torch
from algorithm_cases import (
    CASES,
    COMPILED,
    COMPILED_OTHERS,
    OTHERS,
    UNSUPPORTED,
    checked_losses,
    noise_for,
    relative,
)
from jaxtyping import TypeCheckError
from learner_cases import (
    ACTIONS,
    OBSERVATIONS,
    ShardedSource,
    gradients,
    make_batch,
    make_learner,
    observation_space,
    update,
    weights,
)
from learner_peers import run_in_threads

from dask_rl.learners.algorithms.registry import algorithm_names, build_algorithm, get_algorithm, parse_algorithm
from dask_rl.learners.batch import DEFAULT_MODULE_ID, num_rows, observations_of, split_batch
from dask_rl.learners.module import RLModuleSpec
from dask_rl.learners.policy import Policy
from dask_rl.learners.request import UpdateRequest
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.nested import unflatten

all_cases = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_registered_algorithm_is_here():
    covered = {(case.settings["name"], case.kind) for case in CASES}
    wanted = {(name, kind) for name in algorithm_names() for kind in ACTIONS if kind not in UNSUPPORTED.get(name, ())}
    assert covered == wanted


@all_cases
def test_builds_and_acts_inside_its_space(case):
    learner = make_learner(case.settings, case.kind, precision="fp32")
    module = learner.module[DEFAULT_MODULE_ID]
    batch = make_batch(case.kind, 6, dtype=torch.float32)
    batch = {name: 5 * tensor if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
    observations = observations_of(batch)
    assert module.forward_inference(observations).shape == (6, *ACTIONS[case.kind].shape)
    inference = module.get_state(inference_only=True)
    assert set(inference) <= set(module.state_dict())
    spec = RLModuleSpec(observation_space(case.kind), ACTIONS[case.kind])
    policy = Policy(spec, learner.config.algorithm, inference)
    seen = unflatten("observations", {path: tensor.numpy() for path, tensor in batch.items()})
    for action, raw in zip(policy(seen), module.forward_inference(observations), strict=True):
        assert ACTIONS[case.kind].contains(action)
        np.testing.assert_allclose(action, raw.detach().numpy(), rtol=1e-6)
    assert not any(isinstance(part, torch.nn.Dropout) for part in module.modules())


@pytest.mark.parametrize("name", algorithm_names())
@pytest.mark.parametrize(
    "spec",
    [
        RLModuleSpec(OBSERVATIONS, gymnasium.spaces.MultiDiscrete([2, 3])),
        RLModuleSpec(OBSERVATIONS, gymnasium.spaces.Box(0, 5, (2,), np.int64)),
        RLModuleSpec(OBSERVATIONS, gymnasium.spaces.Dict({"x": ACTIONS["continuous"]})),
        RLModuleSpec(gymnasium.spaces.Text(4), ACTIONS["discrete"]),
        RLModuleSpec(gymnasium.spaces.Dict({"x": gymnasium.spaces.Text(4)}), ACTIONS["continuous"]),
    ],
    ids=lambda spec: f"{type(spec.observation_space).__name__}-{type(spec.action_space).__name__}",
)
def test_refuses_other_spaces(name, spec):
    algorithm = build_algorithm(parse_algorithm({"name": name}))
    with pytest.raises(ConfigError, match=r"space.*: got .*; allowed: .*; .+\.$"):
        algorithm.build_module(spec)
    for kind in UNSUPPORTED[name]:
        with pytest.raises(ConfigError, match=r"action space: got .*; allowed: .*; .+\.$"):
            algorithm.build_module(RLModuleSpec(OBSERVATIONS, ACTIONS[kind]))


@all_cases
def test_config_survives_json_and_refuses_what_it_does_not_know(case):
    config = parse_algorithm(case.settings)
    assert parse_algorithm(json.loads(config.model_dump_json())) == config
    with pytest.raises(ConfigError, match="temprature"):
        parse_algorithm({**case.settings, "temprature": 3})
    assert get_algorithm(case.settings["name"]).Config.model_config["frozen"]


@all_cases
def test_steps_lower_its_losses(case):
    settings = {**case.settings, **case.smooth, "learning_rate": 1e-3}
    learner = make_learner(settings, case.kind)
    batch = make_batch(case.kind, 64)
    totals = [update(learner, batch)[DEFAULT_MODULE_ID]["total_loss"] for _ in range(30)]
    assert totals[1] < totals[0]
    assert totals[-1] < totals[0] - 0.01


@all_cases
def test_gradient_sums_of_parts_are_those_of_the_whole(case):
    learner = make_learner(case.settings, case.kind)
    update(learner, make_batch(case.kind, 8, seed=9))  # targets and critics part ways
    batch = make_batch(case.kind, 11)
    batch["mask"] = torch.ones(11, dtype=torch.float64)
    batch["mask"][[2, 7]] = 0
    noise = noise_for(learner, 11)
    whole = gradients(learner, batch, noise)
    for num_parts in (2, 3):
        sums = {key: torch.zeros_like(value) for key, value in whole.items()}
        cut_noise = split_batch(noise, num_parts) if noise else [{}] * num_parts
        for part, part_noise in zip(split_batch(batch, num_parts), cut_noise, strict=True):
            for key, value in gradients(learner, part, part_noise).items():
                sums[key] += value
        for key, value in whole.items():
            assert relative(sums[key], value) < 1e-12, key


@all_cases
def test_one_two_and_four_learners_end_with_the_same_weights(case):
    ends = {}
    for size in (1, 2, 4):
        learners = [make_learner(case.settings, case.kind) for _ in range(size)]  # built before threads: one seed

        def train(collective, learners=learners):
            learner = learners[collective.rank]
            learner.join(collective)
            source = ShardedSource(case.kind, tuple(range(collective.rank, 4, collective.size)))
            learner.run(UpdateRequest(1, source=source, num_iters=8))
            return learner.flat.data.clone()

        datas = run_in_threads(size, train)
        assert all(torch.equal(datas[0], data) for data in datas), "ranks differ"
        ends[size] = datas[0]
    assert not torch.equal(make_learner(case.settings, case.kind).flat.data, ends[1]), "nothing was learned"
    assert relative(ends[2], ends[1]) < 1e-9
    assert relative(ends[4], ends[1]) < 1e-9


@all_cases
def test_going_on_after_restoring_is_bit_identical(case, tmp_path):
    source = ShardedSource(case.kind, (0, 1, 2, 3))

    def run(learner, number):
        result = learner.run(UpdateRequest(number, source=source, num_iters=4))[DEFAULT_MODULE_ID]
        return {key: value for key, value in result.items() if "loss" in key or "norm" in key or "rate" in key}

    settings = {**case.settings, "grad_clip": 0.5}
    learner = make_learner(settings, case.kind, num_steps=8, precision="fp32")
    run(learner, 1)
    learner.save_to_path(tmp_path / "checkpoint")
    expected = run(learner, 2)
    other = make_learner(settings, case.kind, num_steps=8, precision="fp32")
    other.module[DEFAULT_MODULE_ID].set_state(
        {name: torch.full_like(t, 7) for name, t in other.module[DEFAULT_MODULE_ID].get_state().items()}
    )
    other.restore_from_path(tmp_path / "checkpoint")
    assert run(other, 2) == expected
    assert (other.step, other.weights_seq_no) == (8, 2)
    mine, theirs = weights(learner), weights(other)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    for key, optimizer in learner.optimizers.items():
        for a, b in zip(optimizer.tensors(), other.optimizers[key].tensors(), strict=True):
            assert torch.equal(a, b)


@all_cases
def test_bfloat16_is_near(case):
    batch = make_batch(case.kind, 64, dtype=torch.float32)
    exact, near = (make_learner(case.settings, case.kind, precision=precision) for precision in ("fp32", "bf16"))
    noise = noise_for(exact, 64)
    for phase in exact.algorithms[DEFAULT_MODULE_ID].phases():
        wanted = exact.compute_gradients(
            {DEFAULT_MODULE_ID: phase}, {DEFAULT_MODULE_ID: batch}, {DEFAULT_MODULE_ID: noise}
        )
        got = near.compute_gradients({DEFAULT_MODULE_ID: phase}, {DEFAULT_MODULE_ID: batch}, {DEFAULT_MODULE_ID: noise})
        for name, loss in wanted[DEFAULT_MODULE_ID].items():
            assert got[DEFAULT_MODULE_ID][name].dtype == torch.float32
            assert float(got[DEFAULT_MODULE_ID][name]) == pytest.approx(float(loss), rel=0.02)
    assert not torch.equal(near.flat.grad, exact.flat.grad), "no product was in bfloat16"
    assert relative(near.flat.grad, exact.flat.grad) < 0.05


def poison(batch, rows):
    """Put what must not be read into next observations: NaN, or where there is none other values."""
    for name, tensor in batch.items():
        if name.startswith("next_observations"):
            tensor[rows] = torch.nan if tensor.is_floating_point() else 1 - tensor[rows]


@all_cases
def test_a_next_observation_that_is_not_real_is_never_read(case):
    learner = make_learner(case.settings, case.kind)
    batch = make_batch(case.kind, 12)
    batch["next_valid"][::3] = False
    noise = noise_for(learner, 12)
    clean = gradients(learner, batch, noise)
    poison(batch, ~batch["next_valid"])
    poisoned = gradients(learner, batch, noise)
    for key, value in clean.items():
        assert torch.isfinite(value).all()
        assert torch.equal(poisoned[key], value), key


@all_cases
def test_masked_rows_do_not_count(case):
    learner = make_learner(case.settings, case.kind)
    batch = make_batch(case.kind, 10)
    noise = noise_for(learner, 10)
    kept = torch.tensor([0, 1, 3, 4, 6, 8, 9])
    few = gradients(learner, {k: v[kept] for k, v in batch.items()}, {k: v[kept] for k, v in noise.items()})
    mask = torch.zeros(10, dtype=torch.float64)
    mask[kept] = 1
    for name, tensor in batch.items():
        if tensor.is_floating_point() and name != "actions":
            tensor[mask == 0] = 1e3
    masked = gradients(learner, {**batch, "mask": mask}, noise)
    for key, value in few.items():
        assert relative(masked[key], value) < 1e-12, key


@all_cases
def test_a_phase_reaches_only_the_parameters_of_its_optimizers(case):
    learner = make_learner(case.settings, case.kind)
    batch = make_batch(case.kind, 12)
    module, algorithm = learner.module[DEFAULT_MODULE_ID], learner.algorithms[DEFAULT_MODULE_ID]
    for phase in algorithm.phases():
        losses = algorithm.losses(module, batch, noise_for(learner, 12), phase)
        owned = {
            slot.name for name in phase.optimizers for slot in learner.flat.segments[DEFAULT_MODULE_ID, name].slots
        }
        module.zero_grad(set_to_none=True)
        sum(losses.values()).backward()
        reached = {name for name, p in module.named_parameters() if p.grad is not None}
        assert reached == owned, phase.name


@all_cases
def test_losses_are_pure(case):
    learner = make_learner(case.settings, case.kind)
    batch = make_batch(case.kind, 12)
    copies = {name: tensor.clone() for name, tensor in batch.items()}
    noise = noise_for(learner, 12)
    generator, before = torch.get_rng_state(), weights(learner)
    first, second = gradients(learner, batch, noise), gradients(learner, batch, noise)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(batch[name], copies[name]) for name in batch)
    after = weights(learner)
    assert all(np.array_equal(before[name], after[name]) for name in before)


@all_cases
def test_losses_are_scalars_and_wrong_shapes_are_refused(case):
    learner = make_learner(case.settings, case.kind)
    batch = make_batch(case.kind, 7)
    algorithm = learner.algorithms[DEFAULT_MODULE_ID]

    def check(phase, batch):
        names = ("observations", "actions", "rewards", "terminations", "next_observations", "next_valid")
        fields = {name: batch.get(name) for name in names}
        if case.kind in OTHERS:  # images have more axes than (B, obs); nested ones are in the batch only
            fields |= {"observations": None, "next_observations": None}
        module = learner.module[DEFAULT_MODULE_ID]
        return checked_losses(algorithm, module, noise_for(learner, 7), phase, batch, **fields)

    for phase in algorithm.phases():
        assert check(phase, batch)
        with pytest.raises(TypeCheckError):
            check(phase, {**batch, "rewards": batch["rewards"][:, None]})
    for name in ("rewards", "terminations", "next_valid"):
        with pytest.raises(ConfigError, match=rf"batch: {name}: got shape \(7, 1\); allowed: \(B,\)"):
            update(learner, {**batch, name: batch[name][:, None]})
    for name in algorithm.required_fields:
        with pytest.raises(ConfigError, match=f"batch: got no {name}; allowed"):
            update(learner, {other: tensor for other, tensor in batch.items() if other.partition("/")[0] != name})
    with pytest.raises(ConfigError, match="tensors of one length"):
        update(learner, {**batch, "actions": batch["actions"][:5]})
    assert learner.step == 0
    assert num_rows(batch) == 7


@pytest.mark.parametrize("case", [case for case in CASES if case.kind not in OTHERS], ids=str)
def test_observations_of_any_number_of_axes(case):
    learner = make_learner(case.settings, case.kind)
    batch = make_batch(case.kind, 5)
    flat = gradients(learner, batch, noise_for(learner, 5))
    for name in ("observations", "next_observations"):
        batch[name] = batch[name].reshape(5, 3, 1)
    for key, value in gradients(learner, batch, noise_for(learner, 5)).items():
        assert torch.equal(value, flat[key])


# torch's compiler uses what torch has deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*COMPILED, *(pytest.param(case, marks=pytest.mark.storm) for case in COMPILED_OTHERS)], ids=str
)
def test_compiled_and_eager_agree(case):
    settings = {**case.settings, "learning_rate": 1e-3}
    eager, compiled = (make_learner(settings, case.kind, precision="fp32", compile=c) for c in ("off", "on"))
    batches = [make_batch(case.kind, 16, seed, torch.float32) for seed in range(5)]
    noise = noise_for(eager, 16)
    wanted, got = (gradients(learner, batches[0], noise) for learner in (eager, compiled))
    for key, value in wanted.items():
        assert relative(got[key], value) < 1e-5
    results = [update(learner, *batches)[DEFAULT_MODULE_ID] for learner in (eager, compiled)]
    assert results[0]["total_loss"] == pytest.approx(results[1]["total_loss"], rel=1e-4)
    assert relative(compiled.flat.data, eager.flat.data) < 1e-4
    # what detaches gradients from the buffer must not undo what the compiled graph wrote there
    compiled.module.zero_grad(set_to_none=True)
    before = compiled.flat.data.clone()
    assert update(compiled, batches[0])[DEFAULT_MODULE_ID]["gradient_norm/" + next(iter(compiled.optimizers))[1]] > 0
    assert not torch.equal(compiled.flat.data, before)
