"""Table of rewards: which reward a domain's settings name, checks of it, and building it."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

from roll.configs.tables.roles import LLM_JUDGE, REWARD_MODEL
from roll.rewards.base import REQUIRED, ROW_CHECK, TAKES_BATCH, BatchReward, Reward, RowCheck
from roll.rewards.chain import Link, Part, chained, parts_of
from roll.rewards.config import BUILTINS, PATHS, RewardConfig
from roll.utils.imports import resolve
from roll.utils.truths import GROUND_TRUTH, Columns

MISSING = f"is missing: {', '.join(BUILTINS)}, {REWARD_MODEL}, or your own package.module:object."


def required_columns(config: RewardConfig) -> tuple[Columns, ...]:
    """The columns that its parts declare (`requires`). Imports them, and builds nothing."""
    columns = [column for part in parts_of(config) for column in _declared(part) or ()]
    return tuple(dict.fromkeys([*columns, *(judge_class().columns(config) if config.is_judge else ())]))


def judge_class() -> Any:
    """`roll.rewards.judge.api.ApiJudge`, for a domain that a judge scores."""
    return resolve(LLM_JUDGE, PATHS)


def reads_ground_truth(config: RewardConfig) -> bool:
    """True if the code itself of a part that declares nothing names `ground_truth` or `accepted`; what it calls is not
    looked into."""
    return any(_names_ground_truth(part) for part in parts_of(config) if _declared(part) is None)


def row_checks(config: RewardConfig) -> tuple[RowCheck, ...]:
    """Return the checks that its parts make of every row (`checks_rows`). Imports them, and builds nothing."""
    checks = ((getattr(resolve(part.reward, PATHS), ROW_CHECK, None), part.args) for part in parts_of(config))
    return tuple(_with_arguments(check, args) for check, args in checks if check is not None)


def _with_arguments(check: RowCheck, args: Mapping[str, Any]) -> RowCheck:
    known = inspect.signature(check).parameters
    return partial(check, **{name: value for name, value in args.items() if name in known})


def _declared(part: Part) -> tuple[Columns, ...] | None:
    declared = getattr(resolve(part.reward, PATHS), REQUIRED, None)
    return None if declared is None else tuple(declared)


def _names_ground_truth(part: Part) -> bool:
    reward = resolve(part.reward, PATHS)
    function = inspect.unwrap(reward.__call__ if inspect.isclass(reward) else reward) if callable(reward) else None
    return inspect.isfunction(function) and not {GROUND_TRUTH, "accepted"}.isdisjoint(function.__code__.co_names)


def build_reward(config: RewardConfig, judge: Reward | None = None) -> Reward | BatchReward:
    """The callable that scores one RewardInput, or a list of them (`takes_batch`). Raises what the import or the
    constructor raises. `judge`: what llm_judge is, where it is not a model behind an address."""
    links = [
        Link(part.name, judge or judge_class()(config), part.weight, part.is_main, is_async=True)
        if part.reward == LLM_JUDGE
        else _link(part)
        for part in parts_of(config)
    ]
    if not links:
        raise ValueError(f"reward {MISSING}")
    return links[0].reward if len(links) == 1 and links[0].is_main else chained(links)


def _link(part: Part) -> Link:
    target, args = resolve(part.reward, PATHS), part.args
    together = takes_batch(target)
    if inspect.isclass(target):
        target, args = target(**args), {}
    if not callable(target):
        raise TypeError(f"{part.reward} gives a {type(target).__name__}, which cannot be called")
    reward = cast(Reward, partial(target, **args) if args else target)
    return Link(part.name, reward, part.weight, part.is_main, is_async(reward), together)


def is_async(reward: object) -> bool:
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)


def takes_batch(reward: object) -> bool:
    """True if a reward takes whole batches. It may be the user's function, or one that is built."""
    return getattr(reward.func if isinstance(reward, partial) else reward, TAKES_BATCH, False) is True


def sharing_of(config: RewardConfig) -> Literal["none", "loop", "batch"]:
    """Return what the answers of a group share while they are judged: an event loop if some part is async, otherwise a
    batch if some part takes one. Builds nothing."""
    rewards = [resolve(part.reward, PATHS) for part in parts_of(config)]
    if any(_is_async_once_built(reward) for reward in rewards):
        return "loop"
    return "batch" if any(takes_batch(reward) for reward in rewards) else "none"


def _is_async_once_built(reward: object) -> bool:
    return inspect.iscoroutinefunction(reward.__call__ if inspect.isclass(reward) else reward) or is_async(reward)
