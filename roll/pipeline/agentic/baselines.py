"""How well one does without a policy: by chance, and by the best fixed plan that looks at no observation."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from roll.envs.base import SUCCESS, Env, draws_actions
from roll.envs.build import build_env
from roll.envs.config import EnvConfig

MAX_PLANS = 256


def baselines(config: EnvConfig, seeds: Sequence[int]) -> dict[str, float]:
    """Shares of episodes that end in success: `random` by actions drawn at random, `blind` by the best of the
    environment's blind plans, chosen on these very seeds (so it flatters a little). What an environment does not offer
    is left out."""
    probe = build_env(config)
    plans = list(probe.blind_plans(config.max_steps))[:MAX_PLANS] if isinstance(probe, Env) else []
    can_draw = draws_actions(probe)
    probe.close()
    found: dict[str, float] = {}
    if can_draw:
        rng = random.Random(0)
        found["random"] = float(np.mean([_play(config, seed, None, rng) for seed in seeds]))
    if plans:
        rng = random.Random(0)
        found["blind"] = max(float(np.mean([_play(config, seed, plan, rng) for seed in seeds])) for plan in plans)
    return found


def _play(config: EnvConfig, seed: int, plan: Sequence[str] | None, rng: random.Random) -> float:
    env = build_env(config)
    env.reset(seed)
    success = 0.0
    for turn in range(config.max_steps if plan is None else min(config.max_steps, len(plan))):
        step = env.step(env.random_action(rng) if plan is None else plan[turn])
        success = step.metrics.get(SUCCESS, 0.0)
        if step.terminated or step.truncated:
            break
    env.close()
    return success
