"""Checks of the code of rewards."""

import inspect
import re
from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.tables.roles import LLM_JUDGE
from roll.errors import describe
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.chain import Part, parts_of
from roll.rewards.config import BUILTINS, PATHS, RewardConfig
from roll.rewards.table import (
    MISSING,
    _is_async_once_built,
    takes_batch,
)
from roll.utils.imports import is_installed, is_missing, resolve


def code_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Every problem with the rewards that takes an import to see. Builds none of the user's."""
    for domain, worker in config.rewards.items():
        if not worker.is_model:
            key = f"rewards.{domain}"
            yield from (Problem(text, (f"{key}.format_pattern",)) for text in _pattern_problems(key, worker))
            parts = parts_of(worker, key)
            yield from () if parts else (Problem(f"{key}.reward {MISSING}", (f"{key}.reward", key)),)
            for part in parts:
                yield from _part_problems(part, worker)


def _pattern_problems(key: str, config: RewardConfig) -> Iterator[str]:
    if config.format_pattern is None:
        return
    try:
        re.compile(config.format_pattern)
    except re.error as error:
        yield f"{key}.format_pattern: {config.format_pattern!r} is not a regular expression: {error}. Correct it."


def _part_problems(part: Part, config: RewardConfig) -> Iterator[Problem]:
    row, keys = BUILTINS.get(part.reward), (f"{part.key}.reward", f"{part.key}.reward_args")
    is_elsewhere = part.reward == LLM_JUDGE and config.judge_model_type != "api"  # needs no client
    if row is not None and row.package is not None and not is_elsewhere and not is_installed(row.package[0]):
        package, install = row.package
        text = f"{part.reward} needs the package {package}, which is not installed. Install it: {install}."
        yield Problem(f"{part.key}.reward: {text}", keys, "machine")
        return
    try:
        reward = resolve(part.reward, PATHS)
    except ImportError as error:
        is_away = is_missing(PATHS.get(part.reward, part.reward))
        yield Problem(f"{part.key}.reward: {error}.", keys, "place" if is_away else "run")
        return
    if part.reward != LLM_JUDGE:  # it is built from the domain's settings
        wrong = [Problem(text, keys) for text in _call_problems(part, reward)]
        yield from wrong or _build_problems(part, reward, keys)


def _call_problems(part: Part, reward: object) -> Iterator[str]:
    key, name, args = part.key, part.reward, part.args
    is_class = inspect.isclass(reward)
    if not callable(reward):
        yield f"{key}.reward: {name} is a {type(reward).__name__}; name a function or a class."
        return
    if is_class and "__call__" not in dir(reward):
        yield f"{key}.reward: the class {name} has no __call__(self, sample); add one, it does the scoring."
        return
    if takes_batch(reward) and _is_async_once_built(reward):
        yield (
            f"{key}.reward: {name} takes a batch and is async. Drop @takes_batch: the responses of a group are scored "
            "at the same time anyway."
        )
        return
    try:
        signature = inspect.signature(reward)
    except ValueError:  # some objects of C extensions have none
        return
    try:
        signature.bind(*(() if is_class else (None,)), **args)
    except TypeError as error:
        yield f"{key}.reward_args: {_called_as(part, is_class, signature)}: {error}."
        return


def _build_problems(part: Part, reward: object, keys: tuple[str, ...]) -> Iterator[Problem]:
    """Checks a built-in reward by building it. Some import a user's function, whose module may raise anything."""
    if part.reward not in BUILTINS or not BUILTINS[part.reward].is_quick or not callable(reward):
        return
    at, path = f"{part.key}.reward_args: {part.reward}", part.args.get("path")
    try:
        reward(**part.args)
    except FileNotFoundError as error:
        yield Problem(f"{at}: {error}.", keys, "place")
    except Exception as error:
        is_away = isinstance(path, str) and not path.endswith(".py") and is_missing(path)
        is_told = isinstance(error, (re.error, ImportError, TypeError, ValueError))
        text = str(error) if is_told else describe(error)
        yield Problem(f"{at}: {text}.", keys, "place" if is_away else "run")


def _called_as(part: Part, is_class: bool, signature: inspect.Signature) -> str:
    called = f"{part.reward}{signature}" if is_class else f"{part.reward}{signature}, called with the sample and"
    return f"{called} {dict(part.args)}"
