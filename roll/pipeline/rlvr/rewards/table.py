"""Which reward a domain's settings name, what can be wrong with it, and building it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from roll.datasets.rows import GROUND_TRUTH
from roll.pipeline.rlvr.rewards.base import REQUIRED, Reward
from roll.pipeline.rlvr.rlvr_config import RewardConfig, RLVRConfig
from roll.utils.imports import is_installed, resolve

HOME = "roll.pipeline.rlvr.rewards"
BUILTINS: Mapping[str, str] = {
    "math_rule": f"{HOME}.math_rule:MathRule",
    "exact_match": f"{HOME}.exact_match:ExactMatch",
    "regex": f"{HOME}.exact_match:Regex",
}
QUICK_TO_BUILD = ("exact_match", "regex")  # so a preflight may build them, which checks their patterns
PACKAGES = {"math_rule": ("math_verify", "pip install math-verify")}


def required_columns(config: RewardConfig) -> tuple[str, ...] | None:
    """The columns that the reward declares (`requires`), None if it says nothing. Imports it, and builds nothing."""
    found = resolve(config.reward, BUILTINS) if config.reward is not None else None
    declared = getattr(found, REQUIRED, None)
    return None if declared is None else tuple(declared)


def reads_ground_truth(config: RewardConfig) -> bool:
    """True if the code of the reward itself names `ground_truth`; what it calls is not looked into."""
    found = resolve(config.reward, BUILTINS) if config.reward is not None else None
    function = inspect.unwrap(found.__call__ if inspect.isclass(found) else found) if callable(found) else None
    return inspect.isfunction(function) and GROUND_TRUTH in function.__code__.co_names


def build_reward(config: RewardConfig) -> Reward:
    """The callable that scores one RewardInput. Raises what the import or the constructor raises."""
    if config.reward is None:
        raise ValueError(f"reward is not set; built in are {', '.join(BUILTINS)}")
    found = resolve(config.reward, BUILTINS)
    args = config.reward_args
    if inspect.isclass(found):
        found, args = found(**args), {}
    if not callable(found):
        raise TypeError(f"{config.reward} gives a {type(found).__name__}, which cannot be called")
    return cast(Reward, partial(found, **args) if args else found)


def is_async(reward: Reward) -> bool:
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)


def scores_together(config: RewardConfig) -> bool:
    """True if the reward is async, so that answers wait at the same time. Builds nothing."""
    assert config.reward is not None
    found = resolve(config.reward, BUILTINS)
    return is_async(cast(Reward, found.__call__ if inspect.isclass(found) else found))


def preflight(config: RLVRConfig) -> list[str]:
    """Every problem with the rewards that takes an import to see, one message each. Builds none of the user's."""
    return [problem for domain, worker in config.rewards.items() for problem in _problems(f"rewards.{domain}", worker)]


def _problems(key: str, config: RewardConfig) -> list[str]:
    problems: list[str] = []
    if config.format_pattern is not None:
        try:
            re.compile(config.format_pattern)
        except re.error as error:
            problems.append(
                f"{key}.format_pattern: {config.format_pattern!r} is not a regular expression: {error}. Correct it."
            )
    name = config.reward
    if name is None:
        return [*problems, f"{key}.reward is missing: {', '.join(BUILTINS)}, or your own package.module:object."]
    package, install = PACKAGES.get(name, ("", ""))
    if package and not is_installed(package):
        text = f"{key}.reward: {name} needs the package {package}, which is not installed. Install it: {install}."
        return [*problems, text]
    try:
        found = resolve(name, BUILTINS)
    except ImportError as error:
        return [*problems, f"{key}.reward: {error}."]
    return problems + _call_problems(key, name, found, config.reward_args)


def _call_problems(key: str, name: str, found: object, args: Mapping[str, Any]) -> list[str]:
    is_class = inspect.isclass(found)
    if not callable(found):
        return [f"{key}.reward: {name} is a {type(found).__name__}; name a function or a class."]
    if is_class and "__call__" not in dir(found):
        return [f"{key}.reward: the class {name} has no __call__(self, sample); add one, it does the scoring."]
    try:
        signature = inspect.signature(found)
    except ValueError:  # some objects of C extensions have none
        return []
    try:
        signature.bind(*(() if is_class else (None,)), **args)
    except TypeError as error:
        called = f"{name}{signature}" if is_class else f"{name}{signature}, called with the sample and"
        return [f"{key}.reward_args: {called} {dict(args)}: {error}."]
    if name in QUICK_TO_BUILD:
        try:
            found(**args)
        except (re.error, TypeError, ValueError) as error:
            return [f"{key}.reward_args: {name}: {error}."]
    return []
