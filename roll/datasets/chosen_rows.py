"""The rows of a run as `data_args.operators` leave them, and the texts by which operators see a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roll.configs.sections.data import DataArgs
from roll.configs.tables.features import active
from roll.datasets.loader import Row
from roll.datasets.sources import Choose, all_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Texts:
    """Texts of a row: a prompt and its responses: one, two in a pair, none in RLVR. `pictures`: the places of those
    that it shows; texts about other pictures are not the same."""

    prompt: str
    responses: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()


ReadTexts = Callable[[Row, DataArgs, str], Texts]
"""How this kind of run reads a row of the data_args at a YAML path. Raises ConfigError for one that it cannot read."""


@dataclass(frozen=True)
class Places:
    """The data_args of a run by their YAML path. `learnt`: those that it learns from; it is evaluated on the others.
    `has_responses`: its rows have some."""

    data_args: Mapping[str, DataArgs]
    learnt: str
    has_responses: bool = True

    @property
    def evaluation(self) -> Mapping[str, DataArgs]:
        return {at: args for at, args in self.data_args.items() if at != self.learnt}


def row_choice(places: Places, key: str, read: ReadTexts, tokenizer: PreTrainedTokenizerBase) -> Choose:
    """Return the choice among the rows of the data_args at this path; every row unless a feature chooses."""
    choices = (feature.choose_rows for feature in active(places.data_args[key]))
    choose = next(filter(None, choices), None)
    return all_rows if choose is None else choose(places, key, read, tokenizer)
