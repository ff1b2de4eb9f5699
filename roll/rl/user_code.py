"""Estimators and policy losses of the user's own: what can be wrong with them, before anything starts."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from pydantic import ValidationError

from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.errors import AlgorithmError, describe
from roll.utils.imports import resolve
from roll.utils.text import show

ESTIMATOR_KEYS = ("adv_estimator", "adv_args")
LOSS_KEYS = ("pg_variant", "actor_train.pg_variant", "pg_args")
NORM_KEYS = ("norm_mean_type", "norm_std_type", "reward_normalization")
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def user_code_problems(config: AlgorithmConfig) -> list[Problem]:
    """Runs the user's code if the configuration names any, and imports no torch otherwise."""
    return [*_estimator_problems(config), *_loss_problems(config)]


def _estimator_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    row, args = config.estimator, config.adv_args
    mean, std = config.reward_norms
    if (mean != "default" and not row.takes_norms) or (std != "default" and not row.takes_std):
        yield Problem(
            f"adv_estimator: {row.name} says by itself what a reward is worth, so norm_mean_type, norm_std_type and "
            "reward_normalization do nothing. Remove them.",
            (*ESTIMATOR_KEYS, *NORM_KEYS),
        )
    if not row.is_user_defined:
        if args:
            yield Problem(
                f"adv_args are arguments of an adv_estimator of your own; {row.name} takes none. Remove them.",
                ESTIMATOR_KEYS,
            )
        return
    first_argument = "turns" if row.per_turn else "attempts"
    wrong = list(_argument_problems("adv_args", "adv_estimator", row.name, args, first_argument))
    yield from wrong
    if not wrong:
        yield from _trial(ESTIMATOR_KEYS, _try_estimator, config)


def _loss_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    form, args = config.policy_form, config.pg_args
    at = "actor_train.pg_variant" if config.actor_train.pg_variant else "pg_variant"
    if not form.is_user_defined:
        if args:
            yield Problem(
                f"pg_args are arguments of a pg_variant of your own. {form.name} has keys of its own: "
                f"{', '.join(form.keys) or 'none'}. Remove pg_args.",
                LOSS_KEYS,
            )
        return
    wrong = list(_argument_problems("pg_args", at, form.name, args))
    if wrong and not args and inspect.isroutine(resolve(form.name)):
        text = "a function that is called with pg_args alone. Name a class, whose objects are called with the tokens."
        wrong = [Problem(f"{at}: {form.name} is {text}", LOSS_KEYS)]
    yield from wrong or _object_problems(at, form.name, args)


def _argument_problems(
    key: str, owner: str, name: str, arguments: Mapping[str, Any], first: str | None = None
) -> Iterator[Problem]:
    """`first`: what the function is called with before its keyword arguments."""
    try:
        signature = inspect.signature(cast(Callable[..., Any], resolve(name)))
    except ValueError:  # some objects of C extensions have none
        return
    parameters = list(signature.parameters.values())
    if first is not None:
        if not parameters or parameters[0].kind not in BY_PLACE:
            yield Problem(f"{owner}: {name}{signature} must take the {first} as its first argument.", (owner, key))
            return
        del parameters[0]
    names = [parameter.name for parameter in parameters if parameter.kind in BY_NAME]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for argument in arguments:
        if argument not in names and not takes_any:
            known = f"It has {', '.join(names) or 'none'}.{did_you_mean(str(argument), names)}"
            yield Problem(f"{key}.{argument}: {name} has no such argument. {known}", (owner, key))
    for parameter in parameters:
        if parameter.name in names and parameter.default is parameter.empty and parameter.name not in arguments:
            yield Problem(f"{key}.{parameter.name} is missing: {name}{signature} needs it.", (owner, key))


def _object_problems(at: str, name: str, args: Mapping[str, Any]) -> Iterator[Problem]:
    from roll.algorithms.user_objective import build_objective  # torch: only where a loss of the user's is named

    try:
        built: object = build_objective(name, args)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            key = ".".join(["pg_args", *map(str, item["loc"])])
            value = f"{show(item['input'])}: " if item["loc"] else f"{name}: "
            yield Problem(f"{key}: {value}{item['msg'].removeprefix('Value error, ')}.", LOSS_KEYS)
        return
    except (Exception, SystemExit) as error:
        yield Problem(f"{at}: {name} cannot be built: {describe(error)}.", LOSS_KEYS)
        return
    form = "it is called as object(tokens, metrics)"
    if not callable(built):
        yield Problem(f"{at}: {name} gives a {type(built).__name__} that cannot be called: {form}.", LOSS_KEYS)
        return
    try:
        inspect.signature(built).bind(None, None)
    except TypeError as error:
        yield Problem(f"{at}: {name}: {form}, but its __call__: {error}.", LOSS_KEYS)
        return
    except ValueError:  # some objects of C extensions have none
        pass
    yield from _trial(LOSS_KEYS, _try_loss, name, args)


def _trial(keys: tuple[str, ...], attempt: Callable[..., None], *arguments: object) -> Iterator[Problem]:
    try:
        attempt(*arguments)
    except AlgorithmError as error:
        yield Problem(f"{str(error).removesuffix('.')}. (Tried with made-up numbers, before the run.)", keys)


def _try_estimator(config: AlgorithmConfig) -> None:
    from roll.rl.user_code_trials import try_estimator  # numpy: only where an estimator of the user's is named

    try_estimator(config)


def _try_loss(name: str, args: Mapping[str, Any]) -> None:
    from roll.rl.user_code_trials import try_loss

    try_loss(name, args)
