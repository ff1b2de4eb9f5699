"""How one token is drawn from a row of logits: inverse CDF with one uniform number per token.

The uniform numbers of a sample come from a stream that only its seed and its index in the group determine, so a
sample does not depend on what else is in the batch, on when it was admitted, or on how often the run was paused.
"""

import secrets
from dataclasses import dataclass

import numpy as np
import torch

from roll.types.rollout import FinishReason, Generation, GenerationRequest

_WORD = 2**64
_LARGEST_UNIFORM = 1 - 1e-12  # uniform * total stays below total, so a token of probability 0 is never drawn


class UniformStreams:
    """Uniform numbers in [0, 1) of stream (seed, index): Philox, whose key and counter hold the two.

    Re-keying one generator takes a fifth of the time of building a new one. Not for several threads.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        self._fresh = self._bits.state

    def draw(self, seed: int | None, index: int, count: int) -> np.ndarray:
        """The first `count` numbers of the stream, float64. `seed` None: a stream that nobody can name again."""
        seed = secrets.randbits(64) if seed is None else seed
        self._fresh["state"]["key"][:] = np.array([seed % _WORD, seed // _WORD % _WORD], np.uint64)
        self._fresh["state"]["counter"][:] = np.array([0, 0, 0, index % _WORD], np.uint64)
        self._bits.state = self._fresh
        return np.minimum(self._generator.random(count), _LARGEST_UNIFORM)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of B rows, one tensor each; None where a knob is off in every row (and costs nothing).

    `present_tokens` [B, V] marks the tokens of prompt and answer so far (for the repetition penalty), `banned` [B, V]
    those that must not come yet (the end of sequence before min_new_tokens).
    """

    temperature: torch.Tensor | None = None  # float32 [B]; 0 is greedy
    top_k: torch.Tensor | None = None  # int64 [B]; 0 is off
    top_p: torch.Tensor | None = None  # float32 [B]; 1 is off
    repetition_penalty: torch.Tensor | None = None  # float32 [B]
    present_tokens: torch.Tensor | None = None  # bool [B, V]
    banned: torch.Tensor | None = None  # bool [B, V]


def draw_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, knobs: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token per row: logits [B, V], uniforms float64 [B] -> token ids int64 [B], log-probs float32 [B].

    The log-probs are always of the full distribution at the sampling temperature (at temperature 1 where it is 0,
    greedy): repetition penalty, min tokens, top-k and top-p, applied in this order, change which token is drawn, not
    what is reported. Top-p is the smallest set of likeliest tokens, after top-k, whose probability reaches p; the
    likeliest token always stays.
    """
    scaled = logits.float()
    greedy = None
    if knobs.temperature is not None:
        greedy = knobs.temperature == 0
        scaled = scaled / torch.where(greedy, 1.0, knobs.temperature)[:, None]

    shifted = scaled - scaled.amax(-1, keepdim=True)
    cumulative = _cumulative(shifted)
    allowed = _truncate(_penalise(shifted, scaled, knobs), knobs)
    changed = allowed is not shifted
    tokens = _invert(_cumulative(allowed - allowed.amax(-1, keepdim=True)) if changed else cumulative, uniforms)
    if greedy is not None and bool(greedy.any()):
        tokens = torch.where(greedy, allowed.argmax(-1), tokens)
    log_probs = shifted.gather(-1, tokens[:, None])[:, 0] - cumulative[:, -1].log()
    return tokens, log_probs.float()


def _cumulative(logits: torch.Tensor) -> torch.Tensor:
    """Cumulative weights over the vocabulary in id order, whatever the knobs: so a row draws the same token in every
    batch, and nothing is sorted. Float64, so that no tail of a large vocabulary is lost."""
    return logits.exp().cumsum(-1, dtype=torch.float64)


def _penalise(shifted: torch.Tensor, scaled: torch.Tensor, knobs: SamplingParams) -> torch.Tensor:
    """Logits after repetition penalty (CTRL, arXiv:1909.05858; it commutes with the temperature) and bans."""
    if knobs.repetition_penalty is not None and knobs.present_tokens is not None:
        penalty = knobs.repetition_penalty[:, None]
        changed = torch.where(scaled > 0, scaled / penalty, scaled * penalty)
        shifted = torch.where(knobs.present_tokens, changed - (scaled - shifted), shifted)
    if knobs.banned is not None:
        shifted = shifted.masked_fill(knobs.banned, -torch.inf)
    return shifted


def _truncate(logits: torch.Tensor, knobs: SamplingParams) -> torch.Tensor:
    """-inf for all but the likeliest tokens (ties in id order)."""
    if knobs.top_k is None and knobs.top_p is None:
        return logits
    ordered, ids = logits.sort(stable=True, dim=-1, descending=True)
    weights = (ordered - ordered[:, :1]).exp()
    dropped = torch.zeros_like(weights, dtype=torch.bool)
    if knobs.top_k is not None:
        rank = torch.arange(logits.shape[-1], device=logits.device)
        dropped |= (rank >= knobs.top_k[:, None]) & (knobs.top_k > 0)[:, None]
        weights = weights.masked_fill(dropped, 0.0)
    if knobs.top_p is not None:
        cumulative = weights.cumsum(-1, dtype=torch.float64)
        reached = cumulative - weights >= knobs.top_p.double()[:, None] * cumulative[:, -1:]
        dropped |= reached & (knobs.top_p < 1)[:, None]
    dropped[:, 0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter_(-1, ids, dropped), -torch.inf)


def _invert(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first entry whose cumulative weight exceeds uniform * total."""
    return torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None], right=True)[:, 0]


# The state of all samples in flight as arrays, one slot each, so that a step does no Python work per row.

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
            arrays = [(name, value) for name, value in vars(self).items() if isinstance(value, np.ndarray)]
            for name, array in arrays:
                setattr(self, name, np.concatenate([array, np.zeros((added, *array.shape[1:]), array.dtype)]))
        if width > self._width:
            for name in ("tokens", "log_probs", "versions", "uniforms"):
                array = vars(self)[name]
                padding = np.zeros((len(array), width - self._width), array.dtype)
                setattr(self, name, np.concatenate([array, padding], axis=1))
            self._width = width
