"""What a run is asked is done between two updates, answered always, and never lost at its end."""

import os
import signal
import threading

import pytest

from dask_rl.pipeline.runs.live.control import ACTIONS, RunControl
from dask_rl.pipeline.runs.stop_request import StopRequest
from dask_rl.storage.errors import CheckpointError, ConfigError, RunStateError

SECONDS = 30


@pytest.fixture
def control():
    control = RunControl("pendulum", 100)
    control.tell(status="running", step=20)
    return control


def serve(control, save=lambda: "path"):
    """Serve in a thread, as a run does."""
    thread = threading.Thread(target=control.serve, args=(save,), daemon=True)
    thread.start()
    return thread


def test_without_a_request_nothing_waits(control):
    control.serve(lambda: pytest.fail("nobody asked"))
    assert (control.state.status, control.state.step) == ("running", 20)


def test_a_paused_run_waits_and_still_saves_until_it_is_resumed(control):
    said = []
    control.on_change(lambda state: said.append(state.status))
    paused, saved = control.ask("pause"), control.ask("checkpoint")
    thread = serve(control)
    assert (paused.result(SECONDS), saved.result(SECONDS)) == (20, "path")
    assert (control.state.status, thread.is_alive()) == ("paused", True)
    assert control.ask("resume").result(SECONDS) == 20
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert said == ["paused", "running"]


def test_a_paused_run_is_woken_by_a_stop_and_by_a_signal(control):
    control.ask("pause")
    thread = serve(control)
    stopped = control.ask("stop")
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert not stopped.done()
    control.end("interrupted", checkpoint="last")
    assert stopped.result(SECONDS) == "interrupted"

    with StopRequest() as request:
        control = RunControl("pendulum", 100, request)
        control.ask("pause").add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))
        control.serve(lambda: "path")  # in the main thread, where the signal is taken
        assert request.requested


def test_who_waits_when_it_ends_is_answered(control):
    asked = {action: control.ask(action) for action in ACTIONS}
    control.end("interrupted", checkpoint="last")
    control.end("failed", reason="too late to matter")
    assert (asked["stop"].result(0), asked["checkpoint"].result(0)) == ("interrupted", "last")
    for action in ("pause", "resume"):
        with pytest.raises(
            RunStateError, match=rf"run pendulum: got {action}, and it is interrupted at step 20 of 100"
        ):
            asked[action].result(0)
    assert (control.ask("stop").result(0), control.ask("checkpoint").result(0)) == ("interrupted", "last")
    with pytest.raises(RunStateError, match=r"train the same job again: it goes on\."):
        control.ask("pause").result(0)


def test_a_checkpoint_that_cannot_be_written_costs_the_asker_not_the_run(control):
    def fail(error):
        def save():
            raise error

        return save

    for error in (OSError("disk full"), CheckpointError("disk full")):
        asked = control.ask("checkpoint")
        control.serve(fail(error))
        with pytest.raises(type(error), match="disk full"):
            asked.result(0)
    asked = control.ask("checkpoint")
    with pytest.raises(RuntimeError, match="learners gone"):
        control.serve(fail(RuntimeError("learners gone")))
    with pytest.raises(RunStateError, match="learners gone"):
        asked.result(0)


def test_it_fails_with_the_first_line_of_its_error(control):
    with pytest.raises(ValueError, match="no"), control.failing():
        raise ValueError("no\nTraceback …")
    assert control.state.describe(100) == "failed at step 20 of 100 (no)"
    assert control.state.is_over
    control.tell(status="running", step=21)
    assert control.state.step == 20


def test_what_it_does_besides_training_is_said_while_it_lasts(control):
    def fail():
        with control.doing("evaluating"), control.doing("saving"):
            assert control.state.status == "saving"
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert control.state.status == "running"


def test_other_actions_are_refused(control):
    with pytest.raises(ConfigError, match="got 'dance'; allowed: pause, resume, stop, checkpoint"):
        control.ask("dance")
