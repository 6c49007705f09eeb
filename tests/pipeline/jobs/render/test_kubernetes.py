"""Manifests: as Kubernetes' and the operator's schemas have them, and as the operator makes pods of them."""

import re
import shutil
import subprocess

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_schemas import check
from render_cases import refusal, render, write_job

from dask_rl.pipeline.jobs.render.kubernetes import object_name
from dask_rl.pipeline.runs.clusters.kubernetes_spec import literal
from dask_rl.pipeline.runs.job import parse_job

pytestmark = pytest.mark.service

NASTY = 'it\'s 100% "my" $HOME $(HOME) $$x \\n\té\n# yes'
POD = {
    "image": "registry.example/dask-rl:1",
    "volumes": [{"claim": "runs", "path": "/runs"}, {"claim": "data", "path": "/my data", "read_only": True}],
    "env": {"NOTE": NASTY},
    "image_pull_secrets": ["pull"],
    "node_selector": {"disk": "ssd"},
}
TWO = {"learners": {"num_learners": 2, "num_gpus_per_learner": 1}}


def documents(capsys, job, *options):
    [(name, text)] = render(capsys, "kubernetes", job, *options).items()
    assert name == "dask-rl-small.yaml"
    found = {document["kind"]: document for document in yaml.safe_load_all(text)}
    for document in found.values():
        check(document)
    return found


def cluster(kind="local", **settings):
    return {"cluster": {"kind": kind, "memory_per_worker": "2GB", "kubernetes": POD | settings}}


