"""TLS clusters that we start and join: real processes, certificates and sockets."""

import gc
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import yaml
from distributed import Client
from distributed.security import Security
from pydantic import ValidationError
from tls_files import write_tls_files

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.security import open_security
from dask_rl.pipeline.runs.train import train
from dask_rl.storage.errors import ConfigError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=["temporary", "files"])
def security(request, files):
    return "temporary" if request.param == "temporary" else files


@pytest.fixture
def run_job(feed_dataset, tmp_path):
    """Train a tiny policy on two learners that stream their data as Dask tasks; the hash of its weights."""

    def run(cluster):
        job = {
            "dataset": str(feed_dataset),
            "algorithm": {"name": "bc", "hidden_sizes": [8]},
            "num_steps": 6,
            "batch_size": 16,
            "data": {"resident": False, "block_rows": 16, "window_rows": 64},
            "learners": {"num_learners": 2, "compile": "off", "num_threads_per_learner": 1},
            "cluster": cluster,
            "run": str(tmp_path / "run"),
        }
        return train(parse_job(yaml.safe_dump(job))).weights_hash

    return run


@pytest.fixture(scope="module")
def plain_hash(feed_dataset, tmp_path_factory):
    return run_job.__wrapped__(feed_dataset, tmp_path_factory.mktemp("plain"))({"kind": "local"})


