"""Job files: defaults, overrides, and errors that a user can act on."""

import pytest
import yaml

from dask_rl.pipeline.runs.job import TrainJob, load_job, parse_job
from dask_rl.pipeline.runs.job_differences import job_differences
from dask_rl.storage.errors import ConfigError

JOB = """
dataset: cartpole.zarr
algorithm: {name: bc}
num_steps: 1000
batch_size: 256
num_shards: 8
seed: 0
learners: {num_learners: 2, num_gpus_per_learner: 0, compile: auto, precision: fp32}
cluster: {kind: local}
evaluation: {environment: CartPole-v1, num_episodes: 20, every_steps: 500}
checkpoint: {every_steps: 500, keep_last: 2}
run: runs/cartpole-bc
"""


def test_the_documented_job_round_trips_through_yaml():
    job = parse_job(JOB)
    assert (job.algorithm.name, job.learners.num_learners, job.evaluation.every_steps) == ("bc", 2, 500)
    assert parse_job(job.to_yaml()) == job


def test_overrides_are_yaml_and_reach_nested_settings(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    overrides = [
        "num_steps=20",
        "learners.num_learners=0",
        "algorithm.learning_rate=1e-3",
        "algorithm.hidden_sizes=[8, 8]",
        "data.reward_scale=0.1",
        "evaluation=null",
    ]
    job = load_job(path, overrides)
    assert (job.num_steps, job.learners.num_learners, job.evaluation) == (20, 0, None)
    assert (job.algorithm.learning_rate, job.algorithm.hidden_sizes) == (1e-3, (8, 8))
    assert job.data.reward_scale == 0.1


MODULES = """
dataset: {cart: cartpole.zarr, arm.left: arm.zarr}
algorithm: {name: bc, learning_rate: 0.01, top_fraction: 0.5}
modules:
  arm.left: {name: iql, dropout: 0.1}
num_steps: 10
evaluation: {environment: CartPole-v1, module_id: cart}
run: runs/both
"""


def test_a_job_with_several_modules_round_trips_and_says_what_each_trains_with():
    job = parse_job(MODULES)
    assert parse_job(job.to_yaml()) == job
    assert job.datasets == {"cart": "cartpole.zarr", "arm.left": "arm.zarr"}
    assert job.evaluated_module() == "cart"
    assert job.algorithm_of("cart") is job.algorithm
    own = job.algorithm_of("arm.left")
    assert (own.name, own.dropout, own.learning_rate, own.top_fraction) == ("iql", 0.1, 3e-4, 1.0)  # complete


def test_settings_of_a_module_without_a_name_are_those_that_differ():
    job = parse_job(MODULES, ["modules={cart: {learning_rate: 0.5}}"])
    settings = job.algorithm_of("cart")
    assert (settings.name, settings.learning_rate, settings.top_fraction) == ("bc", 0.5, 0.5)
    assert parse_job(job.to_yaml()) == job


def test_a_plain_dataset_is_that_of_the_default_module():
    job = parse_job(JOB)
    assert job.datasets == {"default_module": "cartpole.zarr"}
    assert (job.evaluated_module(), job.modules) == ("default_module", {})
    overrides = ["modules.default_module.name=iql", "evaluation.module_id=default_module"]
    assert parse_job(JOB, overrides).algorithm_of("default_module").name == "iql"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("dataset={}", ["dataset: got {}", "a valid string, or one for each module"]),
        ("dataset.cart=3", ["dataset: got {'cart': 3", "a valid string, or one for each module"]),
        ("dataset={1: a.zarr}", ["module id: got 1", "a valid string", "quote it"]),
        ("dataset={a/b: a.zarr}", ["module id: got 'a/b'", "letters, digits"]),
        ("modules.leg={name: bc}", ["module in modules: got 'leg'", "allowed: arm.left, cart", "name one of these"]),
        ("modules.leg={}", ["module in modules: got 'leg'", "allowed: arm.left, cart"]),
        ("modules.cart={name: bcc}", ["algorithm.name: got 'bcc'", "did you mean 'bc'"]),
        ("modules.cart={learning_rat: 1}", ["modules.cart.learning_rat: got an unknown key", "'learning_rate'?"]),
        ("modules.cart=5", ["modules: got 5", "a valid dictionary"]),
        ("modules=[]", ["modules: got []", "a valid dictionary"]),
        ("evaluation.module_id=leg", ["evaluation.module_id: got 'leg'", "arm.left, cart"]),
        ("evaluation.module_id=null", ["evaluation.module_id: got nothing, with several modules", "arm.left, cart"]),
        ("dataset=cartpole.zarr", ["module in modules: got 'arm.left'", "allowed: default_module"]),
    ],
)
def test_mistakes_about_modules_are_one_line_each(override, parts):
    with pytest.raises(ConfigError) as caught:
        parse_job(MODULES, [override])
    (line,) = str(caught.value).splitlines()
    assert "secret" not in line
    for part in parts:
        assert part in line


