"""Checks that a rendered text has one placeholder for each picture, and none of videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roll.configs.tables.sight import WRITTEN, VisionModel
from roll.datasets.shown import texts_of
from roll.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Placeholders:
    """Checks texts and tokens for one model."""

    def __init__(self, vision: VisionModel, tokenizer: PreTrainedTokenizerBase):
        self.vision = vision
        self._names = [str(tokenizer.convert_ids_to_tokens(each)) for each in vision.placeholders if each >= 0]
        self._refused = [*self._names, *WRITTEN.get(vision.model_type, ())[:1]]

    def check_texts(self, texts: Any, where: str) -> None:
        """ConfigError where one of the texts, at any depth, holds a placeholder. `where`: the row."""
        for text in texts_of(texts):
            for name in self._refused:
                if name in text:
                    raise ConfigError(
                        f"{where}: the text holds {name}, which stands for a picture or a video in what the model "
                        "reads. Take it out, or write <image> where a picture of the row belongs"
                    )

    def check(self, ids: Sequence[int], num_pictures: int, where: str, key: str) -> None:
        """ConfigError for tokens in which the template of `key` wrote more or fewer placeholders than there are
        pictures."""
        count = ids.count(self.vision.image_token)
        if count == num_pictures and self.vision.video_token not in ids:
            return
        raise ConfigError(
            f"{where}: {key}: the prompt has {count} placeholders {' or '.join(self._names)} for {num_pictures} "
            "pictures. Use a template that writes one for each picture (native, if the tokenizer's own one does)"
        )
