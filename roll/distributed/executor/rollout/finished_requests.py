"""Finished requests of an engine: answers with their tokens, or what is known of those that go to the object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from roll.datasets.encoding import Decode
from roll.distributed.strategy.stop_strings import answer_texts
from roll.types.batch import FINISH_REASONS, SampledRows
from roll.types.collate import sampled_rows
from roll.types.group_codec import TextTable
from roll.types.rollout import Generation, GenerationRequest, LocalAnswer, LocalRow, RowFacts, StoredRow, local_rows
from roll.types.texts import RowTexts

DIRECT_TOKENS = 8192
"""Tokens that still travel with the reply: their arrays have 100 kB, and Ray itself keeps less than that in the memory
of who receives it."""

Finished = tuple[GenerationRequest, Mapping[int, Generation] | str]
"""A request with its answers by their numbers, all or some of them, or the text of what went wrong."""


@dataclass(frozen=True)
class EngineUnavailable:
    """Why an engine serves nobody at present: it `died`, or took the place of one that did and is not ready yet."""

    cause: str
    died: bool = True


@dataclass(frozen=True)
class FinishedRequests:
    """Answers of several requests as flat arrays: `num_answers[i]` belong to request i, under their `numbers` there; an
    error text stands in their place when it failed. With `gone` nothing more comes, and what is missing must be asked
    of another engine. With `stored` the tokens travel apart, and here stands what is known of each row."""

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
    """Return facts about the answers, the rows made of them, and their texts."""
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