@pytest.mark.parametrize(("learners", "kind"), [(0, "in_process"), (2, "local")])
def test_the_cluster_follows_the_learners_where_none_is_named(learners, kind):
    values = yaml.safe_load(JOB) | {"learners": {"num_learners": learners}}
    del values["cluster"]
    assert TrainJob.model_validate(values).cluster.kind == kind


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("num_step=5", ["num_step: got an unknown key", "did you mean 'num_steps'?"]),
        ("learners.num_lerners=5", ["learners.num_lerners", "did you mean 'num_learners'?"]),
        ("evaluation.episodes=5", ["evaluation.episodes", "num_episodes"]),
        ("algorithm.learning_rat=1", ["algorithm.learning_rat", "did you mean 'learning_rate'?"]),
        ("algorithm.name=bcc", ["algorithm.name: got 'bcc'", "bc", "did you mean 'bc'"]),
        ("algorithm={}", ["algorithm: got {}", "add its name"]),
        ("algorithm.name=[bc]", ["algorithm.name: got ['bc']", "allowed: bc, iql;"]),
        ("num_steps=many", ["num_steps: got 'many'", "a valid integer"]),
        ("num_steps=0", ["num_steps: got 0", "greater than or equal to 1"]),
        ("dataset=[1]", ["dataset: got [1]", "a valid string"]),
        ("batch_size=100", ["batch_size: got 100", "a multiple of num_shards=8", "use 96 or 104"]),
        ("learners.num_learners=9", ["learners.num_learners: got 9", "at most num_shards=8"]),
        ("cluster.kind=in_process", ["cluster.kind: got in_process with 2 learners", "cluster.kind=local"]),
        ("cluster.kind=address", ["address is for kind address, and that kind needs it"]),
        ("cluster.kind=mars", ["cluster.kind: got 'mars'", "'in_process', 'local'"]),
        ("cluster={kind: address, address: ''}", ["cluster.address: got ''", "at least 1 character"]),
        ("cluster.memory_per_worker=lots", ["cluster.memory_per_worker: got 'lots'", 'as in "4GB"']),
        ("cluster.memory_per_worker=-1", ["cluster.memory_per_worker: got -1", 'as in "4GB"']),
        ("seed=18446744073709551616", ["seed: got 18446744073709551616", "less than or equal to"]),
        ("evaluation.seed=1180591620717411303424", ["evaluation.seed: got", "less than or equal to"]),
        ("learners.num_threads_per_learner=0", ["learners.num_threads_per_learner: got 0", "or 'auto'"]),
        ("learners.num_cpus_per_learner=-1", ["learners.num_cpus_per_learner: got -1", "or 'auto'"]),
        ("learners.collective_timeout_seconds=1.0e+15", ["learners.collective_timeout_seconds", "less than or equal"]),
        ("algorithm.learning_rate=.inf", ["algorithm.learning_rate: got inf", "a finite number"]),
        ("algorithm.temperature=.nan", ["algorithm.temperature: got nan", "a finite number"]),
        ("data.reward_shift=.nan", ["data.reward_shift: got nan", "a finite number"]),
        ("data.reward_scale=.inf", ["data.reward_scale: got inf", "a finite number"]),
        ("data.sampler=random", ["data.sampler: got 'random'", "'epoch', 'uniform' or 'sequences'"]),
        ("data={sampler: sequences, sequence_length: 5}", ["data.sampler: got sequences, for bc", "epoch, uniform"]),
        ("data.sequence_length=5", ["sequence_length: got 5, with sampler=epoch", "none without"]),
        ("data.n_step=3", ["data.n_step: got 3, for bc", "leave out `n_step`"]),
        ("data.frame_stack=0", ["data.frame_stack: got 0", "greater than or equal to 1"]),
        ("num_steps=" + "[" * 3000, ["--set num_steps", "nested too deeply"]),
        ("num_steps", ["--set: got 'num_steps'", "key=value"]),
        ("num_steps.a=3", ["--set num_steps.a=3: got num_steps=1000", "mapping"]),
        ("run={", ["--set run", "YAML"]),
        ("run=''", ["run: got ''", "at least 1 character"]),
        ("run=s3://bucket/run", ["run: got the URL s3://bucket/run", "a path on this machine"]),
        ("dataset=s3://me:secret@bucket/d.zarr", ["dataset: got a password in the URL s3://bucket/d.zarr", "fsspec's"]),
        ('run="a\\0b"', ["run: got 'a\\x00b'", "without null bytes"]),
    ],
)
def test_each_mistake_is_one_line_with_what_is_allowed(override, parts):
    job = JOB.replace("name: bc", "name: iql") if "temperature" in override else JOB
    with pytest.raises(ConfigError) as caught:
        parse_job(job, [override])
    (line,) = str(caught.value).splitlines()
    for part in parts:
        assert part in line


