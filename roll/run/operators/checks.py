"""What is wrong with `data_args.operators`, told before anything is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from roll.configs.load.validate import validate
from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.data import DataArgs, OperatorConfig
from roll.configs.sections.operators import DATA_JUICER, OPERATORS, data_juicer_op, operator_of
from roll.run.operators.data_juicer import missing_package
from roll.run.operators.idle import idle_arguments
from roll.utils.imports import resolve, split


def operator_problems(data_args: Mapping[str, DataArgs], learnt: str, answers: bool = True) -> Iterator[Problem]:
    """`data_args` by their YAML path; `learnt` are those that the run learns from. `answers`: its rows have some."""
    evaluated = [at for at in data_args if at != learnt]
    for at, place, entry in _entries(data_args):
        known = operator_of(entry.name)
        if known is None:
            yield from _form(at, place, entry)
            continue
        checked = validate(known.args, entry.args)
        for problem in checked.problems:
            yield Problem(f"{place}.args.{problem.text}", (f"{at}.operators",))
        if checked.config is None:
            continue
        for text in idle_arguments(checked.config) if not checked.problems else ():
            yield Problem(f"{place}.args{text}", (f"{at}.operators",))
        args = checked.config.model_dump()
        low, high = args.get("min"), args.get("max")
        if low is not None and high is not None and low > high:
            yield Problem(f"{place}.args.min: {low:g} is above max: {high:g}, so no row fits.", (f"{at}.operators",))
        if not answers and args.get("part") == "response":
            text = f"{place}.args.part: rows of this run have no answers. Write prompt, or leave it out."
            yield Problem(text, (f"{at}.operators",))
        if known.compares and (at != learnt or not evaluated):
            why = "there is no validation.data_args" if at == learnt else f"{learnt} is what is compared with them"
            yield Problem(
                f"{place}: {entry.name} compares with what the run is evaluated on, and {why}. Take it out, or give "
                f"{'validation.data_args' if at == learnt else 'it to ' + learnt}.",
                (f"{at}.operators", "validation"),
            )


def missing_packages(data_args: Mapping[str, DataArgs]) -> Iterator[Problem]:
    """What operators need and this machine lacks."""
    for at, place, entry in _entries(data_args):
        if data_juicer_op(entry.name) is not None and (missing := missing_package()) is not None:
            yield Problem(f"{place}: {missing}.", (f"{at}.operators",), "machine")


def own_function_problems(data_args: Mapping[str, DataArgs]) -> Iterator[str]:
    """Functions of the user's own that cannot be imported."""
    for _, place, entry in _entries(data_args):
        named = [(place, entry.name)] if operator_of(entry.name) is None else []
        named += [(f"{place}.args.scorer", str(entry.args["scorer"]))] if entry.args.get("scorer") else []
        for key, path in named:
            try:
                if not callable(resolve(path)):
                    yield f"{key}: {path} cannot be called."
            except ImportError as error:
                yield f"{key}: {error}."


def _form(at: str, place: str, entry: OperatorConfig) -> Iterator[Problem]:
    try:
        split(entry.name, dict.fromkeys(chain(OPERATORS, (f"{DATA_JUICER}:NAME",)), ""))
    except ImportError as error:
        yield Problem(f"{place}.name: {error}.{did_you_mean(entry.name, OPERATORS)}", (f"{at}.operators",))


def _entries(data_args: Mapping[str, DataArgs]) -> Iterator[tuple[str, str, OperatorConfig]]:
    """(path of the data_args, path of the entry, entry)."""
    for at, args in data_args.items():
        for number, entry in enumerate(args.operators):
            yield at, f"{at}.operators[{number}]", entry
