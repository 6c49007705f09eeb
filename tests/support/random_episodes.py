"""Random episodes, the same for the same arguments."""

from collections.abc import Iterator

import numpy as np

from dask_rl.storage.episode import Episode


def generate(
    num_episodes: int = 12, seed: int = 0, max_length: int = 40, shape: tuple[int, ...] = (3,)
) -> Iterator[Episode]:
    """Yield random episodes; even ones terminate, odd ones are truncated."""
    rng = np.random.default_rng(seed)
    for number in range(num_episodes):
        length = int(rng.integers(1, max_length + 1))
        ended = number % 2 == 0
        yield Episode(
            observations=rng.standard_normal((length + 1, *shape), dtype=np.float32),
            actions=rng.uniform(-2, 2, (length, 1)).astype(np.float32),
            rewards=rng.standard_normal(length, dtype=np.float32),
            terminations=np.arange(length) == (length - 1 if ended else -1),
            truncations=np.arange(length) == (-1 if ended else length - 1),
            infos={"behavior_logp": rng.standard_normal(length)},
            id=100 + number,
            seed=number if number % 3 else None,
        )
