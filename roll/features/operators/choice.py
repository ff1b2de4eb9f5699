"""The rows of a run as its operators leave them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roll.configs.problems import Problem
from roll.configs.sections.data import DataArgs, OperatorConfig
from roll.configs.sections.operators import OPERATORS
from roll.datasets.chosen_rows import Places, ReadTexts, Texts
from roll.datasets.loader import DataFile, DataSource, Row
from roll.datasets.sources import MAX_BYTES_IN_FULL, Choose, all_rows, data_sources
from roll.errors import ConfigError
from roll.features.operators.row import Chosen, Context, OperatorRow, apply, run_chain
from roll.utils.text import show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def row_choice(places: Places, key: str, read: ReadTexts, tokenizer: PreTrainedTokenizerBase) -> Choose:
    """Return the choice of the operators of the data_args at this path; every row without any."""
    return OperatorChoice(places, key, read, tokenizer) if places.data_args[key].operators else all_rows


@dataclass(frozen=True)
class OperatorChoice:
    places: Places
    key: str
    read: ReadTexts
    tokenizer: PreTrainedTokenizerBase | None  # for operators that count tokens

    def __call__(self, sources: Sequence[DataSource]) -> Iterator[Row]:
        """Raises ConfigError for rows and operators that do not work, and where nothing is left."""
        rows = [OperatorRow(row, self._id, self._texts) for row in all_rows(sources)]
        chosen = run_chain(rows, self._args.operators, self.key, self._context)
        logger.info("%s.operators:", self.key)
        for line in chosen.lines():
            logger.info("  %s", line)
        yield from (row.row for row in apply(chosen, rows))

    def run(self, sources: Sequence[DataSource]) -> Chosen:
        """Run the chain, to say what it leaves."""
        rows = [OperatorRow(row, self._id, self._texts) for row in all_rows(sources)]
        return run_chain(rows, self._args.operators, self.key, self._context)

    @property
    def _args(self) -> DataArgs:
        return self.places.data_args[self.key]

    def _id(self, row: Row) -> str:
        """Id of a row in the recorded rollouts."""
        row_id = row.values.get(self._args.id)
        return row.short_place if row_id is None else str(row_id)

    def _texts(self, row: Row) -> Texts:
        return self.read(row, self._args, self.key)

    def _context(self, at: str, op: str) -> Context:
        return Context(at, op, self._count_tokens, self._evaluation)

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        assert self.tokenizer is not None
        ids = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [len(each) for each in ids["input_ids"]]

    def _evaluation(self) -> dict[str, list[Texts]]:
        return {
            at: [self.read(row, args, at) for row in all_rows(_sources(args, at))]
            for at, args in self.places.evaluation.items()
        }


def dry_report(places: Places) -> Iterator[str | Problem]:
    """Yield the lines about operators in a plan: the chain, and what each operator removes, if that is computed
    quickly; a Problem if it stops a run. The reader is made only then."""
    for key, args in places.data_args.items():
        if not args.operators:
            continue
        chain = ", ".join(
            entry.name + (f" ({', '.join(f'{k} {show(v)}' for k, v in entry.args.items())})" if entry.args else "")
            for entry in args.operators
        )
        yield f"{key}.operators: {chain}"
        for line in _result_lines(places, key):
            yield line if isinstance(line, Problem) else f"  {line}"


def _result_lines(places: Places, key: str) -> Iterator[str | Problem]:
    args = places.data_args[key]
    files = [_local_files(other, at) for at, other in [(key, args), *places.evaluation.items()]]
    if any(of_place is None for of_place in files):
        yield "a real run reports what each drops, before Ray starts: not all rows are in files on this machine."
        return
    if not all(map(_is_quick, args.operators)):
        yield "a real run reports what each drops, before Ray starts: user code, models and tokens are used only then."
        return
    if sum(source.path.stat().st_size for sources in files for source in sources or ()) > MAX_BYTES_IN_FULL:
        yield "a real run reports what each drops, before Ray starts: the files are large."
        return
    assert places.reader is not None
    try:
        yield from OperatorChoice(places, key, places.reader(), None).run(files[0] or []).lines()
    except ConfigError as error:
        yield from (Problem(text) for text in error.problems)


def _local_files(args: DataArgs, key: str) -> list[DataFile] | None:
    """None where rows are elsewhere, or are not there."""
    sources, problems = data_sources(args, key, reach=False)
    files = [source for source in sources if isinstance(source, DataFile)]
    return None if problems or len(files) < max(len(sources), len(args.file_name)) else files


def _is_quick(entry: OperatorConfig) -> bool:
    """Neither the user's code, nor a model, nor a tokenizer is asked."""
    return entry.name in OPERATORS and entry.args.get("unit") != "tokens" and not entry.args.get("scorer")


def _sources(args: DataArgs, key: str) -> list[DataSource]:
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    return sources