def is_admitted(address, context):
    """Whether a server of Dask's greets whoever comes with this TLS context."""
    host, _, port = address.removeprefix("tls://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        try:
            with context.wrap_socket(raw) as secured:
                return secured.recv(1) != b""
        except TimeoutError:
            raise
        except OSError:  # an alert or a reset, as it happens
            return False


def without_certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_all_speak_tls_and_whoever_has_no_certificate_of_theirs_is_refused(security, tmp_path):
    with open_cluster(ClusterConfig(security=security), num_workers=2) as client:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        addresses = [client.scheduler.address, *workers]
        assert [address.split("127")[0] for address in addresses] == ["tls://"] * 3
        assert client.run(lambda dask_worker: dask_worker.scheduler.address.split(":")[0]) == dict.fromkeys(
            workers, "tls"
        )
        stranger = open_security(ClusterConfig(security=write_tls_files(tmp_path / "other")).security)
        address = addresses[0]
        for other, credentials in ((address, None), (address.replace("tls", "tcp"), None), (address, stranger)):
            with pytest.raises((OSError, TypeError)):
                Client(other, timeout=3, security=credentials)
            gc.collect()  # it closes itself, and would hang in the midst of the next one's start
        own = client.security.get_connection_args("client")["ssl_context"]
        assert [is_admitted(address, own) for address in addresses] == [True] * 3
        assert [is_admitted(address, without_certificate()) for address in addresses] == [False] * 3
        assert client.submit(sum, [1, 2]).result(timeout=20) == 3


def test_without_credentials_a_tls_cluster_is_one_line_that_names_the_setting(files):
    with open_cluster(ClusterConfig(security=files), num_workers=1) as client:
        address = client.scheduler.address
        for given, credentials in ((address, None), (address.replace("tls", "tcp"), files)):
            config = ClusterConfig(kind="address", address=given, security=credentials, startup_timeout_seconds=3)
            with (
                pytest.raises(ConfigError, match=rf"cluster\.address: got {given}.*cluster\.security") as caught,
                open_cluster(config),
            ):
                pass
            assert len(str(caught.value).splitlines()) == 1
        with open_cluster(ClusterConfig(kind="address", address=address, security=files)) as second:
            assert second.submit(sum, [2, 2]).result(timeout=20) == 4


def test_two_learners_train_under_tls_and_it_changes_no_bit(run_job, security, plain_hash):
    assert run_job({"kind": "local", "security": security}) == plain_hash


def test_two_learners_train_on_a_cluster_that_was_started_with_tls(run_job, files, plain_hash, tmp_path):
    place = tmp_path / "scheduler.json"
    tls = ["--tls-ca-file", files["ca_file"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
    common = [*tls, "--scheduler-file", str(place), "--host", "127.0.0.1", "--protocol", "tls"]
    scheduler = ["scheduler", *common, "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    worker = ["worker", *common, "--nthreads", "1", "--no-dashboard"]
    with ExitStack() as stack:
        for arguments in (scheduler, worker, worker):
            log = stack.enter_context((tmp_path / "log").open("ab"))
            process = subprocess.Popen([sys.executable, "-m", "dask", *arguments], stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            wait_for_file(place, process)
        assert json.loads(place.read_text())["address"].startswith("tls://")
        cluster = {"kind": "scheduler_file", "scheduler_file": str(place)}
        assert run_job(cluster | {"security": files}) == plain_hash


def wait_for_file(path, process):
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_bytes():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def spoil(files, folder, fault):
    """The settings with one thing wrong, and the words that name it."""
    other, name = write_tls_files(folder / "other"), fault.split(" ")[0]
    if fault.endswith("missing"):
        return {**files, name: "/nope.pem"}, "/nope.pem: No such file or directory"
    if fault.endswith("is a directory"):
        return {**files, name: str(folder)}, f"{folder}: Is a directory"
    if fault.endswith("is no PEM"):
        (folder / "text.pem").write_text("no certificate")
        return {**files, name: str(folder / "text.pem")}, str(folder / "text.pem")
    if fault == "key of another certificate":
        return {**files, "key": other["key"]}, "key values mismatch"
    if fault == "cert of another authority":
        return {**files, "cert": other["cert"], "key": other["key"]}, "allowed: a certificate that .* signed, in force"
    if fault == "cert that ran out":
        return write_tls_files(folder / "old", days=-1), "certificate has expired"
    assert fault == "key with a passphrase"
    return write_tls_files(folder / "locked", passphrase=b"secret"), "locked with a passphrase"


@pytest.mark.parametrize(
    "fault",
    [
        *(f"{name} {what}" for name in ("ca_file", "cert", "key") for what in ("missing", "is a directory")),
        *(f"{name} is no PEM" for name in ("ca_file", "cert", "key")),
        "key of another certificate",
        "key with a passphrase",
        "cert of another authority",
        "cert that ran out",
    ],
)
def test_wrong_files_are_one_line_that_names_the_setting_before_anything_starts(files, tmp_path, fault):
    settings, words = spoil(files, tmp_path, fault)
    name = fault.split(" ")[0]
    with (
        pytest.raises(ConfigError, match=rf"^cluster\.security\.{name}: got .*{words}") as caught,
        open_cluster(ClusterConfig(security=settings)),
    ):
        pass
    assert len(str(caught.value).splitlines()) == 1


def test_files_are_found_from_where_the_command_runs(files, tmp_path, monkeypatch):
    monkeypatch.chdir(os.path.dirname(files["key"]))
    relative = {name: os.path.basename(path) for name, path in files.items()}
    opened = open_security(ClusterConfig(security=relative).security)
    assert isinstance(opened, Security)
    assert opened.require_encryption
    assert opened.tls_worker_key == files["key"]


def test_temporary_credentials_without_cryptography_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with (
        pytest.raises(ConfigError, match=r"cluster\.security: .* pip install 'dask-rl\[tls\]'"),
        open_cluster(ClusterConfig(security="temporary")),
    ):
        pass


@pytest.mark.parametrize(
    ("cluster", "lines"),
    [
        ({"security": "yes"}, ["cluster.security: got 'yes'; allowed: temporary, or {ca_file, cert, key}"]),
        ({"security": {"ca_file": "a", "cert": "b"}}, ["cluster.security.key: got nothing"]),
        (
            {"security": {"ca_file": "a", "cert": "b", "keys": "c"}},
            ["cluster.security.key: got nothing", "cluster.security.keys: got an unknown key"],
        ),
        (
            {"kind": "address", "address": "tls://10.0.0.1:8786", "security": "temporary"},
            ["cluster: got .*security=temporary is for kinds local, cuda and slurm; kind address needs the files"],
        ),
        ({"kind": "in_process", "security": "temporary"}, ["cluster: got .*kind in_process has none"]),
    ],
)
def test_settings_that_are_wrong_are_a_line_each(cluster, lines):
    job = {"dataset": "d", "algorithm": {"name": "bc"}, "num_steps": 1, "run": "r", "cluster": cluster}
    with pytest.raises((ConfigError, ValidationError)) as caught:
        parse_job(yaml.safe_dump(job))
    got = str(caught.value).splitlines()
    assert len(got) == len(lines)
    for line, words in zip(got, lines, strict=True):
        assert re.match(words.replace("{", r"\{"), line)
