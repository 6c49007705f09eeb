"""Small Gymnasium environments whose observations are images and mappings; registered where this is imported."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 6
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
MAX_STEPS = 16


class Grid(gymnasium.Env):
    """Walk to a goal that is seen: reward 1 there, and the end; an image of two channels, the agent and the goal.

    Like some simulators it draws every image into the same memory.
    """

    observation_space: spaces.Space = spaces.Box(0, 255, (SIZE, SIZE, 2), np.uint8)
    action_space: spaces.Space = spaces.Discrete(len(MOVES))

    def __init__(self) -> None:
        self.image = np.zeros((SIZE, SIZE, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        places = self.np_random.permutation(SIZE * SIZE)[:2]
        self.agent, self.goal = (np.array(divmod(int(place), SIZE)) for place in places)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.agent = np.clip(self.agent + self.move(action), 0, SIZE - 1)
        self.steps += 1
        found = bool((self.agent == self.goal).all())
        return self.observe(), float(found), found, not found and self.steps == MAX_STEPS, {}

    def move(self, action):
        return MOVES[int(action)]

    def observe(self) -> Any:
        image = self.image
        image[:] = 0
        image[*self.agent, 0] = image[*self.goal, 1] = 255
        return image


class Rooms(Grid):
    """The same walk, seen as a mapping: an image of the agent alone, the goal as numbers, a tuple beside them."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8),
            "goal": spaces.Box(0, SIZE - 1, (2,), np.float32),
            "clock": spaces.Tuple((spaces.Discrete(MAX_STEPS + 1), spaces.MultiBinary(1))),
        }
    )

    def observe(self) -> Any:
        image = super().observe()
        late = np.array([self.steps > MAX_STEPS // 2], np.int8)
        return {"camera": image[:, :, :1], "goal": self.goal.astype(np.float32), "clock": (self.steps, late)}


class Arms(Rooms):
    """Moves are pairs of a direction and whether to move at all."""

    action_space = spaces.Dict({"direction": spaces.Discrete(len(MOVES)), "go": spaces.MultiBinary(1)})

    def move(self, action):
        return MOVES[int(action["direction"])] if action["go"][0] else (0, 0)


class Named(Grid):
    """Observations that no array holds."""

    observation_space = spaces.Dict({"name": spaces.Text(4)})


class GridWalker:
    """Walks to the goal."""

    action_space = Grid.action_space

    def __init__(self, observation_space: spaces.Space) -> None:
        self.observation_space = observation_space

    def __call__(self, observations: Any) -> np.ndarray:
        nested = isinstance(observations, dict)
        image = observations["camera"] if nested else observations
        agent = np.stack(np.unravel_index(image[..., 0].reshape(len(image), -1).argmax(1), (SIZE, SIZE)), 1)
        if nested:
            goal = observations["goal"].astype(int)
        else:
            goal = np.stack(np.unravel_index(image[..., 1].reshape(len(image), -1).argmax(1), (SIZE, SIZE)), 1)
        way = goal - agent
        vertical = np.where(way[:, 0] < 0, 0, 1)
        horizontal = np.where(way[:, 1] < 0, 2, 3)
        return np.where(way[:, 0] != 0, vertical, horizontal)


for _cls in (Grid, Rooms, Arms, Named):
    gymnasium.register(f"{_cls.__name__}-v0", _cls)
