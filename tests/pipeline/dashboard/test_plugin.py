"""The page on real schedulers: on those that are started here by itself, on others when they are asked."""

import copy
import json
import logging
import subprocess
import sys
import time

import dask
import distributed.dashboard.scheduler
import pytest
from dashboards import address_of, fetch, fetch_json, wait_until
from distributed import Client, LocalCluster
from group_cases import SPEC, group_config
from prometheus_client.parser import text_string_to_metric_families
from run_messages import begin, event, learner, row

import dask_rl
from dask_rl.learners.config import LearnersConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.own_cluster import cluster_settings, open_own_cluster
from dask_rl.pipeline.dashboard import TOPIC, LearnersPlugin, install
from dask_rl.storage.errors import ConfigError

pytestmark = pytest.mark.service

PLAIN = {"n_workers": 0, "processes": False, "host": "127.0.0.1", "protocol": "tcp://"}
PAGES = ("learners", "individual-learners", "learners.json", "status", "individual-progress", "metrics")


def assert_is_there(address: str) -> None:
    assert {page: fetch(address + page)[0] for page in PAGES} == dict.fromkeys(PAGES, 200)
    assert fetch_json(address + "individual-plots.json")["Individual Learners"] == "/individual-learners"
    assert 'href="learners"' in fetch(address + "status")[1]  # in the menu of every page
    assert "individual-learners" in fetch(address + "status")[1]


@pytest.fixture
def plain_client():
    """A scheduler without workers that nobody has told of learners."""
    options = {"dashboard_address": "127.0.0.1:0", **PLAIN}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def test_a_cluster_of_a_jobs_own_has_the_page_and_its_learners(cluster_client):
    address = address_of(cluster_client)
    assert_is_there(address)

    def learners(group_id):
        groups = fetch_json(address + "learners.json")["groups"]
        return [each for group in groups if group["group_id"] == group_id for each in group["learners"]]

    config = group_config(2, {"name": "bc"})
    with LearnerGroup(config, module_spec=SPEC, client=cluster_client, name="by hand") as group:
        group_id = group.identity.group_id
        meeting = [(0, 1), (1, 1)]
        wait_until(lambda: sorted((each["rank"], each["generation"]) for each in learners(group_id)) == meeting, "both")
        pids = {each["pid"] for each in learners(group_id)}
        assert pids == {handle.pid for handle in group.manager.handles}
    wait_until(lambda: not learners(group_id), "the learners to be gone")


def test_a_cluster_of_a_groups_own_has_the_page():
    with open_own_cluster(LearnersConfig(num_learners=1)) as client:
        assert_is_there(address_of(client))


def test_a_preload_that_was_asked_for_stays():
    for asked_for in ("mine", ["mine"]):
        with dask.config.set({"distributed.scheduler.preload": asked_for}):
            for _ in range(2):
                settings = cluster_settings()
                assert settings["distributed.scheduler.preload"] == ["mine", "dask_rl.pipeline.dashboard"]
                dask.config.set(settings)


def test_a_running_scheduler_gets_it_with_one_call_and_remembers_what_was_said_before(plain_client):
    address = address_of(plain_client)
    assert fetch(address + "learners")[0] == 404
    for message in (begin(), row(10), "no message"):
        plain_client.log_event(TOPIC, message)
    wait_until(lambda: plain_client.get_events(TOPIC), "the messages")
    assert dask_rl.install_dashboard(plain_client) == address + "learners"
    assert_is_there(address)
    [run] = fetch_json(address + "learners.json")["runs"]
    assert (run["run_id"], run["step"]) == ("r1", 10)
    applications = plain_client.run_on_scheduler(count_applications)
    plain_client.log_event(TOPIC, row(20))
    install(plain_client)
    assert plain_client.run_on_scheduler(count_applications) == applications
    wait_until(lambda: fetch_json(address + "learners.json")["runs"][0]["step"] == 20, "the next row")
    said = fetch_json(address + "learners.json?run=r1")
    assert [each["step"] for each in said["rows"]] == [10, 20]
    assert said["run"]["run_id"] == "r1"
    assert fetch(address + "learners.json?run=other")[0] == 404


def count_applications(dask_scheduler):
    return len(dask_scheduler.http_application.applications), len(dask_scheduler.plugins)


