"""Checks of `data_args.operators`, before anything is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from roll.configs.load.validate import validate
from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.data import DataArgs, OperatorConfig
from roll.configs.sections.operators import (
    DATA_JUICER,
    OPERATORS,
    DataJuicerArgs,
    data_juicer_op,
    operator_of,
)
from roll.configs.sections.run import RunConfig
from roll.configs.tables.features import FeaturePlugin
from roll.datasets.chosen_rows import Places, ReadTexts
from roll.datasets.sources import Choose
from roll.errors import ConfigError, describe
from roll.features.operators.row import Context, OperatorRow, Verdict
from roll.utils.imports import is_installed, resolve, split

# Operators of Data-Juicer, run by its own package on rows of one text.

INSTALL = "pip install py-data-juicer"
_TEXT, _NUMBER = "text", "roll_row"


def missing_package() -> str | None:
    """Return what must be installed first, None if nothing is missing."""
    if is_installed("data_juicer"):
        return None
    return f"operators of Data-Juicer need its package, which is not installed. Install it: {INSTALL}"


def run_op(rows: Sequence[OperatorRow], args: DataJuicerArgs, context: Context) -> list[Verdict]:
    """One operator on a data set whose column `text` is the rows' text. What it leaves out goes, by its name; a text
    that it changes is the column's new value."""
    if (missing := missing_package()) is not None:
        raise ConfigError(f"{context.key}: {missing}")
    texts = [_text(row, args.column, context.key) for row in rows]
    remaining = _undeclared(texts, args, context)
    verdicts: list[Verdict] = []
    for number, text in enumerate(texts):
        after = remaining.get(number)
        if after is None:
            verdicts.append(f"left out by {context.op}")
        elif after == text:
            verdicts.append(None)
        elif args.column is None:
            raise ConfigError(
                f"{context.key}: {context.op} changes texts: set args.column to the column that it changes"
            )
        else:
            verdicts.append({args.column: after})
    return verdicts


def _undeclared(texts: Sequence[str], args: DataJuicerArgs, context: Context) -> dict[int, str]:
    """The texts that it leaves, by their numbers."""
    load: Any = resolve("data_juicer.ops:load_ops")
    nested: Any = resolve("data_juicer.core.data:NestedDataset")
    make: Any = resolve("datasets:Dataset.from_list")
    try:
        (op,) = load([{context.op: {"num_proc": 1, **args.op_args}}])
        data = nested(make([{_NUMBER: number, _TEXT: text} for number, text in enumerate(texts)]))
        return {row[_NUMBER]: row[_TEXT] for row in op.run(data)}
    except Exception as error:  # of whatever the operator stands on
        raise ConfigError(f"{context.key}: {context.op} of Data-Juicer failed: {describe(error)}.") from error


def _text(row: OperatorRow, column: str | None, key: str) -> str:
    if column is None:
        return row.part("both")
    value = row.value(column)
    if not isinstance(value, str):
        raise ConfigError(f"{key}.args.column: {row.where}: column {column!r} holds {type(value).__name__}, not a text")
    return value


def operator_problems(places: Places) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    data_args, learnt, evaluated = places.data_args, places.learnt, places.evaluation
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
        if not places.has_responses and checked.config.model_dump().get("part") == "response":
            text = f"{place}.args.part: rows of this run have no responses. Write prompt, or leave it out."
            yield Problem(text, (f"{at}.operators",))
        if known.compares and (at != learnt or not evaluated):
            why = "there is no validation.data_args" if at == learnt else f"{learnt} is what is compared with them"
            yield Problem(
                f"{place}: {entry.name} compares with what the run is evaluated on, and {why}. Take it out, or give "
                f"{'validation.data_args' if at == learnt else 'it to ' + learnt}.",
                (f"{at}.operators", "validation"),
            )


def missing_packages(data_args: Mapping[str, DataArgs]) -> Iterator[Problem]:
    """Yield packages that operators need and this machine lacks."""
    for at, place, entry in _entries(data_args):
        if data_juicer_op(entry.name) is not None and (missing := missing_package()) is not None:
            yield Problem(f"{place}: {missing}.", (f"{at}.operators",), "machine")


def user_function_problems(data_args: Mapping[str, DataArgs]) -> Iterator[str]:
    """Functions of the user's own that cannot be imported."""
    for _, place, entry in _entries(data_args):
        if operator_of(entry.name) is not None:
            continue
        try:
            if not callable(resolve(entry.name)):
                yield f"{place}: {entry.name} cannot be called."
        except ImportError as error:
            yield f"{place}: {error}."


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


def _places(config: RunConfig) -> Iterator[Places]:
    """The rows of a run that operators may choose."""
    if config.rows_path:
        yield cast(Callable[[RunConfig], Places], resolve(config.rows_path))(config)
    if isinstance(config, AlgorithmConfig) and config.has_training:
        yield from (Places({at: args}, at) for at, args in config.mix.data_args.items())


def _choose(places: Places, key: str, read: ReadTexts, tokenizer: Any) -> Choose:
    from roll.features.operators.choice import row_choice

    return row_choice(places, key, read, tokenizer)


PLUGIN = FeaturePlugin(
    problems=lambda config: (each for places in _places(config) for each in operator_problems(places)),
    machine_problems=lambda config: (each for places in _places(config) for each in missing_packages(places.data_args)),
    code_problems=lambda config: (each for p in _places(config) for each in user_function_problems(p.data_args)),
    choose_rows=_choose,
)
