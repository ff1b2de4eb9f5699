"""The rows of a run as its operators leave them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roll.configs.problems import Problem
from roll.configs.sections.data import DataArgs, OperatorConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.operators import OPERATORS
from roll.datasets.loader import DataFile, DataSource, Row
from roll.datasets.preflight import MAX_BYTES_IN_FULL
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.errors import ConfigError
from roll.run.operators.kept import KeptChoices, name_of
from roll.run.operators.operators_row import Context, OperatorRow, ReadTexts, Texts
from roll.run.operators.row import Chosen, apply, run_chain
from roll.utils.text import show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
    """The data_args of a run by their YAML path. `learnt`: those that it learns from; it is evaluated on the others.
    `kind`: how it reads a row, in words that change when that does. `tokenizer`: where the learner's is."""

    data_args: Mapping[str, DataArgs]
    learnt: str
    kind: str
    tokenizer: ModelArgs

    @property
    def evaluation(self) -> Mapping[str, DataArgs]:
        return {at: args for at, args in self.data_args.items() if at != self.learnt}


def row_choice(places: Places, key: str, read: ReadTexts, tokenizer: PreTrainedTokenizerBase) -> Choose:
    """What the operators of the data_args at this path choose; every row without any."""
    return _Choice(places, key, read, tokenizer) if places.data_args[key].operators else all_rows


@dataclass(frozen=True)
class _Choice:
    places: Places
    key: str
    read: ReadTexts
    tokenizer: PreTrainedTokenizerBase | None  # for operators that count tokens

    def __call__(self, sources: Sequence[DataSource]) -> Iterator[Row]:
        """Raises ConfigError for rows and operators that do not work, and where nothing is left."""
        rows = self._rows(sources)
        yield from (row.row for row in apply(self._chosen(rows, sources), rows))

    def run(self, sources: Sequence[DataSource]) -> Chosen:
        """Whatever was kept, and without keeping anything."""
        return run_chain(self._rows(sources), self._args.operators, self.key, self._context)

    def _rows(self, sources: Sequence[DataSource]) -> list[OperatorRow]:
        return [OperatorRow(row, self._id, self._texts) for row in all_rows(sources)]

    @property
    def _args(self) -> DataArgs:
        return self.places.data_args[self.key]

    def _id(self, row: Row) -> str:
        """Id of a row in the recorded rollouts."""
        own = row.values.get(self._args.id)
        return row.short_place if own is None else str(own)

    def _texts(self, row: Row) -> Texts:
        return self.read(row, self._args, self.key)

    def _chosen(self, rows: Sequence[OperatorRow], sources: Sequence[DataSource]) -> Chosen:
        kept, name = KeptChoices(self._args.operators_cache), _name(self.places, self.key, sources)
        chosen, how = kept.read(name), f"as kept in {self._args.operators_cache}"
        if chosen is None:
            chosen, how = run_chain(rows, self._args.operators, self.key, self._context), "run now"
            kept.write(name, chosen)
        logger.info("%s.operators, %s:", self.key, how)
        for line in chosen.lines():
            logger.info("  %s", line)
        return chosen

    def _context(self, at: str, op: str) -> Context:
        return Context(at, op, self._count_tokens, self._evaluation)

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        assert self.tokenizer is not None
        ids = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [len(each) for each in ids["input_ids"]]

    def _evaluation(self) -> dict[str, list[str]]:
        return {
            at: [self.read(row, args, at).prompt for row in all_rows(_sources(args, at))]
            for at, args in self.places.evaluation.items()
        }


def dry_report(places: Places, read: Callable[[], ReadTexts]) -> Iterator[str | Problem]:
    """What a plan says of operators: the chain, and what each takes, as it is kept from an earlier run, or found out
    here where that is quick; a Problem where that stops a run. `read` is asked for then only."""
    for key, args in places.data_args.items():
        if not args.operators:
            continue
        chain = ", ".join(
            entry.name + (f" ({', '.join(f'{k} {show(v)}' for k, v in entry.args.items())})" if entry.args else "")
            for entry in args.operators
        )
        yield f"{key}.operators: {chain}"
        for found in _result_lines(places, key, read):
            yield found if isinstance(found, Problem) else f"  {found}"


def _result_lines(places: Places, key: str, read: Callable[[], ReadTexts]) -> Iterator[str | Problem]:
    args = places.data_args[key]
    files = [_local_files(other, at) for at, other in [(key, args), *places.evaluation.items()]]
    if any(found is None for found in files):
        yield "a real run reports what each drops, before Ray starts: not all rows are in files on this machine."
        return
    sources = files[0] or []
    try:
        chosen = KeptChoices(args.operators_cache).read(_name(places, key, sources))
        if chosen is None and not all(map(_is_quick, args.operators)):
            yield (
                "a real run reports what each drops, before Ray starts: user code, models and tokens are used only "
                "then."
            )
        elif chosen is None and sum(path.stat().st_size for path in _paths(files)) > MAX_BYTES_IN_FULL:
            yield "a real run reports what each drops, before Ray starts: the files are large."
        else:
            yield from (chosen or _Choice(places, key, read(), None).run(sources)).lines()
    except ConfigError as error:
        yield from (Problem(text) for text in error.problems)


def _local_files(args: DataArgs, key: str) -> list[DataFile] | None:
    """None where rows are elsewhere, or are not there."""
    sources, problems = data_sources(args, key, reach=False)
    files = [source for source in sources if isinstance(source, DataFile)]
    return None if problems or len(files) < max(len(sources), len(args.file_name)) else files


def _paths(files: Sequence[Sequence[DataFile] | None]) -> Iterator[Path]:
    yield from (source.path for found in files for source in found or ())


def _is_quick(entry: OperatorConfig) -> bool:
    """Neither the user's code, nor a model, nor a tokenizer is asked."""
    return entry.name in OPERATORS and entry.args.get("unit") != "tokens" and not entry.args.get("scorer")


def _name(places: Places, key: str, sources: Sequence[DataSource]) -> str:
    evaluation = {at: (args, _sources(args, at)) for at, args in places.evaluation.items()}
    return name_of(places.data_args[key], sources, evaluation, places.kind, places.tokenizer)


def _sources(args: DataArgs, key: str) -> list[DataSource]:
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    return sources
