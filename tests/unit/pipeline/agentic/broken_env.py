"""Environments that break the contract in several ways."""

import itertools
import random

from roll.envs.base import Env, EnvStep

_count = itertools.count()


class Broken(Env):
    reward_range = (0.0, 1.0)

    def reset(self, seed: int) -> str:
        return f"game {next(_count)}"

    def step(self, action: str) -> EnvStep:
        return EnvStep("", {"go": 2.0}[action], True, True, {})

    def random_action(self, rng: random.Random) -> str:
        return "go"


class Short:
    """Leaves out `truncated`."""

    def reset(self, seed: int) -> str:
        return ""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, float]]:
        return "", 0.0, True, {}


class Silent:
    """Shows nothing after the last action."""

    def reset(self, seed: int) -> str:
        return ""

    def step(self, action: str) -> tuple[None, float, bool, bool, dict[str, float]]:
        return None, 0.0, True, False, {}


class Generous(Env):
    """Whatever is said wins."""

    def reset(self, seed: int) -> str:
        return f"guess {seed}"

    def step(self, action: str) -> EnvStep:
        return EnvStep("", 1.0, True, False, {"success": 1.0})
