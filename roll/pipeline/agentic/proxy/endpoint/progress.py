"""Responses while they are sampled: the text of one that a client may read before its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np

from roll.pipeline.agentic.proxy.transcript.message import ChatMessage, Tool
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.types.rollout import Generation

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the first bytes of a character


class Progress:
    """The answers to a request as far as they are sampled. `begun` is done when there is a token."""

    def __init__(self, parser: Parser, tools: Sequence[Tool], stops: Sequence[str]):
        self._parser, self._tools, self._stops = parser, tools, stops
        self._token_ids: dict[int, np.ndarray] = {}
        self._texts: dict[int, _Text] = {}
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, number: int, answer: Generation) -> None:
        self._token_ids[number] = answer.token_ids
        if not self.begun.done():
            self.begun.set_result(None)

    def messages(self) -> Iterator[tuple[int, ChatMessage]]:
        """The beginning of each answer's message, by number."""
        for number, token_ids in self._token_ids.items():
            text = self._texts.setdefault(number, _Text(self._parser)).read(token_ids)
            yield number, self._parser.settled(text, self._tools, self._stops)


class _Text:
    """Text of token ids that become more: only the newest are decoded, with those before them that are one text with
    them."""

    def __init__(self, parser: Parser):
        self._show = parser.encoder.show
        self._text = ""
        self._begin = self._end = 0  # the ids between them are in the text, and decoded again with what follows

    def read(self, token_ids: np.ndarray) -> str:
        """The text so far, without bytes at its end that are no character yet, and may never be one."""
        before, now = self._show(token_ids[self._begin : self._end]), self._show(token_ids[self._begin :])
        new = now[len(before) :]
        if new and not new.endswith(_UNFINISHED):
            self._text += new
            self._begin, self._end = self._end, len(token_ids)
            return self._text
        return self._text + new.rstrip(_UNFINISHED)


class SentParts:
    """Parts of a reply, as far as they were sent: each begins, grows and ends before the next one."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    def send(self, texts: Sequence[str]) -> Iterator[tuple[int, str | None]]:
        """Yields what is new of the parts so far: their place, with None where one begins, and with a text."""
        for place, text in enumerate(texts):
            if place == len(self._sent):
                self._sent.append("")
                yield place, None
            before = self._sent[place]
            is_open = place + 1 == len(self._sent)
            assert text.startswith(before) and (is_open or text == before), (
                "what was sent is no beginning of the response"
            )
            if is_open and text != before:
                self._sent[place] = text
                yield place, text[len(before) :]
