"""Jobs that run again and again: scheduled here on APScheduler, or by anybody else who calls `dask-rl jobs exec`.

    serve ──fires──▶ history (jobs.sqlite) ──due──▶ exec, a process of its own ──starts──▶ train, as often as it takes

What is due, at work and done stands in the history before and after it happens, and in the run's own batch.json, so
that any of these processes may be killed at any time: whoever comes next goes on from there.
"""
