"""Episodes that run on their own against the lock-step form: how many more per second, and how long environments wait.

256 environments whose steps take 5 to 500 ms (log-uniform, drawn anew for every step) play episodes of 8 turns, some
after each other; the policy is a stand-in that answers after 20 ms, however many ask. Both forms play with the same
code; in lock-step the policy answers only when all environments have asked, and a round begins when all have ended.
Prints episodes per second, the fraction of their time in which environments wait for others, and the ratio.

With these times a turn takes .13 s on average and .51 s in lock-step, so 4 is the most there is to gain.

python benchmarks/agentic_rollouts.py [--environments 256] [--turns 8] [--rounds 6]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from roll.envs.base import Env, EnvStep
from roll.models.tiny import build_tokenizer
from roll.pipeline.agentic.agentic_config import EnvConfig
from roll.pipeline.agentic.episode import EpisodeJob, EpisodePlayer, EpisodeRules
from roll.pipeline.agentic.sample_forms import FORMS, ChatEncoder
from roll.types.rollout import Generation, GenerationRequest, SamplingParams

FASTEST_S, SLOWEST_S, ANSWER_S = 0.005, 0.5, 0.02
Form = Callable[[int, int, int, ChatEncoder], Coroutine[Any, Any, None]]


class Slow(Env):
    """Waits as a browser or a server would."""

    busy_s = 0.0  # of all environments together

    def reset(self, seed: int) -> str:
        self._rng = random.Random(seed)
        return "ready"

    def step(self, action: str) -> EnvStep:
        seconds = FASTEST_S * (SLOWEST_S / FASTEST_S) ** self._rng.random()
        time.sleep(seconds)
        Slow.busy_s += seconds
        return EnvStep("again", 0.0, False, False, {"success": 0.0})


class Policy:
    """Answers after a while; in lock-step the answers wait until `together` requests are there."""

    def __init__(self, encoder: ChatEncoder, together: int = 1):
        self._ids = encoder.start([("user", "x")])[:4]
        self._together, self._num_asked, self._all_asked = together, 0, asyncio.Event()

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        everybody = self._all_asked
        self._num_asked += 1
        if self._num_asked == self._together:
            self._num_asked, self._all_asked = 0, asyncio.Event()
            everybody.set()
        await everybody.wait()
        await asyncio.sleep(ANSWER_S)
        zeros = np.zeros(len(self._ids), np.float32)
        return [Generation(self._ids, zeros, zeros.astype(np.int32), "stop")]


def player(encoder: ChatEncoder, turns: int, together: int = 1) -> EpisodePlayer:
    config = EnvConfig(env_type="__main__:Slow", max_steps=turns)
    rules = EpisodeRules(config, SamplingParams(16), 4096, 16, 0.0, 0, None, None, 0)
    form = FORMS[config.env_manager_cls](config, encoder, 4096, 16)
    return EpisodePlayer(rules, encoder, form, Policy(encoder, together).generate)


async def play(episodes: Iterable[int], by: EpisodePlayer) -> None:
    for number in episodes:
        (row,) = await by.play(EpisodeJob("Slow", number, "train", 0, number))
        assert row.failure is None, row.failure


async def in_lock_step(num_environments: int, turns: int, rounds: int, encoder: ChatEncoder) -> None:
    """All answers, then all steps, turn after turn and round after round."""
    by = player(encoder, turns, together=num_environments)
    for first in range(0, rounds * num_environments, num_environments):
        await asyncio.gather(*(play([first + i], by) for i in range(num_environments)))


async def on_their_own(num_environments: int, turns: int, rounds: int, encoder: ChatEncoder) -> None:
    """As many at once; whoever has ended takes the next episode, as groups in a rollout do."""
    by, episodes = player(encoder, turns), iter(range(rounds * num_environments))
    await asyncio.gather(*(play(episodes, by) for _ in range(num_environments)))


def measure(name: str, form: Form, sizes: tuple[int, int, int], encoder: ChatEncoder) -> float:
    """Episodes per second."""
    num_environments, turns, rounds = sizes
    Slow.busy_s = 0.0
    started = time.perf_counter()
    asyncio.run(form(num_environments, turns, rounds, encoder))
    wall_s = time.perf_counter() - started
    idle = 1 - (Slow.busy_s + num_environments * rounds * turns * ANSWER_S) / (wall_s * num_environments)
    rate = num_environments * rounds / wall_s
    print(f"{name:14} {rate:7.1f} episodes/s, environments idle {idle:.0%}, {wall_s:.1f} s")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=int, default=256)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    encoder = ChatEncoder(build_tokenizer())
    sizes = (given.environments, given.turns, given.rounds)
    slow = measure("lock-step", in_lock_step, sizes, encoder)
    fast = measure("on their own", on_their_own, sizes, encoder)
    print(f"ratio {fast / slow:.2f}")


if __name__ == "__main__":
    main()
