"""Run by itself: how much memory a feed takes while it streams, and a checksum of its batches; JSON on stdout.

usage: feed_memory.py DATASET SMALL_DATASET BUDGET_BYTES NUM_STEPS CASE_JSON

The case is settings of a FeedConfig, its sampling among them.
"""

import ctypes
import gc
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from distributed import Client

from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.sampling import Sampling
from dask_rl.pipeline.feed.source import plan_feed
from dask_rl.storage.layout import crc32c

FIELDS = ("observations", "actions", "rewards", "terminations", "next_observations", "next_valid")


def read_status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(name)


def checksum(config: FeedConfig, num_steps: int) -> int:
    iterator = plan_feed(config).shares(1)[0].open(torch.device("cpu"), 60.0)
    assert iterator.resident == config.resident
    value = 0
    for step in range(num_steps):
        batch = iterator.next_batch()
        if step % 5 == 0:
            for name in sorted(batch):
                value = crc32c(batch[name].numpy().reshape(-1).view("uint8"), value)
    iterator.close()
    return value


def measure(dataset: str, small: str, budget: int, num_steps: int, changes: dict[str, Any]) -> dict[str, int]:
    settings = {"batch_size": 64, **changes, "sampling": Sampling(**changes["sampling"])}
    # What libraries and threads take by themselves is no matter of the data.
    checksum(FeedConfig(small, FIELDS, resident=False, memory_budget_bytes=budget, **settings), 50)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now on
    before = read_status("VmRSS")
    value = checksum(FeedConfig(dataset, FIELDS, resident=False, memory_budget_bytes=budget, **settings), num_steps)
    return {"peak_bytes": read_status("VmHWM") - before, "checksum": value}


def main(dataset: str, small: str, budget: int, num_steps: int, case: dict[str, Any]) -> None:
    # Learners have a Dask worker around them: here it is in this process.
    options: dict[str, Any] = {"processes": False, "n_workers": 1, "threads_per_worker": 3, "memory_limit": 0}
    with Client(dashboard_address=None, **options) as client:
        result = client.submit(measure, dataset, small, budget, num_steps, case).result()
    settings = {"batch_size": 64, **case, "sampling": Sampling(**case["sampling"])}
    plan = plan_feed(FeedConfig(dataset, FIELDS, memory_budget_bytes=budget, **settings))
    resident = replace(plan.feed, resident=True, memory_budget_bytes=None)
    print(json.dumps({**result, "resident_checksum": checksum(resident, num_steps)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
