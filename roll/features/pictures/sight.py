"""Pictures for the readers of rows. A run imports the parts that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from roll.configs.sections.data import DataArgs
from roll.configs.sections.model import Head
from roll.configs.tables.sight import VisionModel
from roll.datasets.sight import PicturePrompts, RowPictures, Sight
from roll.types.media import PictureSource, Prompt
from roll.types.rollout import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from roll.configs.sections.run import RunConfig


class Pictures(Sight):
    def vision_model(
        self, model: Mapping[str, Any] | None, file: Callable[[str], Mapping[str, Any]]
    ) -> VisionModel | None:
        from roll.configs.tables.vision import PROCESSOR_FILES, UNKNOWN, vision_model

        for name in PROCESSOR_FILES:
            found = file(name)
            if processor := found.get("image_processor", found):
                return vision_model(model or UNKNOWN, processor)
        return vision_model(model or UNKNOWN, {})

    def refusal(self, model: Mapping[str, Any], head: Head, key: str, name: str | None) -> str | None:
        from roll.models.multimodal import refusal

        return refusal(model, head, key, name)

    def note(self, model: Mapping[str, Any], head: Head, key: str, name: str | None) -> str | None:
        from roll.models.multimodal import note, refused

        return None if refused(model, head) else note(model, key, name)

    def problems(
        self,
        config: RunConfig,
        learner: str,
        seen: Mapping[str, VisionModel | None],
        on_cpu: bool,
        of_text: Collection[str] = (),
    ) -> Iterator[str]:
        from roll.configs.checks.pictures import picture_problems, sight_problems

        return chain(picture_problems(config, learner), sight_problems(config, learner, seen, on_cpu, of_text))

    def check_shown(
        self, config: RunConfig, learner: str, vision: VisionModel | None, of_text: Collection[str] = ()
    ) -> None:
        from roll.run.start.shown_models import check_shown

        check_shown(config, learner, vision, of_text=of_text)

    def row_pictures(self, args: DataArgs, key: str) -> RowPictures:
        from roll.datasets.pictures.placing import RowPictures

        return RowPictures(args, key)

    def parquet_rows(self, stream: IO[bytes], name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        from roll.datasets.pictures.stored import rows_with_stored

        return rows_with_stored(stream, name, columns)

    def prompts(self, vision: VisionModel, tokenizer: PreTrainedTokenizerBase) -> PicturePrompts:
        return Prompts(vision, tokenizer)

    def make_prompt(self, vision: VisionModel, most_tokens: int) -> Callable[[Task], Awaitable[Prompt]]:
        from roll.distributed.executor.pictures import PictureLoader

        return PictureLoader(vision, most_tokens).prompt

    def read_file(self, source: PictureSource) -> tuple[bytes, str]:
        from roll.datasets.pictures.decode import read_file

        return read_file(source)


PLUGIN = Pictures()


class Prompts(PicturePrompts):
    def __init__(self, vision: VisionModel, tokenizer: PreTrainedTokenizerBase):
        from roll.datasets.pictures.placeholders import Placeholders

        self._sizes, self._placeholders = vision.sizes, Placeholders(vision, tokenizer)

    def check_texts(self, texts: Any, where: str) -> None:
        self._placeholders.check_texts(texts, where)

    def check(self, ids: Sequence[int], num_pictures: int, where: str, key: str) -> None:
        self._placeholders.check(ids, num_pictures, where, key)

    def num_tokens(self, rows: Sequence[Sequence[PictureSource]], lengths: Sequence[int], most: int) -> list[int]:
        """Headers of pictures are read only for rows that would not fit if each of theirs were as large as the model
        takes it."""
        from roll.datasets.pictures.lengths import PictureLengths

        counted, more = list(lengths), self._sizes.most_tokens - 1
        large = [at for at, row in enumerate(rows) if row and lengths[at] + len(row) * more > most]
        if not large:
            return counted
        pictures = [rows[at] for at in large]
        for at, num_tokens in zip(large, PictureLengths(self._sizes).num_tokens(pictures), strict=True):
            counted[at] += num_tokens - len(rows[at])
        return counted
