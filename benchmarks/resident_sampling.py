"""What does a batch of 256 rows cost where all rows are in memory? The feed against a bare torch.index_select.

The bare one is given the rows to take, and copies the same columns into reused buffers, one call a field and batch:
no order, no state, no epochs. Gate: at most 1.5 times its time.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from harness import Gate, Report, interleaved, parse_repeats
from problem import BATCH_SIZE, IQL_FIELDS, feed_config, write_dataset

from dask_rl.pipeline.feed.source import plan_feed

NUM_STEPS, NUM_BATCHES = 1_000_000, 20_000
TIMEOUT_SECONDS = 60.0


def bare_batches(columns: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches without end."""
    num_rows = len(columns["observations"]) - 1
    order = torch.from_numpy(np.random.default_rng(0).permutation(num_rows)[: num_rows // BATCH_SIZE * BATCH_SIZE])
    indices = order.split(BATCH_SIZE)
    following = (order + 1).split(BATCH_SIZE)
    out = {field: column[:BATCH_SIZE].clone() for field, column in columns.items()}
    for rows, behind in cycle(zip(indices, following, strict=True)):
        for field, column in columns.items():
            torch.index_select(column, 0, behind if field == "next_observations" else rows, out=out[field])
        yield out


def main() -> int:
    repeats = parse_repeats()
    report = Report("resident_sampling", "A batch of 256 transitions of IQL from rows in memory")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.zarr"
        with write_dataset(path, NUM_STEPS) as dataset:
            stored = {
                field: torch.from_numpy(dataset.read(field, 0, dataset.num_rows))
                for field in ("observations", "actions", "rewards", "terminations")
            }
        stored["terminations"] = stored["terminations"].float()  # as the feed delivers them
        stored["next_observations"] = stored["observations"]
        stored["next_valid"] = torch.ones(len(stored["rewards"]), dtype=torch.bool)
        columns = {field: stored[field] for field in IQL_FIELDS}
        bare = bare_batches(columns)
        feed = plan_feed(feed_config(path, 1, 1, resident=True)).shares(1)[0]
        iterator = feed.open(torch.device("cpu"), TIMEOUT_SECONDS)

        def microseconds(next_batch: Callable[[], object]) -> Callable[[], float]:
            def measure() -> float:
                start = time.perf_counter()
                for _ in range(NUM_BATCHES):
                    next_batch()
                return (time.perf_counter() - start) / NUM_BATCHES * 1e6

            measure()
            return measure

        cases = {"dask-rl": microseconds(iterator.next_batch), "torch.index_select": microseconds(bare.__next__)}
        report.samples = interleaved(cases, "µs/batch", repeats)
        iterator.close()
    ours, index_select = report.samples.values()
    report.gates = [Gate("against torch.index_select", ours / index_select, 1.5, "at most")]
    report.notes.append(f"{NUM_STEPS} rows, in random order; {', '.join(IQL_FIELDS)}.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
