"""Interface of the room of pictures, for all that reads rows: `roll/features/pictures/sight.py` implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Protocol

from roll.configs.tables.features import SIGHT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from roll.configs.sections.data import DataArgs
    from roll.configs.sections.model import Head
    from roll.configs.sections.run import RunConfig
    from roll.configs.tables.sight import VisionModel
    from roll.datasets.loader import Row
    from roll.types.media import PictureSource, Prompt
    from roll.types.rollout import Task

Messages = tuple[Mapping[str, Any], ...]


class RowPictures(Protocol):
    """The pictures of rows."""

    def problem(self, row: Row) -> str | None:
        """Return what is wrong with what a row shows."""
        ...

    def without(self, row: Row) -> Row: ...

    def placed(self, row: Row, messages: Messages) -> tuple[Messages, tuple[PictureSource, ...]]:
        """Return the messages with a part for each picture, and the pictures in their order."""
        ...


class PicturePrompts(Protocol):
    """The prompts of one model, which have a placeholder for each picture before they are expanded."""

    def check_texts(self, texts: Any, where: str) -> None:
        """Raises ConfigError for texts that hold a placeholder."""
        ...

    def check(self, ids: Sequence[int], num_pictures: int, where: str, key: str) -> None:
        """Raises ConfigError for tokens with more or fewer placeholders than pictures."""
        ...

    def num_tokens(self, rows: Sequence[Sequence[PictureSource]], lengths: Sequence[int], most: int) -> list[int]:
        """Return the tokens of each prompt with its pictures, as far as it may have more than `most`; other prompts
        keep their `lengths`, with one placeholder for each picture."""
        ...


class Sight(ABC):
    """Pictures in the data of a run. A model that sees them has a `VisionModel`."""

    @abstractmethod
    def vision_model(
        self, model: Mapping[str, Any] | None, file: Callable[[str], Mapping[str, Any]]
    ) -> VisionModel | None:
        """Return how the model of a config.json sees, None for one of text alone; without a config.json it may see.
        `file`: the contents of another of the model's files, empty where there is none."""

    @abstractmethod
    def refusal(self, model: Mapping[str, Any], head: Head, key: str, name: str | None) -> str | None:
        """Return why no run can train or score with a model. `key`: the YAML's of `name`."""

    @abstractmethod
    def note(self, model: Mapping[str, Any], head: Head, key: str, name: str | None) -> str | None:
        """Return a sentence about a model that takes more than text and is trained on text all the same."""

    @abstractmethod
    def problems(
        self,
        config: RunConfig,
        learner: str,
        seen: Mapping[str, VisionModel | None],
        on_cpu: bool,
        of_text: Collection[str] = (),
    ) -> Iterator[str]:
        """Yield the problems of a run whose rows show pictures. `learner` says how many tokens each has; `seen`: how
        the models of roles see; `of_text`: roles whose rows show none."""

    @abstractmethod
    def check_shown(
        self, config: RunConfig, learner: str, vision: VisionModel | None, of_text: Collection[str] = ()
    ) -> None:
        """Raises ConfigError for the same problems, when the models are here. `vision`: of the learner."""

    @abstractmethod
    def row_pictures(self, args: DataArgs, key: str) -> RowPictures:
        """Return what finds the pictures of rows of `data_args` at a YAML key."""

    @abstractmethod
    def parquet_rows(self, stream: IO[bytes], name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of a parquet file, whose pictures in these columns stay there. `name`: the file's."""

    @abstractmethod
    def prompts(self, vision: VisionModel, tokenizer: PreTrainedTokenizerBase) -> PicturePrompts: ...

    @abstractmethod
    def make_prompt(self, vision: VisionModel, most_tokens: int) -> Callable[[Task], Awaitable[Prompt]]:
        """Return the function that decodes a task's pictures and expands its prompt, in the process of the run."""

    @abstractmethod
    def read_file(self, source: PictureSource) -> tuple[bytes, str]:
        """Return the bytes of a picture's file, and the ending of its format. Raises PictureError."""


@cache
def sight() -> Sight:
    return import_module(SIGHT).PLUGIN
