"""`roll check-env`: tries an environment against the contract. `roll check-env package.module:Env [key=value ...]
[--config_path FOLDER] [--episodes 20] [--max_steps 200]`; also takes the name of a shipped one."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roll.commands.options import MAX_STEPS, check_env_parser
from roll.configs.load.overrides import apply_overrides
from roll.envs.base import SUCCESS, VALID, Env, EnvStep, draws_actions
from roll.envs.build import env_class
from roll.errors import ConfigError, EnvError, describe
from roll.pipeline.agentic.env_calls import checked_step
from roll.pipeline.agentic.observations import checked_text
from roll.utils.imports import add_folder, traced
from roll.utils.logging import say
from roll.utils.text import counted

NONSENSE = ("", "no such action", "\x00\u2603", "<answer>", "9" * 5000)
SLOW_S = 1.0
_NONSENSE_EPISODES, _NONSENSE_STEPS, _HOLE = 8, 20, 0.25
Make = Callable[[], Any]


def main(argv: Sequence[str]) -> int:
    """0 if everything holds, 1 with the list of what does not. Raises ConfigError if there is no such environment."""
    options = check_env_parser().parse_args(argv)
    add_folder(options.config_path.absolute())
    try:
        constructor, keys = env_class(options.env), dict[str, Any]()
        apply_overrides(keys, options.settings)
        constructor(**keys)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{options.env}: {describe(error)}") from error
    started = time.perf_counter()
    problems, facts = check(lambda: constructor(**keys), options.episodes, options.max_steps)
    say(f"{options.env}: {facts} ({time.perf_counter() - started:.1f} s)")
    for problem in problems:
        say(f"  - {problem}")
    say(f"{counted(len(problems), 'problem')}." if problems else "The contract holds.")
    return 1 if problems else 0


def check(make: Make, episodes: int, max_steps: int = MAX_STEPS) -> tuple[list[str], str]:
    """Everything that breaks the contract, each kind once, and what the episodes were like."""
    problems: dict[str, None] = {}
    lengths: list[int] = []
    wins = 0.0
    num_cut = 0
    for seed in range(episodes):
        try:
            steps = _played(make, seed, max_steps)
            num_cut += not (steps[-1].terminated or steps[-1].truncated)
            lengths.append(len(steps))
            wins += steps[-1].metrics.get(SUCCESS, 0.0)
            problems |= dict.fromkeys(_episode_problems(make(), steps))
        except (Exception, SystemExit) as error:
            problems[f"an episode with random actions fails: {traced(error)}"] = None
    if not lengths:
        return list(problems), "no episode could be played"
    for check_one in (_repeats, _bears_nonsense):
        try:
            problems |= dict.fromkeys(check_one(make))
        except (Exception, SystemExit) as error:
            problems[traced(error)] = None
    mean = sum(lengths) / len(lengths)
    facts = f"{len(lengths)} episodes of {mean:.1f} steps on average, success by chance {wins / len(lengths):.2f}"
    facts += f", {num_cut} cut off after {max_steps}" if num_cut else ""
    facts += "" if draws_actions(make()) else ", with actions that mean nothing, since it has no random_action"
    return list(problems), facts


def _played(make: Make, seed: int, max_steps: int, action: str | None = None) -> list[EnvStep]:
    """An episode of random actions, or of one and the same."""
    env, rng = make(), random.Random(seed)
    checked_text(env.reset(seed), "reset")
    steps: list[EnvStep] = []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        if len(steps) == max_steps:
            break
        started = time.perf_counter()
        steps.append(checked_step(env.step(_action(env, rng) if action is None else action)))
        checked_text(steps[-1].observation, "step")
        if time.perf_counter() - started > SLOW_S:
            raise EnvError(f"a step took {time.perf_counter() - started:.1f} s")
    if isinstance(env, Env):
        env.close()
    return steps


def _episode_problems(env: Any, steps: Sequence[EnvStep]) -> Iterator[str]:
    last = steps[-1]
    if last.terminated and last.truncated:
        yield "an episode is both terminated and truncated: it ends by its own rules, or is cut off, not both"
    for step in steps:
        for name, value in step.metrics.items():
            if not math.isfinite(value):
                yield f"metric {name} is {value}"
        for name in (SUCCESS, VALID):
            if step.metrics.get(name, 0.0) not in (0.0, 1.0):
                yield f"metric {name} is {step.metrics[name]}, not 0 or 1"
    if SUCCESS not in last.metrics:
        yield f"the last step reports no {SUCCESS}: success rates will be missing"
    if isinstance(env, Env):
        low, high = env.reward_range
        total = sum(step.reward for step in steps)
        if not low - 1e-6 <= total <= high + 1e-6:
            yield f"an episode earned {total:g}, outside reward_range [{low:g}, {high:g}]"


def _repeats(make: Make) -> Iterator[str]:
    first, second = make(), make()
    if first.reset(3) != second.reset(3):
        yield "reset(seed) gives different observations for the same seed"
    rng = random.Random(0)
    for _ in range(20):
        action = _action(first, rng)
        a, b = checked_step(first.step(action)), checked_step(second.step(action))
        if a != b:
            yield "the same seed and actions give different steps: draw all chance from the seed"
            break
        if a.terminated or a.truncated:
            break


def _bears_nonsense(make: Make) -> Iterator[str]:
    """Whether every text is an action, and none that means nothing wins."""
    for action in NONSENSE:
        try:
            last = [_played(make, seed, _NONSENSE_STEPS, action)[-1] for seed in range(_NONSENSE_EPISODES)]
        except (Exception, SystemExit) as error:
            yield f"step({action[:20]!r}) fails, and every text is a possible action: {traced(error)}"
            continue
        won = sum(step.metrics.get(SUCCESS, 0.0) for step in last) / len(last)
        if won > _HOLE:
            yield f"{action[:20]!r} as every action wins {won:.0%} of the episodes: a policy finds this"


def _action(env: Any, rng: random.Random) -> str:
    return env.random_action(rng) if draws_actions(env) else rng.choice(NONSENSE[:2])
