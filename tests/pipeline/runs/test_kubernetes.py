"""Clusters of pods: what Dask's operator is asked for, and what is said where there is none."""

import sys

import pytest
from kubernetes_schemas import check
from pydantic import ValidationError

from dask_rl.learners.config import LearnersConfig
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.kubernetes_spec import cluster_spec
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.storage.errors import ConfigError, DaskRLError

pytestmark = pytest.mark.service

SMALL = {"kind": "kubernetes", "memory_per_worker": "1GB", "kubernetes": {"image": "dask-rl:1"}}


def test_the_operator_takes_the_spec_and_makes_what_dask_kubernetes_makes():
    """Theirs has other commands, as Dask has no more `dask-worker`; ports, service and selectors are the same."""
    operator = pytest.importorskip("dask_kubernetes.operator")
    spec = cluster_spec(ClusterConfig(**SMALL), "some-name", 3)
    check(spec)
    theirs = operator.make_cluster_spec("some-name", image="dask-rl:1", n_workers=3)
    assert spec["spec"]["scheduler"]["service"] == theirs["spec"]["scheduler"]["service"]
    assert spec["spec"]["worker"]["replicas"] == theirs["spec"]["worker"]["replicas"]
    ours, others = (each["spec"]["scheduler"]["spec"]["containers"][0] for each in (spec, theirs))
    assert ours["ports"] == others["ports"]
    assert (ours["name"], ours["image"]) == (others["name"], others["image"])
    assert ours["readinessProbe"]["httpGet"] == others["readinessProbe"]["httpGet"]


def test_a_learner_has_the_pod_that_it_needs():
    config = ClusterConfig(**SMALL | {"startup_timeout_seconds": 90})
    config = config.for_learners(LearnersConfig(num_learners=2, num_gpus_per_learner=0.5, num_cpus_per_learner=3))
    [container] = cluster_spec(config, "name", 2)["spec"]["worker"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "3", "memory": "1000000000", "nvidia.com/gpu": "1"}
    options = container["args"]
    for option, value in {
        "--nthreads": "3",
        "--resources": "GPU=1",
        "--death-timeout": "90",
        "--preload": "dask_rl.pipeline.runs.worker_preload",
    }.items():
        assert options[options.index(option) + 1] == value
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] == "spawn"
    assert variables["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] == "60.0s"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "kubernetes", "kubernetes": {"image": "i"}}, "needs memory_per_worker"),
        ({"kind": "kubernetes", "memory_per_worker": "1GB"}, "needs kubernetes.image"),
        ({**SMALL, "security": {"ca_file": "a", "cert": "b", "key": "c"}}, "starts schedulers without TLS"),
        ({"kubernetes": {"volumes": [{"claim": "Not_a_name", "path": "/a"}]}}, "lower-case letters"),
        ({"kubernetes": {"volumes": [{"claim": "a", "path": "relative"}]}}, "an absolute path"),
        ({"kubernetes": {"env": {"not a name": "x"}}}, "names of environment variables"),
        ({"kubernetes": {"user_id": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(settings, words):
    with pytest.raises(ValidationError, match=words):
        ClusterConfig(**settings)


def test_without_dask_kubernetes_or_kubernetes_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    config = ClusterConfig(**SMALL | {"kubernetes": {"image": "i", "pods_timeout_seconds": 5}})
    words = r"no cluster in Kubernetes .* `kubectl get daskclusters`"
    with pytest.raises(DaskRLError, match=words) as caught, open_cluster(config):
        pass
    assert len(str(caught.value).splitlines()) == 1
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", None)
    with pytest.raises(ConfigError, match=r"dask-rl\[kubernetes\]"), open_cluster(config):
        pass
