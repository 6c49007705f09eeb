"""The real server: what it starts, what it takes up, what it leaves alone."""

from job_cases import trainer_of, wait_for, zombies_of
from run_commands import has_checkpoint_beyond

YEARLY = "0 0 1 1 *"


def test_a_killed_run_and_a_killed_server_leave_a_complete_history(jobs):
    """Due every few seconds; one run and one server are killed: each time ran once, to the bits of any other run."""
    job = jobs.write(num_steps=3000)
    jobs.call("add", job, "--cron", "*/8 * * * * *", "--timezone", "UTC")
    server = jobs.serve()
    first = jobs.at_work()
    trainer = wait_for(lambda: trainer_of(first), "the training process")
    wait_for(lambda: has_checkpoint_beyond(jobs.base() / first.run, 20), "a checkpoint")
    trainer.kill()
    server.kill()
    server.wait()
    second_server = jobs.serve()
    jobs.call("pause", "nightly")
    (done,) = jobs.ended(1)
    assert done.time == first.time
    assert done.attempts == 2
    assert zombies_of(second_server.pid) == []