def test_several_mistakes_are_several_lines():
    with pytest.raises(ConfigError) as caught:
        parse_job("dataset: a.zarr\nalgorithm: {name: bc}\nseed: -1\ncolour: red\n")
    lines = str(caught.value).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["colour", "num_steps", "run", "seed"]


@pytest.mark.parametrize("text", ["- a\n", "just text", "a: [", ""])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(ConfigError, match="YAML"):
        parse_job(text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"job file: got .*nope\.yaml: No such file"):
        load_job(tmp_path / "nope.yaml")


def test_differences_are_listed_by_key():
    job = parse_job(JOB)
    assert job_differences(job, job) == []
    other = parse_job(JOB, ["num_steps=7", "evaluation=null", "algorithm.top_fraction=0.5"])
    differences = job_differences(job, other)
    assert "num_steps: 1000 → 7" in differences
    assert "algorithm.top_fraction: 1.0 → 0.5" in differences
    assert "evaluation.environment: CartPole-v1 → unset" in differences


def test_what_a_job_says_about_batches_is_checked_and_changes_no_run():
    batch = "batch: {keep_if: better, on_success: 'cp -r \"a b\" $HOME', on_failure: [mail, me]}\n"
    job = parse_job(JOB + batch)
    assert (job.batch.on_success, job.batch.on_failure) == (("cp", "-r", "a b", "$HOME"), ("mail", "me"))
    assert parse_job(job.to_yaml()) == job
    assert job_differences(parse_job(JOB), job) == []
    assert job_differences(parse_job(JOB), parse_job(JOB + "initial_weights: a")) == ["initial_weights: None → a"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("on_success: 'a \"b'", "batch command: got a command line with no closing quotation"),
        ("on_success: ''", "batch command: got no words"),
        ("on_success: ['']", "batch command: got"),
        ("on_failure: [a, 1]", "batch command: got"),
        ("on_failure: 3", "batch command: got"),
        ('on_failure: "a \\0"', "batch command: got"),
        ("when: sometimes", "batch.when: got 'sometimes'; allowed: 'always' or 'dataset_changed'"),
        ("keep_if: better, when: always, retries: 3", "did you mean 'max_retries'"),
        ("max_retries: -1", "batch.max_retries"),
        ("time_limit_seconds: 0", "batch.time_limit_seconds"),
        ("keep_if: worse", "batch.keep_if"),
    ],
)
def test_what_is_wrong_in_batch_is_told(batch, message):
    with pytest.raises(ConfigError, match=message):
        parse_job(JOB + f"batch: {{{batch}}}\n")


def test_better_needs_an_evaluation():
    with pytest.raises(ConfigError, match=r"batch.keep_if: got better, in a job without evaluation"):
        parse_job(JOB + "batch: {keep_if: better}\n", ["evaluation=null"])
