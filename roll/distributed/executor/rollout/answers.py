"""Answers that come in pieces: what is there of one is not sampled again when its engine dies or leaves its devices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np

from roll.datasets.encoding import Decode
from roll.distributed.strategy.stop_strings import StopStrings, answer_texts
from roll.types.batch import FINISH_REASONS, SampledRows
from roll.types.collate import sampled_rows
from roll.types.group_codec import TextTable
from roll.types.rollout import (
    Answered,
    Generation,
    GenerationRequest,
    LocalAnswer,
    LocalRow,
    PartialRequest,
    RowFacts,
    RowTexts,
    StoredRow,
    local_rows,
)

NOTHING = Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "abort")
_PIECE = "~"  # stands between the id of a request and the number of the answer with which a piece of it begins


def names_of(request_id: str) -> tuple[str, ...]:
    """What a request is known under: its id, and that of the request of which it is a piece."""
    return (request_id, request_id.partition(_PIECE)[0])


class Continuation:
    """One request, as a client sees it, until all its answers are whole."""

    def __init__(self, request: GenerationRequest, answered: Answered | None = None):
        """`answered` is told of each answer once, by its number."""
        self.request = request
        self._answered = answered
        self._answers: dict[int, Generation] = {}
        self._prefixes: dict[int, Generation] = {}
        self._num_whole = 0
        self._cut: dict[int, Generation] = {}  # once it is given up
        self._is_given_up = False

    def give_up(self) -> None:
        """What is cut short from now on may go on in another run."""
        self._is_given_up = True

    def begun(self) -> PartialRequest:
        """What there is of it."""
        return PartialRequest(
            self.request.request_id, self.request.prompt_ids, self._prefixes | self._cut | self._answers
        )

    def comes(self, number: int, answer: Generation) -> None:
        """What is told once stands. An answer that is to go on elsewhere is kept as far as it is."""
        if number in self._answers:
            return
        if self._is_given_up and answer.finish_reason in ("abort", "moved") and not self.has_enough:
            self._cut[number] = replace(answer, finish_reason="moved")
            return
        if answer.is_here and answer.finish_reason == "moved":
            if answer.num_tokens < self.request.sampling.max_new_tokens:
                self._prefixes[number] = answer
                return
            answer = replace(answer, finish_reason="length")
        self._ends(number, answer)

    @property
    def has_enough(self) -> bool:
        """True if nobody needs more than there is."""
        return self.request.enough is not None and self._num_whole >= self.request.enough

    def answers(self) -> list[Generation] | None:
        """Answers in order, once all are there, or enough of them and none is being sampled."""
        if self.has_enough:
            for number in self.request.samples:
                if number not in self._answers:
                    self._ends(number, replace(self._prefixes.get(number, NOTHING), finish_reason="abort"))
        if len(self._answers) < self.request.num_samples:
            return None
        return [self._answers[number] for number in self.request.samples]

    def _ends(self, number: int, answer: Generation) -> None:
        self._answers[number] = answer
        self._num_whole += answer.finish_reason != "abort"
        if self._answered is not None:
            self._answered(number, answer)

    def missing(self) -> list[GenerationRequest]:
        """What is still to be asked: answers without a token together as far as their numbers follow each other, one
        request for each of the others. The whole request the first time."""
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
    """Seed of a response that continues at this token. The original seed would repeat the random numbers of its
    beginning."""
    if seed is None or not position:
        return seed
    digest = hashlib.blake2b(f"{seed}@{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rest_of(request: GenerationRequest) -> GenerationRequest:
    """What the engine is asked for: the prompt with what is there of the answer, and as many tokens less."""
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
    pairs: Mapping[str, np.ndarray] = {
        name: np.concatenate([getattr(prefix, name), getattr(rest, name)[:end]])
        for name in ("token_ids", "log_probs", "policy_versions")
    }
    whole = len(request.prompt_ids) + prefix.num_tokens + end  # the engine was given what there was as its prompt
    known = prefix.routes if rest.routes is None else rest.routes  # an answer cut short before it went on has no others
    return Generation(**pairs, finish_reason=reason, routes=None if known is None else known[:whole])


# What an engine hands over: answers with their tokens, or what is known of answers that go to the object store.

DIRECT_TOKENS = 8192
"""So many tokens travel with the reply: their arrays have 100 kB, and Ray itself keeps less than that in the memory of
who receives it."""

Finished = tuple[GenerationRequest, Mapping[int, Generation] | str]
"""A request with its answers by their numbers, all or some of them, or the text of what went wrong."""


@dataclass(frozen=True)
class EngineUnavailable:
    """Why an engine serves nobody at present: it `died`, or took the place of one that did and is not ready yet."""

    cause: str
    died: bool = True


@dataclass(frozen=True)
class FinishedRequests:
    """Answers of several requests as flat arrays: thousands of small arrays would cost more to send than to sample.

    `num_answers[i]` belong to request i, under their `numbers` there; an error text stands in their place when it
    failed. With `gone` nothing more comes, and what is missing must be asked of another engine. With `stored` the
    tokens travel apart, and here stands what is known of the row that is made of each answer.
    """

    request_ids: tuple[str, ...]
    errors: tuple[str | None, ...]
    num_answers: np.ndarray
    numbers: np.ndarray
    lengths: np.ndarray
    finish_reasons: np.ndarray
    token_ids: np.ndarray
    log_probs: np.ndarray
    policy_versions: np.ndarray
    routes: tuple[np.ndarray | None, ...]  # of each answer, where they are told
    gone: EngineUnavailable | None = None
    stored: tuple[RowFacts, ...] | None = None

    @staticmethod
    def pack(
        results: Sequence[Finished], gone: EngineUnavailable | None = None, stored: tuple[RowFacts, ...] | None = None
    ) -> FinishedRequests:
        whole = [result for _, result in results if not isinstance(result, str)]
        answers = [answer for result in whole for answer in result.values()]

        def flat(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
            here = arrays if stored is None else []
            return np.concatenate(here).astype(dtype, copy=False) if here else np.empty(0, dtype)

        return FinishedRequests(
            request_ids=tuple(request.request_id for request, _ in results),
            errors=tuple(result if isinstance(result, str) else None for _, result in results),
            num_answers=np.array([0 if isinstance(r, str) else len(r) for _, r in results], np.int32),
            numbers=np.array([number for result in whole for number in result], np.int32),
            lengths=np.array([len(answer.token_ids) for answer in answers], np.int32),
            finish_reasons=np.array([FINISH_REASONS.index(a.finish_reason) for a in answers], np.int8),
            token_ids=flat([a.token_ids for a in answers], np.int32),
            log_probs=flat([a.log_probs for a in answers], np.float32),
            policy_versions=flat([a.policy_versions for a in answers], np.int32),
            routes=() if stored is not None else tuple(a.routes for a in answers),
            gone=gone,
            stored=stored,
        )

    def unpack(self, handles: Sequence[object] = ()) -> list[tuple[str, dict[int, Generation] | str]]:
        """Answers, or an error, by request id. `handles` stand for the rows and the texts of what is stored."""
        answers = self._answers() if self.stored is None else self._stored_answers(*handles)
        numbered = iter(zip(self.numbers.tolist(), answers, strict=True))
        return [
            (name, dict(islice(numbered, count)) if error is None else error)
            for name, error, count in zip(self.request_ids, self.errors, self.num_answers.tolist(), strict=True)
        ]

    def _answers(self) -> list[Generation]:
        ids, log_probs, versions = self.token_ids, self.log_probs, self.policy_versions
        ends = np.cumsum(self.lengths).tolist()
        spans = map(slice, [0, *ends], ends)  # not np.split, which takes longer for each than all that is done here
        reasons = self.finish_reasons.tolist()
        return [
            Generation(
                content=LocalAnswer(ids[span], log_probs[span], versions[span], routes),
                finish_reason=FINISH_REASONS[reason],
            )
            for span, reason, routes in zip(spans, reasons, self.routes, strict=True)
        ]

    def _stored_answers(self, tokens: object, texts: object) -> list[Generation]:
        return [
            Generation(content=StoredRow(tokens, texts, row, facts), finish_reason=FINISH_REASONS[reason])
            for row, (facts, reason) in enumerate(zip(self.stored or (), self.finish_reasons.tolist(), strict=True))
        ]


def is_large(results: Sequence[Finished]) -> bool:
    """True if the tokens go to the object store; not where a client needs some, to have another engine go on."""
    answers = [answer for _, result in results if not isinstance(result, str) for answer in result.values()]
    return sum(len(a.token_ids) for a in answers) > DIRECT_TOKENS and all(a.finish_reason != "moved" for a in answers)


def store(
    results: Sequence[Finished], decoders: tuple[Decode, Decode], gone: EngineUnavailable | None = None
) -> tuple[FinishedRequests, SampledRows, TextTable]:
    """What is known of the answers, the rows that are made of them, and what they say."""
    decode, decode_raw = decoders
    rows: list[LocalRow] = []
    texts: list[RowTexts] = []
    for request, result in results:
        if isinstance(result, str):
            continue
        answers = list(result.values())
        rows += local_rows(request.prompt_ids, answers, [""] * len(answers), request.media)
        plain, raw = (answer_texts(form, answers, request.sampling) for form in (decode, decode_raw))
        texts += map(RowTexts, plain, raw)
    finished = FinishedRequests.pack(results, gone, tuple(row.facts for row in rows))
    return finished, sampled_rows(rows), TextTable.of(texts)
