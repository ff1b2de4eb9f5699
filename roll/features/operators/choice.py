"""The rows of a run as its operators leave them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roll.configs.sections.data import DataArgs
from roll.datasets.chosen_rows import Places, ReadTexts, Texts
from roll.datasets.loader import DataSource, Row
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.errors import ConfigError
from roll.features.operators.row import Context, OperatorRow, apply, run_chain

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
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, sources: Sequence[DataSource]) -> Iterator[Row]:
        """Raises ConfigError for rows and operators that do not work, and where nothing is left."""
        rows = [OperatorRow(row, self._id, self._texts) for row in all_rows(sources)]
        chosen = run_chain(rows, self._args.operators, self.key, self._context)
        logger.info("%s.operators:", self.key)
        for line in chosen.lines():
            logger.info("  %s", line)
        yield from (row.row for row in apply(chosen, rows))

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
        ids = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [len(each) for each in ids["input_ids"]]

    def _evaluation(self) -> dict[str, list[Texts]]:
        return {
            at: [self.read(row, args, at) for row in all_rows(_sources(args, at))]
            for at, args in self.places.evaluation.items()
        }


def _sources(args: DataArgs, key: str) -> list[DataSource]:
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    return sources
