"""What there is of answers to groups that are under way: a run that ends saves it, and the next one goes on with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from roll.types.rollout import BegunRequest, Generate, Generation, GenerationRequest, Trajectory

GiveUp = Callable[[], Awaitable[Sequence[BegunRequest]]]
"""Ends all requests, and returns what there is of them."""

BegunGroups = Mapping[int, Sequence[BegunRequest]]  # by number

_REQUEST = "request"


class BegunAnswers:
    """Knows which requests a group has made. Belongs to one event loop."""

    def __init__(self, generate: Generate, give_up: GiveUp | None):
        self._generate, self._give_up = generate, give_up
        self._answered: dict[int, dict[str, BegunRequest | None]] = {}  # by number and id; None while it is under way
        self._saved: dict[int, dict[str, BegunRequest]] = {}

    def restore(self, groups: BegunGroups) -> None:
        """Groups of these numbers go on with what there is, where they ask for the same."""
        self._saved = {number: {found.request_id: found for found in some} for number, some in groups.items()}

    @contextmanager
    def group(self, number: int) -> Iterator[Generate]:
        """A way to the engines for this group."""
        answered = self._answered[number] = {}
        saved = self._saved.setdefault(number, {})

        @wraps(self._generate)  # a rollouter looks at what it takes
        async def generate(request: GenerationRequest, *arguments: Any) -> Sequence[Generation]:
            name = request.request_id
            answered[name] = None
            found = saved.pop(name, None)
            if found is not None and np.array_equal(found.prompt_ids, request.prompt_ids):
                request = replace(request, begun=_fitting(found, request))
            answers = await self._generate(request, *arguments)
            answered[name] = BegunRequest(name, request.prompt_ids, dict(zip(request.samples, answers, strict=False)))
            return answers

        try:
            yield generate
        finally:
            del self._answered[number], self._saved[number]

    async def give_up(self) -> dict[int, list[BegunRequest]]:
        """Ends all requests; what there is of the groups that are not finished, or have yet to go on."""
        if self._give_up is None:
            return {}
        found = {request.request_id: request for request in await self._give_up()}
        groups = {number: list(saved.values()) for number, saved in self._saved.items()}
        for number, asked in self._answered.items():
            groups[number] += [request for name, whole in asked.items() if (request := whole or found.get(name))]
        return {number: requests for number, requests in groups.items() if requests}


def rows_of(requests: Iterable[BegunRequest]) -> tuple[Trajectory, ...]:
    """The answers that have a token, as a group's rows without rewards; `requests_of` takes them apart again."""
    return tuple(
        _row(request, number, answer)
        for request in requests
        for number, answer in request.answers.items()
        if answer.num_tokens
    )


def requests_of(rows: Iterable[Trajectory]) -> list[BegunRequest]:
    found: dict[str, tuple[np.ndarray, dict[int, Generation]]] = {}
    for row in rows:
        mask = row.response_mask
        ids, log_probs, versions = (column[mask] for column in (row.input_ids, row.log_probs, row.policy_versions))
        prompt_ids = row.input_ids[: int(mask.argmax())]
        _, answers = found.setdefault(row.extra[_REQUEST], (prompt_ids, {}))
        answers[row.index] = Generation(ids, log_probs, versions, row.finish_reason)
    return [BegunRequest(name, prompt_ids, answers) for name, (prompt_ids, answers) in found.items()]


def young_enough(requests: Sequence[BegunRequest], version: int) -> list[BegunRequest]:
    """The requests without responses that have a token of a version older than `version`."""
    return [
        replace(found, answers={n: a for n, a in found.answers.items() if a.oldest_version >= version})
        for found in requests
    ]


def _row(request: BegunRequest, number: int, answer: Generation) -> Trajectory:
    extra, missing = {_REQUEST: request.request_id}, float("nan")
    return Trajectory.from_generation(request.prompt_ids, answer, missing, index=number, response_text="", extra=extra)


def _fitting(found: BegunRequest, request: GenerationRequest) -> dict[int, Generation]:
    """What the request would ask for as well: another group size or length may hold now. What only an earlier, shorter
    limit had ended goes on."""
    longest = request.sampling.max_new_tokens
    return {
        number: replace(answer, finish_reason="moved") if _was_cut(answer, longest) else answer
        for number, answer in found.answers.items()
        if number in request.samples and answer.num_tokens <= longest
    }


def _was_cut(answer: Generation, longest: int) -> bool:
    return answer.finish_reason == "length" and answer.num_tokens < longest
