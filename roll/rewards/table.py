"""Which reward a domain's settings name, what can be wrong with it, and building it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import partial
from typing import Literal, cast

from roll.configs.load.aliases import LLM_JUDGE, REWARD_MODEL
from roll.configs.problems import Problem
from roll.datasets.rows import GROUND_TRUTH, Columns, Domain
from roll.errors import describe
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rewards.base import REQUIRED, ROW_CHECK, TAKES_BATCH, BatchReward, Reward, RowCheck
from roll.rewards.builtins import BUILTINS, PATHS
from roll.rewards.chain import Link, chained
from roll.rewards.config import RewardConfig
from roll.rewards.judge.build import api_judge, way_of
from roll.rewards.parts import Part, parts_of
from roll.utils.imports import is_installed, is_missing, resolve

MISSING = f"is missing: {', '.join(BUILTINS)}, {REWARD_MODEL}, or your own package.module:object."


def required_columns(config: RewardConfig) -> tuple[Columns, ...]:
    """The columns that its parts declare (`requires`). Imports them, and builds nothing."""
    columns = [column for part in parts_of(config) for column in _declared(part) or ()]
    return tuple(dict.fromkeys([*columns, *(way_of(config).prompt.columns if config.is_judge else ())]))


def reads_ground_truth(config: RewardConfig) -> bool:
    """True if the code itself of a part that declares nothing names `ground_truth`; what it calls is not looked
    into."""
    return any(_names_ground_truth(part) for part in parts_of(config) if _declared(part) is None)


def row_checks(config: RewardConfig) -> tuple[RowCheck, ...]:
    """What its parts ask of every row (`checks_rows`). Imports them, and builds nothing."""
    found = (getattr(resolve(part.reward, PATHS), ROW_CHECK, None) for part in parts_of(config))
    return tuple(check for check in found if check is not None)


def data_domains(config: RLVRConfig) -> list[Domain]:
    """The domains as the data sees them: each domain's own name, its tags, and the columns that its reward needs.
    Imports the rewards."""
    domains = []
    for name, reward in config.rewards.items():
        tags = tuple(dict.fromkeys((name, *reward.tag_included)))
        required, some = required_columns(reward), reads_ground_truth(reward)
        domains.append(Domain(name, tags, required, some, row_checks(reward)))
    return domains


def _declared(part: Part) -> tuple[Columns, ...] | None:
    declared = getattr(resolve(part.reward, PATHS), REQUIRED, None)
    return None if declared is None else tuple(declared)


def _names_ground_truth(part: Part) -> bool:
    found = resolve(part.reward, PATHS)
    function = inspect.unwrap(found.__call__ if inspect.isclass(found) else found) if callable(found) else None
    return inspect.isfunction(function) and GROUND_TRUTH in function.__code__.co_names


def build_reward(config: RewardConfig, judge: Reward | None = None) -> Reward | BatchReward:
    """The callable that scores one RewardInput, or a list of them (`takes_batch`). Raises what the import or the
    constructor raises. `judge`: what llm_judge is, where it is not a model behind an address."""
    links = [
        _judge_link(part, judge or api_judge(config)) if part.reward == LLM_JUDGE else _link(part)
        for part in parts_of(config)
    ]
    if not links:
        raise ValueError(f"reward {MISSING}")
    return links[0].reward if len(links) == 1 and links[0].is_main else chained(links)


def _judge_link(part: Part, judge: Reward) -> Link:
    return Link(part.name, judge, part.weight, part.is_main, is_async=True)


def _link(part: Part) -> Link:
    found, args = resolve(part.reward, PATHS), part.args
    together = takes_batch(found)
    if inspect.isclass(found):
        found, args = found(**args), {}
    if not callable(found):
        raise TypeError(f"{part.reward} gives a {type(found).__name__}, which cannot be called")
    reward = cast(Reward, partial(found, **args) if args else found)
    return Link(part.name, reward, part.weight, part.is_main, is_async(reward), together)


def is_async(reward: object) -> bool:
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)


def takes_batch(reward: object) -> bool:
    """True if a reward takes whole batches. It may be the user's function, or one that is built."""
    return getattr(reward.func if isinstance(reward, partial) else reward, TAKES_BATCH, False) is True


def sharing_of(config: RewardConfig) -> Literal["none", "loop", "batch"]:
    """What the answers of a group share while they are judged: an event loop where some part is async, otherwise a
    batch where some part takes one. Builds nothing."""
    found = [resolve(part.reward, PATHS) for part in parts_of(config)]
    if any(_is_async_once_built(reward) for reward in found):
        return "loop"
    return "batch" if any(takes_batch(reward) for reward in found) else "none"


def _is_async_once_built(reward: object) -> bool:
    return inspect.iscoroutinefunction(reward.__call__ if inspect.isclass(reward) else reward) or is_async(reward)


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
        found = resolve(part.reward, PATHS)
    except ImportError as error:
        is_away = is_missing(PATHS.get(part.reward, part.reward))
        yield Problem(f"{part.key}.reward: {error}.", keys, "place" if is_away else "run")
        return
    if part.reward != LLM_JUDGE:  # it is built from the domain's settings
        wrong = [Problem(text, keys) for text in _call_problems(part, found)]
        yield from wrong or _build_problems(part, found, keys)


def _call_problems(part: Part, found: object) -> Iterator[str]:
    key, name, args = part.key, part.reward, part.args
    is_class = inspect.isclass(found)
    if not callable(found):
        yield f"{key}.reward: {name} is a {type(found).__name__}; name a function or a class."
        return
    if is_class and "__call__" not in dir(found):
        yield f"{key}.reward: the class {name} has no __call__(self, sample); add one, it does the scoring."
        return
    if takes_batch(found) and _is_async_once_built(found):
        yield (
            f"{key}.reward: {name} takes a batch and is async. Drop @takes_batch: the answers of a group are asked for "
            "at once anyway."
        )
        return
    try:
        signature = inspect.signature(found)
    except ValueError:  # some objects of C extensions have none
        return
    try:
        signature.bind(*(() if is_class else (None,)), **args)
    except TypeError as error:
        yield f"{key}.reward_args: {_called_as(part, is_class, signature)}: {error}."
        return


def _build_problems(part: Part, found: object, keys: tuple[str, ...]) -> Iterator[Problem]:
    """Checks a built-in reward by building it. Some import a user's function, whose module may raise anything."""
    if part.reward not in BUILTINS or not BUILTINS[part.reward].is_quick or not callable(found):
        return
    at = f"{part.key}.reward_args: {part.reward}"
    try:
        found(**part.args)
    except FileNotFoundError as error:
        yield Problem(f"{at}: {error}.", keys, "place")
    except (re.error, ImportError, TypeError, ValueError) as error:
        yield Problem(f"{at}: {error}.", keys)
    except Exception as error:
        yield Problem(f"{at}: {describe(error)}.", keys)


def _called_as(part: Part, is_class: bool, signature: inspect.Signature) -> str:
    called = f"{part.reward}{signature}" if is_class else f"{part.reward}{signature}, called with the sample and"
    return f"{called} {dict(part.args)}"
