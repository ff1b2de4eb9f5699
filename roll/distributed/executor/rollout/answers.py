"""Answers that come in pieces: what is there of one is not sampled again when its engine dies or leaves its devices."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from roll.distributed.strategy.stop_strings import StopStrings
from roll.types.rollout import Answered, Generation, GenerationRequest

NOTHING = Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "abort")


def nobody(number: int, generation: Generation) -> None:
    """Is told of answers that travel together."""


_COLUMNS = ("token_ids", "log_probs", "policy_versions")
_PIECE = "~"  # stands between the id of a request and the number of the answer with which a piece of it begins


def names_of(request_id: str) -> tuple[str, ...]:
    """Return the names of a request: its id, and that of the request of which it is a piece."""
    return (request_id, request_id.partition(_PIECE)[0])


class Continuation:
    """One request, as a client sees it, until all its answers are whole."""

    def __init__(self, request: GenerationRequest, answered: Answered | None = None):
        """`answered` is told of each answer once, by its number."""
        self.request, self._answered = request, answered
        self._answers: dict[int, Generation] = {}
        self._prefixes: dict[int, Generation] = {}
        self._num_whole = 0

    def receive(self, number: int, answer: Generation) -> None:
        """Record an answer. An answer that is to go on elsewhere is kept as far as it is."""
        if number in self._answers:
            return
        if answer.is_here and answer.finish_reason == "moved":
            if answer.num_tokens < self.request.sampling.max_new_tokens:
                self._prefixes[number] = answer
                return
            answer = replace(answer, finish_reason="length")
        self._finish(number, answer)

    @property
    def has_enough(self) -> bool:
        """True if nobody needs more than there is."""
        return self.request.enough is not None and self._num_whole >= self.request.enough

    def answers(self) -> list[Generation] | None:
        """Answers in order, once all are there, or enough of them and none is being sampled."""
        if self.has_enough:
            for number in self.request.samples:
                if number not in self._answers:
                    self._finish(number, replace(self._prefixes.get(number, NOTHING), finish_reason="abort"))
        if len(self._answers) < self.request.num_samples:
            return None
        return [self._answers[number] for number in self.request.samples]

    def _finish(self, number: int, answer: Generation) -> None:
        self._answers[number] = answer
        self._num_whole += answer.finish_reason != "abort"
        if self._answered is not None:
            self._answered(number, answer)

    def missing(self) -> list[GenerationRequest]:
        """Return the requests still to be made. Answers without a token are asked for together as far as their numbers
        follow each other; each of the others gets its own request. The first time it is the whole request."""
        begun = {number for number, prefix in self._prefixes.items() if prefix.num_tokens}
        numbers = [number for number in self.request.samples if number not in self._answers]
        if len(numbers) == self.request.num_samples and not begun:
            return [self.request]
        runs = groupby(numbers, key=lambda number: number if number in begun else -1 - self._gaps_before(number, begun))
        parts = [list(run) for _, run in runs]
        return [self._part(part[0], len(part), alone=len(parts) == 1) for part in parts]

    def _gaps_before(self, number: int, begun: set[int]) -> int:
        """Numbers that are not asked for with this one, up to it: equal for neighbours."""
        return sum(other in self._answers or other in begun for other in self.request.samples if other < number)

    def _part(self, first: int, count: int, alone: bool) -> GenerationRequest:
        """An engine that is asked for the whole rest ends it when there is enough; of several, each ends its own."""
        request, prefix = self.request, self._prefixes.get(first)
        enough = request.enough - self._num_whole if alone and request.enough is not None else None
        prefix = prefix if prefix is not None and prefix.num_tokens else None
        name = f"{request.request_id}{_PIECE}{first}@{prefix.num_tokens if prefix else 0}"
        return replace(request, request_id=name, first_sample=first, num_samples=count, enough=enough, prefix=prefix)


def continued_seed(seed: int | None, position: int) -> int | None:
    """Seed of a response that continues at this token: not the random numbers of its beginning once more."""
    if seed is None or not position:
        return seed
    digest = hashlib.blake2b(f"{seed}@{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rest_of(request: GenerationRequest) -> GenerationRequest:
    """Return the request for the engine: the prompt with the answer so far, and that many fewer tokens."""
    prefix = request.prefix
    if prefix is None:
        return request
    sampling, position = request.sampling, prefix.num_tokens
    rest = replace(
        sampling,
        max_new_tokens=sampling.max_new_tokens - position,
        min_new_tokens=max(0, sampling.min_new_tokens - position),
        seed=continued_seed(sampling.seed, position),
    )
    prompt_ids = np.concatenate([request.prompt_ids, prefix.token_ids])
    return replace(request, prompt_ids=prompt_ids, sampling=rest, prefix=None)


def joined(request: GenerationRequest, rest: Generation, stop_strings: Callable[[], StopStrings]) -> Generation:
    """The whole answer. It ends with a stop string that begins before the seam: the engine saw the rest alone."""
    prefix = request.prefix
    if prefix is None:
        return rest
    sampling, reason, end = request.sampling, rest.finish_reason, rest.num_tokens
    if sampling.stop_strings:
        early = max(0, sampling.min_new_tokens - prefix.num_tokens)  # so many tokens of the rest may not end it
        before = np.concatenate([prefix.token_ids, rest.token_ids[:early]])
        count = stop_strings().completed_after(sampling.stop_strings, before, rest.token_ids[early:])
        if count is not None and early + count <= end:
            end, reason = early + count, "stop"
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(prefix, name), getattr(rest, name)[:end]]) for name in _COLUMNS
    }
    whole = len(request.prompt_ids) + prefix.num_tokens + end  # the engine was given what there was as its prompt
    known = prefix.routes if rest.routes is None else rest.routes  # an answer cut short before it went on has no others
    return Generation(**columns, finish_reason=reason, routes=None if known is None else known[:whole])
