"""The state of all samples in flight as arrays, one slot each, so that a step does no Python work per row."""

from __future__ import annotations

import numpy as np

from roll.types.rollout import FinishReason, Generation, GenerationRequest

IDLE_SLOT = 0  # rows that are finished but still in the batch point here


class SampleTable:
    """Slots of samples. Slot 0 belongs to nobody."""

    def __init__(self) -> None:
        self._width = 0
        self._free: list[int] = []
        self.requests: list[GenerationRequest | None] = [None]
        self.tokens = np.zeros((1, 0), np.int32)
        self.log_probs = np.zeros((1, 0), np.float32)
        self.versions = np.zeros((1, 0), np.int32)
        self.uniforms = np.zeros((1, 0), np.float64)
        self.index = np.zeros(1, np.int64)  # of the sample within its group
        self.position = np.zeros(1, np.int64)  # tokens sampled so far
        self.max_new_tokens = np.ones(1, np.int64)
        self.min_new_tokens = np.zeros(1, np.int64)
        self.stop_class = np.zeros(1, np.int64)
        self.text_class = np.zeros(1, np.int64)
        self.temperature = np.ones(1, np.float32)
        self.top_k = np.zeros(1, np.int64)
        self.top_p = np.ones(1, np.float32)
        self.repetition_penalty = np.ones(1, np.float32)
        self.routes: dict[int, list[np.ndarray]] = {}  # of a slot, where they are told: int16 [tokens, layers, k] each

    def add(self, request: GenerationRequest, uniforms: np.ndarray, stop_class: int, text_class: int) -> np.ndarray:
        """Slots [n] for the samples of a request, whose uniform numbers are [n, max_new_tokens]."""
        count, width = uniforms.shape
        self._reserve(count, width)
        slots = np.array([self._free.pop() for _ in range(count)], np.int64)
        sampling = request.sampling
        for slot in slots:
            self.requests[slot] = request
        self.uniforms[slots, :width] = uniforms
        self.index[slots] = request.samples
        self.position[slots] = 0
        self.max_new_tokens[slots] = sampling.max_new_tokens
        self.min_new_tokens[slots] = sampling.min_new_tokens
        self.stop_class[slots] = stop_class
        self.text_class[slots] = text_class
        self.temperature[slots] = sampling.temperature
        self.top_k[slots] = sampling.top_k
        self.top_p[slots] = sampling.top_p
        self.repetition_penalty[slots] = sampling.repetition_penalty
        return slots

    def close(self, slot: int, reason: FinishReason) -> tuple[str, int, Generation]:
        """Frees a slot. The id of its request, the number of its answer, and the answer."""
        request, count = self.requests[slot], self.position[slot]
        assert request is not None
        routes = self.routes.pop(slot, None)
        generation = Generation(
            token_ids=self.tokens[slot, :count].copy(),
            log_probs=self.log_probs[slot, :count].copy(),
            policy_versions=self.versions[slot, :count].copy(),
            finish_reason=reason,
            routes=None if routes is None else np.concatenate(routes),
        )
        self.requests[slot] = None
        self._free.append(slot)
        return request.request_id, int(self.index[slot]), generation

    def _reserve(self, count: int, width: int) -> None:
        num_slots = len(self.requests)
        missing = count - len(self._free)
        if missing > 0:
            added = max(missing, num_slots)
            self.requests.extend([None] * added)
            self._free.extend(range(num_slots, num_slots + added))
            for name, array in self._arrays():
                setattr(self, name, np.concatenate([array, np.zeros((added, *array.shape[1:]), array.dtype)]))
        if width > self._width:
            for name in ("tokens", "log_probs", "versions", "uniforms"):
                array = vars(self)[name]
                padding = np.zeros((len(array), width - self._width), array.dtype)
                setattr(self, name, np.concatenate([array, padding], axis=1))
            self._width = width

    def _arrays(self) -> list[tuple[str, np.ndarray]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, np.ndarray)]
