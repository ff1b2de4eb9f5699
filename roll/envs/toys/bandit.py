"""A bandit in words: several machines, one pays more often than the others."""

import random
from collections.abc import Sequence

from roll.envs.base import SUCCESS, VALID, Env, EnvStep


class Bandit(Env):
    """Bandit whose best machine is drawn anew for each seed. Each pull earns 0 or 1; `success` says that the best
    machine was pulled last."""

    def __init__(
        self,
        arms: Sequence[str] = ("red", "blue"),
        chances: Sequence[float] = (0.2, 0.8),
        num_pulls: int = 10,
        max_steps: int | None = None,
    ):
        if len(arms) != len(chances) or len(arms) < 2 or num_pulls < 1 or not all(0 <= c <= 1 for c in chances):
            raise ValueError("bandit needs as many chances (0 to 1) as arms, two or more, and a pull")
        self.arms, self.chances, self.num_pulls = tuple(arms), tuple(chances), num_pulls
        self.max_steps = max_steps
        self.reward_range = (0.0, float(num_pulls))
        self.instruction = (
            f"Slot machines stand here: {', '.join(self.arms)}. One of them pays more often. Collect as much as you "
            "can by naming the machine to pull."
        )

    def reset(self, seed: int) -> str:
        self._rng = random.Random(f"bandit {seed}")
        chances = list(self.chances)
        self._rng.shuffle(chances)
        self._chance = dict(zip(self.arms, chances, strict=True))
        self._pulls = 0
        return f"Machines: {', '.join(self.arms)}. {self.num_pulls} pulls."

    def step(self, action: str) -> EnvStep:
        self._pulls += 1
        arm = action.strip().lower()
        known = {name.lower(): name for name in self.arms}
        chance = self._chance[known[arm]] if arm in known else 0.0
        reward = float(self._rng.random() < chance)
        said = f"{known[arm]} pays {reward:g}." if arm in known else "There is no such machine."
        terminated = self._pulls >= self.num_pulls
        truncated = not terminated and self.max_steps is not None and self._pulls >= self.max_steps
        best = max(self._chance.values())
        metrics = {VALID: float(arm in known), SUCCESS: float(arm in known and chance == best)}
        return EnvStep(f"{said} {self.num_pulls - self._pulls} pulls left.", reward, terminated, truncated, metrics)

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(self.arms)
