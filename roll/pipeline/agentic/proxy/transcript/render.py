"""A program's messages as token ids, and sampled ids as a message, by the model's own chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.errors import EnvError, describe
from roll.pipeline.agentic.proxy.transcript.message import ChatMessage, Tool
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.media import Prompt


class RenderRefused(EnvError):
    """The chat template does not take the messages."""


@dataclass(frozen=True)
class Renderer:
    encoder: ChatEncoder

    def whole(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Prompt:
        """The conversation up to where the next answer begins. Raises RenderRefused."""
        try:
            return self._expanded(self.encoder.encode(self._text(messages, tools, True)), messages)
        except Exception as error:  # whatever a template raises
            raise RenderRefused(f"the chat template does not take these messages: {describe(error)}") from None

    def behind(
        self, messages: Sequence[ChatMessage], place: int, tools: Sequence[Tool], said: np.ndarray
    ) -> Prompt | None:
        """Tokens between the sampled answer `said`, which is message `place`, and where the next answer begins: the
        end of its turn, unless it has ended, and all later messages. None where nothing can be put behind sampled
        tokens: the template writes the messages up to there in another way when others follow (Qwen3 drops their
        thinking), or no special token begins what follows."""
        try:
            before = self._text(messages[: place + 1], tools, False)
            whole = self._text(messages, tools, True)
        except Exception:  # it may still take the conversation as a whole
            return None
        closing = self._closing(before)
        if whole[:closing] != before[:closing]:
            return None
        ids = self.encoder.encode(whole[closing:])
        if not len(ids) or int(ids[0]) not in self.encoder.ends.special:
            return None
        if len(said) and int(said[-1]) in self.encoder.ends.tokens:
            begins_next = closing == len(before.rstrip()) and int(ids[0]) == int(said[-1])
            ids = ids[1:] if closing < len(before.rstrip()) or begins_next else ids
        try:
            return self._expanded(ids, messages[place + 1 :])
        except EnvError:  # `whole` says why
            return None

    def _expanded(self, ids: np.ndarray, messages: Sequence[ChatMessage]) -> Prompt:
        return self.encoder.expanded(ids, [picture for message in messages for picture in message.pictures])

    def _closing(self, text: str) -> int:
        """Position at which the end mark of the last turn begins; without one, the end of the text without white
        space."""
        bare = text.rstrip()
        marks = (str(self.encoder.tokenizer.convert_ids_to_tokens(token)) for token in self.encoder.ends.special)
        return min((len(bare) - len(mark) for mark in marks if mark and bare.endswith(mark)), default=len(bare))

    def _text(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], asks: bool) -> str:
        template_messages: list[dict[str, Any]] = [message.for_template() for message in messages]
        return self.encoder.render(template_messages, [dict(tool) for tool in tools], asks)