def expanded(text, variables):
    """What a container is given: $(NAME) is a variable's value, $$ a dollar."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


def all_pods(value):
    """All specs of pods in an object."""
    if isinstance(value, list):
        return [pod for item in value for pod in all_pods(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value else []
    return own + [pod for item in value.values() for pod in all_pods(item)]


@given(st.text())
def test_text_is_not_expanded(text):
    assert expanded(literal(text), {"HOME": "wrong", "A": "wrong"}) == text


def test_the_checks_find_what_is_wrong(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster())
    [text] = render(capsys, "kubernetes", job, "--cron", "@daily").values()
    with pytest.raises(jsonschema.ValidationError, match="concurencyPolicy"):
        check(list(yaml.safe_load_all(text.replace("concurrencyPolicy", "concurencyPolicy")))[-1])
    [text] = render(capsys, "kubernetes", job).values()
    with pytest.raises(jsonschema.ValidationError, match="workDir"):
        check(list(yaml.safe_load_all(text.replace("workingDir", "workDir")))[-1])


def test_a_job_that_is_due_at_some_time_is_a_cron_job(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, batch={"stop_wait_seconds": 45}, **TWO, **cluster())
    zone = ("--cron", "30 2 * * sun", "--timezone", "Europe/Berlin")
    found = documents(capsys, job, *zone)
    assert found.keys() == {"ConfigMap", "NetworkPolicy", "CronJob"}
    spec = found["CronJob"]["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("30 2 * * 0", "Europe/Berlin", "Forbid")
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 75)
    actions = [
        (rule["action"], rule.get("onExitCodes", {}).get("values"))
        for rule in spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    ]
    assert actions == [("Ignore", None), ("Ignore", [3]), ("FailJob", [1, 2])]
    [driver] = pod["containers"]
    assert driver["resources"]["requests"] == {"cpu": "2", "memory": str(2 * 2**30 + 4 * 10**9), "nvidia.com/gpu": "2"}
    assert driver["workingDir"] == "/runs"
    assert driver["command"][:6] == ["python", "-P", "-m", "dask_rl", "jobs", "exec"]
    assert {"--name=small", "--home=/runs/.dask-rl", "--resume"} <= set(driver["command"])
    values = {variable["name"]: expanded(variable["value"], {}) for variable in driver["env"]}
    assert values["NOTE"] == NASTY
    carried = parse_job(found["ConfigMap"]["data"]["job.yaml"])
    assert carried == parse_job(job.read_text())


def test_no_pod_is_root_or_open_to_the_outside(capsys, tmp_path, feed_dataset):
    for kind, options in (("local", ()), ("local", ("--cron", "@daily")), ("kubernetes", ("--cron", "@daily"))):
        job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster(kind))
        found = documents(capsys, job, *options)
        pods = all_pods(list(found.values()))
        assert len(pods) == (3 if "DaskJob" in found else 1)
        for pod in pods:
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] > 0
            [container] = pod["containers"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/runs", "/my data"}
        assert "NodePort" not in str(found)
        assert "LoadBalancer" not in str(found)
        [rule] = found["NetworkPolicy"]["spec"]["ingress"]
        assert rule == {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "dask-rl"}}}]}
        for document in found.values():
            assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "dask-rl"


def test_one_run_on_a_cluster_of_its_own_is_a_dask_job_that_the_operator_makes_pods_of(capsys, tmp_path, feed_dataset):
    controller = pytest.importorskip("dask_kubernetes.operator.controller.controller")
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster(namespace="lab"))
    found = documents(capsys, job)
    assert found.keys() == {"ConfigMap", "NetworkPolicy", "DaskJob"}
    name, spec = found["DaskJob"]["metadata"]["name"], found["DaskJob"]["spec"]
    assert found["DaskJob"]["metadata"]["namespace"] == "lab"
    labels = found["DaskJob"]["metadata"]["labels"]
    pod = controller.build_job_pod_spec(name, name, "lab", spec["job"]["spec"], {}, labels)
    scheduler = controller.build_scheduler_deployment_spec(
        name, spec["cluster"]["spec"]["scheduler"]["spec"], {}, labels
    )
    service = controller.build_scheduler_service_spec(name, spec["cluster"]["spec"]["scheduler"]["service"], {}, labels)
    worker_spec = spec["cluster"]["spec"]["worker"]
    worker = controller.build_worker_deployment_spec(
        f"{name}-default", "lab", name, "0", worker_spec["spec"], {}, labels
    )
    for document in (pod, scheduler, service, worker):
        check(document)
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "dask-rl"
    assert worker_spec["replicas"] == 2
    [container] = worker["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    arguments = [expanded(word, variables) for word in container["args"]]
    assert container["command"] == ["dask", "worker"]
    assert arguments[:2] == ["--name", f"{name}-default-worker-0"]
    assert arguments[arguments.index("--resources") + 1] == "GPU=1"
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "2000000000", "nvidia.com/gpu": "1"}
    [driver] = pod["spec"]["containers"]
    assert pod["spec"]["restartPolicy"] == "Never"  # else exit codes 1 and 2 would start it again for ever
    assert f"--set=cluster.address=tcp://{service['metadata']['name']}:8786" in driver["command"]


def test_a_driver_that_makes_clusters_may_do_that_and_no_more(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster("kubernetes"))
    found = documents(capsys, job, "--cron", "@daily")
    assert found.keys() == {"ConfigMap", "NetworkPolicy", "ServiceAccount", "Role", "RoleBinding", "CronJob"}
    pod = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    own, core = found["Role"]["rules"]
    assert own["apiGroups"] == ["kubernetes.dask.org"]
    assert core["verbs"] == ["get", "list", "watch"]
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster("kubernetes", service_account="mine"))
    assert documents(capsys, job, "--cron", "@daily").keys() == {"ConfigMap", "NetworkPolicy", "CronJob"}


def test_without_learners_of_its_own_and_without_a_time_it_is_a_job(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, cluster={"kind": "in_process", "kubernetes": POD})
    assert documents(capsys, job).keys() == {"ConfigMap", "NetworkPolicy", "Job"}


def test_a_cluster_that_is_there_already_is_joined(capsys, tmp_path, feed_dataset):
    there = {"cluster": {"kind": "address", "address": "tcp://scheduler.lab:8786", "kubernetes": POD}}
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **there)
    found = documents(capsys, job)
    assert found.keys() == {"ConfigMap", "NetworkPolicy", "Job"}
    [driver] = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert driver["resources"]["requests"] == {"cpu": "1", "memory": str(2 * 2**30)}
    assert not [word for word in driver["command"] if word.startswith("--set=cluster")]


def test_what_pods_cannot_have_is_refused(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster("slurm"))
    assert "cluster.kind: got slurm" in refusal(capsys, "kubernetes", job)
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster())
    assert "cluster.security: got temporary" in refusal(
        capsys, "kubernetes", job, "--set", "cluster.security=temporary"
    )


def test_what_pods_need_must_be_said(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, **TWO)
    image, volume = (
        ("--set", "cluster.kubernetes.image=i"),
        ("--set", "cluster.kubernetes.volumes=[{claim: a, path: /a}]"),
    )
    assert "cluster.kubernetes.image: got nothing" in refusal(capsys, "kubernetes", job)
    assert "cluster.kubernetes.volumes: got nothing" in refusal(capsys, "kubernetes", job, *image)
    assert "cluster.memory_per_worker: got nothing" in refusal(capsys, "kubernetes", job, *image, *volume)
    assert "for Kubernetes: days" in refusal(capsys, "kubernetes", job, *image, *volume, "--cron", "0 0 */2 * 1")


def test_names_are_those_of_objects_and_differ_where_jobs_do():
    assert object_name("dask-rl-small") == "dask-rl-small"
    names = {object_name(f"dask-rl-{name}") for name in ("a.b", "a-b", "A-b", "a_b", "x" * 60, "x" * 61)}
    assert len(names) == 6
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,43}[a-z0-9])?", name) for name in names)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_the_yaml_is_the_same_to_kubernetes_own_reader(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, **TWO, **cluster())
    [text] = render(capsys, "kubernetes", job).values()
    (tmp_path / "all.yaml").write_text(text)
    (tmp_path / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    ours, theirs = (sorted(yaml.safe_load_all(each), key=lambda d: d["kind"]) for each in (text, done.stdout))
    assert ours == theirs
