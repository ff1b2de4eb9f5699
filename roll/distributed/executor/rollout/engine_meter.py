"""Meter of an engine's time and tokens."""

import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.processes.worker_process import MemoryWatch
from roll.distributed.strategy.base import State
from roll.types.rollout import FIRST_IN_LINE, Generation, GenerationRequest
from roll.utils.worker_usage import IDLE, Meter, TraceOptions, Usage

SAMPLING, HELD, AWAY = "sampling", "held", "away"


class EngineMeter:
    """An engine is away (something of it off its devices), held by a weight update, sampling, or idle."""

    def __init__(self, blueprint: Blueprint, clock: Callable[[], float] = time.perf_counter):
        self._recomputes = not blueprint.keeps_kv
        self._meter = Meter(blueprint.role, f"rank {blueprint.rank}", clock)
        self._memory = MemoryWatch(f"{blueprint.role}-{blueprint.rank}")
        self._counts: defaultdict[str, float] = defaultdict(
            float
        )  # here, since the meter has a lock, which every answer would take
        self._num_open = 0
        self._is_held = False
        self._away: frozenset[State] = frozenset()

    def begin(self, request: GenerationRequest) -> None:
        """The engine reads a prompt, once for all its answers."""
        num_prompt = len(request.prompt_ids)
        self._counts["prompt_tokens"] += num_prompt
        self._counts["pairs"] += num_prompt * (num_prompt + 1) / 2
        self._open(request.num_samples)

    def answered(self, request: GenerationRequest, answer: Generation) -> None:
        """An answer is there, whole or cut short."""
        num_prompt, sampled, versions = len(request.prompt_ids), answer.num_tokens, answer.policy_versions
        self._counts["other_tokens" if request.order == FIRST_IN_LINE else "sampled_tokens"] += sampled
        self._counts["pairs"] += sampled * num_prompt + sampled * (sampled + 1) / 2
        if self._recomputes and sampled and versions[0] != versions[-1]:
            self._counts["recomputed_tokens"] += recomputed(num_prompt, versions)
        self._open(-1)

    def moved(self) -> None:
        """Another engine goes on with what there is of an answer."""
        self._counts["moved_answers"] += 1

    def cut(self, num_answers: int) -> None:
        """These never came."""
        self._open(-num_answers)

    def hold(self) -> None:
        self._is_held = True
        self._sample()

    def go_on(self) -> None:
        self._is_held = False
        self._sample()

    def leave(self, states: frozenset[State]) -> None:
        self._away |= states
        self._sample()

    def come_back(self, states: frozenset[State]) -> None:
        self._away -= states
        self._sample()

    def take(self, request: TraceOptions) -> Usage:
        for name, value in self._counts.items():
            self._meter.count(name, value)
        self._counts.clear()
        return self._memory.add_to(self._meter.take(request.trace), request)

    def _open(self, num_answers: int) -> None:
        self._num_open += num_answers
        self._sample()

    def _sample(self) -> None:
        self._meter.go(AWAY if self._away else HELD if self._is_held else SAMPLING if self._num_open else IDLE)


def recomputed(num_given: int, versions: np.ndarray) -> int:
    """Tokens whose keys and values were computed anew because weights changed under an answer."""
    changes = np.flatnonzero(np.diff(versions)) + 1
    return int((num_given + changes).sum())