def test_it_leaves_the_pages_of_other_schedulers_alone(plain_client):
    install(plain_client)
    assert "/learners" not in distributed.dashboard.scheduler.applications
    options = {"dashboard_address": "127.0.0.1:0", **PLAIN}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as other:
        assert fetch(address_of(other) + "learners")[0] == 404


def test_it_ends_with_its_scheduler(plain_client):
    install(plain_client)
    scheduler = plain_client.cluster.scheduler
    plugin, app = scheduler.plugins["dask-rl"], scheduler.http_application.applications[0]
    jobs = [plugin._looking, app._stats_job, app._cleanup_job]
    assert all(job.is_running() for job in jobs)
    plain_client.cluster.close()
    assert not any(job.is_running() for job in jobs)


@pytest.fixture
def start_scheduler(tmp_path):
    """Returns a function that starts `dask scheduler` in a process of its own and gives what its file says."""
    started = []

    def start(*arguments, main="from dask.__main__ import main; main()"):
        file = tmp_path / f"scheduler-{len(started)}.json"
        command = [sys.executable, "-c", f"import sys; {main}", "scheduler", "--scheduler-file", str(file)]
        where = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
        process = subprocess.Popen([*command, *where, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(process)
        wait_until(lambda: (file.exists() and file.read_text()) or process.poll() is not None, "the scheduler")
        if process.poll() is not None:
            pytest.fail(process.communicate()[0].decode())
        return json.loads(file.read_text())

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=30)


def test_a_scheduler_that_is_started_elsewhere_has_it_by_its_preload(start_scheduler):
    scheduler = start_scheduler("--preload", "dask_rl.pipeline.dashboard", "--dashboard-prefix", "/behind/proxy")
    address = f"http://127.0.0.1:{scheduler['services']['dashboard']}/behind/proxy/"
    wait_until(lambda: fetch(address + "learners")[0] == 200, "the page")  # the file is there before the preload
    pages = ("learners", "individual-learners", "learners.json", "status")
    assert {page: fetch(address + page)[0] for page in pages} == dict.fromkeys(pages, 200)


def test_a_scheduler_that_cannot_import_it_says_so(start_scheduler):
    scheduler = start_scheduler(main="sys.modules['dask_rl'] = None; from dask.__main__ import main; main()")
    with Client(scheduler["address"], set_as_default=False) as client:
        with pytest.raises(ConfigError, match="install dask-rl of this version where the scheduler runs"):
            install(client)
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.status.name) == "running"


def test_a_scheduler_without_a_dashboard_listens_all_the_same():
    options = {"dashboard_address": None, **PLAIN}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        install(client)
        client.log_event(TOPIC, begin())
        runs = wait_until(lambda: client.run_on_scheduler(snapshot)["runs"], "the run")
        assert runs[0]["run_id"] == "r1"


def snapshot(dask_scheduler):
    return dask_scheduler.plugins["dask-rl"].snapshot()


@pytest.mark.parametrize("missing", ["template_variables", "applications"])
def test_where_dask_has_changed_there_is_a_warning_and_no_page(plain_client, monkeypatch, caplog, missing):
    monkeypatch.delattr(distributed.dashboard.scheduler, missing)
    monkeypatch.delitem(sys.modules, "dask_rl.pipeline.dashboard.page", raising=False)
    with caplog.at_level(logging.WARNING):
        install(plain_client)
    [record] = [each for each in caplog.records if each.name == "dask_rl.dashboard"]
    assert "The dashboard has no page of learners: ImportError" in record.message
    assert f"distributed {distributed.__version__}" in record.message
    address = address_of(plain_client)
    assert (fetch(address + "learners")[0], fetch(address + "status")[0]) == (404, 200)
    plain_client.log_event(TOPIC, begin())
    wait_until(lambda: fetch_json(address + "learners.json")["runs"], "the run")


def test_a_scheduler_goes_on_through_whatever_is_sent(plain_client):
    install(plain_client)
    address = address_of(plain_client)
    for odd in (None, 7, "x", [1], {"kind": "begin", "run_id": "x", "rows": 3}, {"kind": "row", "run_id": "x"}):
        plain_client.log_event(TOPIC, odd)
    plain_client.log_event(TOPIC, begin("last"))
    found = wait_until(lambda: fetch_json(address + "learners.json")["runs"][1:], "both runs")
    assert [each["run_id"] for each in found] == ["x"]


def samples(address, name, *ids):
    """Values by labels; of some runs or groups only, as all schedulers of a process have one registry."""
    families = text_string_to_metric_families(fetch(address + "metrics")[1])
    return {
        frozenset(each.labels.items()): each.value
        for family in families
        for each in family.samples
        if each.name == name and (not ids or set(ids) & set(each.labels.values()))
    }


def test_prometheus_gets_runs_and_learners(plain_client):
    install(plain_client)
    address = address_of(plain_client)
    live_runs = plain_client.cluster.scheduler.plugins["dask-rl"].live_runs
    now = time.monotonic()
    evaluation = {"kind": "evaluation", "step": 20, "return_mean": 12.5}
    live_runs.hear(begin(rows=[evaluation], num_steps=200, name='a "run"\n'), now)
    live_runs.hear(row(20, total_loss=0.5), now)
    two = [learner(0, data_wait_seconds=1.5), learner(0, data_wait_seconds=2.5, pid=9)]  # of one rank, and starting
    live_runs.see({"tcp://a": two[:1], "tcp://b": two[1:]}, now)
    live_runs.hear(event("learner_lost", learner=1, address="tcp://c", cause="killed"), now)
    run = frozenset({"run": 'a "run"', "run_id": "r1"}.items())
    assert samples(address, "dask_rl_run_step", "r1", "g1") == {run: 20.0}
    assert samples(address, "dask_rl_run_num_steps", "r1", "g1") == {run: 200.0}
    assert samples(address, "dask_rl_run_loss", "r1", "g1") == {run | {("loss", "total_loss")}: 0.5}
    assert samples(address, "dask_rl_run_return_mean", "r1", "g1") == {run: 12.5}
    assert samples(address, "dask_rl_run_status", "r1", "g1") == {run | {("status", "running")}: 1.0}
    group = frozenset({"group": "a run", "group_id": "g1"}.items())
    assert samples(address, "dask_rl_learners_lost_total", "r1", "g1") == {group: 1.0}
    places = {group | {("rank", "0"), ("worker", worker)} for worker in ("tcp://a", "tcp://b")}
    assert set(samples(address, "dask_rl_learner_steps_per_second", "r1", "g1")) == places
    waits = samples(address, "dask_rl_learner_data_wait_seconds_total", "r1", "g1")
    assert waits == {place: 1.5 if ("worker", "tcp://a") in place else 2.5 for place in places}
    assert all(("state", "updating") in place for place in samples(address, "dask_rl_learner_state", "r1", "g1"))


def test_without_prometheus_client_there_is_no_metric_and_no_warning(plain_client, monkeypatch, caplog):
    monkeypatch.setattr("dask_rl.pipeline.dashboard.plugin.find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        install(plain_client)
    plain_client.log_event(TOPIC, begin("unmeasured"))
    address = address_of(plain_client)
    wait_until(lambda: fetch_json(address + "learners.json")["runs"], "the run")
    assert not any(("run_id", "unmeasured") in labels for labels in samples(address, "dask_rl_run_step"))
    assert [each for each in caplog.records if each.name == "dask_rl.dashboard"] == []


def test_prometheus_forgets_a_scheduler_that_was_closed(plain_client):
    install(plain_client)
    plain_client.log_event(TOPIC, begin("gone"))
    wait_until(lambda: samples(address_of(plain_client), "dask_rl_run_step"), "the metric")
    options = {"dashboard_address": "127.0.0.1:0", **PLAIN}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as other:
        install(other)
        assert any(("run_id", "gone") in labels for labels in samples(address_of(other), "dask_rl_run_step"))
        plain_client.cluster.close()
        assert not any(("run_id", "gone") in labels for labels in samples(address_of(other), "dask_rl_run_step"))


def test_a_scheduler_needs_no_torch_for_it():
    code = "import sys; from dask_rl.pipeline.dashboard import page, prometheus; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_plugin_travels_as_a_new_one():
    plugin = LearnersPlugin()
    plugin.live_runs.hear(begin(), 0.0)
    assert copy.copy(plugin).live_runs.runs == {}  # as pickle does
