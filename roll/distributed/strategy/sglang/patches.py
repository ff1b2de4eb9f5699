"""Patches for SGLang 0.5.23, applied in its scheduler processes, so that it samples like every other engine here."""

import random
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from sglang.srt.layers import sampler
from sglang.srt.managers.schedule_batch import FINISH_MATCHED_TOKEN, Req
from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS
from sglang.srt.sampling.penaltylib.min_new_tokens import BatchedMinNewTokensPenalizer
from sglang.srt.sampling.penaltylib.repetition_penalty import BatchedRepetitionPenalizer
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

_MASK = 0xFFFFFFFF


def install_patches() -> None:
    _draw_every_sample_from_its_seed()
    _stop_at_stop_tokens_also_without_eos()
    _count_tokens_of_before_a_pause()
    _penalise_repetition_of_the_prompt()
    _keep_experts_in_plain_memory_on_a_cpu()


def _draw_every_sample_from_its_seed() -> None:
    """SGLang looks at seeds in its deterministic mode only, which many attention kernels do not offer."""
    build = SamplingBatchInfo.from_schedule_batch

    def from_schedule_batch(batch: Any, *arguments: Any, **options: Any) -> SamplingBatchInfo:
        info = build(batch, *arguments, **options)
        seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
        drawn = [random.getrandbits(62) if seed is None else seed for seed in seeds]
        info.sampling_seed = torch.tensor(drawn, dtype=torch.int64).to(info.temperatures.device)
        return info

    SamplingBatchInfo.from_schedule_batch = staticmethod(from_schedule_batch)  # type: ignore[assignment]
    _hash_on_a_cpu_without_its_kernel()


def _hash_on_a_cpu_without_its_kernel() -> None:
    """SGLang's CPU kernel is in no package; on a GPU its own kernel is taken, which makes the hashes in one pass."""
    original = sampler.murmur_hash32

    def by_device(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return (murmur_hash32 if seeds.device.type == "cpu" else original)(seeds, positions, columns)

    sampler.murmur_hash32 = by_device


def murmur_hash32(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bits) [N, V] of 16 bytes each: the seed [N] of 64 bits, the position [N], the column [V]. The
    noise of seeded sampling is made of it."""
    seeds, positions = seeds.view(torch.int64)[:, None], positions.long()[:, None]
    hashes = torch.zeros_like(seeds)
    for block in (seeds & _MASK, (seeds >> 32) & _MASK, positions & _MASK, columns.long()[None] & _MASK):
        block = _rotate_left(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        hashes = (_rotate_left(hashes ^ block, 13) * 5 + 0xE6546B64) & _MASK
    hashes = hashes ^ 16
    hashes = (hashes ^ (hashes >> 16)) * 0x85EBCA6B & _MASK
    hashes = (hashes ^ (hashes >> 13)) * 0xC2B2AE35 & _MASK
    return hashes ^ (hashes >> 16)


def _rotate_left(values: torch.Tensor, count: int) -> torch.Tensor:
    return ((values << count) | (values >> (32 - count))) & _MASK


def _keep_experts_in_plain_memory_on_a_cpu() -> None:
    """SGLang registers the memory that keeps routed experts with CUDA, also where there is none."""
    with_cuda = ALLOC_MEMORY_FUNCS["cpu"]
    ALLOC_MEMORY_FUNCS["cpu"] = partial(_not_pinned, with_cuda)


def _not_pinned(allocate: Any, *arguments: Any, **options: Any) -> torch.Tensor:
    return allocate(*arguments, **options | {"pin_memory": False})


def _stop_at_stop_tokens_also_without_eos() -> None:
    """`ignore_eos` of SGLang ignores `stop_token_ids` as well."""
    check = Req._check_token_based_finish

    def check_token_based_finish(self: Req, new_accepted_tokens: list[int]) -> bool:
        stop_token_ids = self.sampling_params.stop_token_ids
        if not (self.sampling_params.ignore_eos and stop_token_ids):
            return check(self, new_accepted_tokens)
        for position, token_id in enumerate(new_accepted_tokens):
            if token_id in stop_token_ids:
                self.finished_reason = FINISH_MATCHED_TOKEN(matched=token_id)
                self.finished_len = len(self.output_ids) - len(new_accepted_tokens) + position + 1
                return True
        return False

    Req._check_token_based_finish = check_token_based_finish  # type: ignore[method-assign]


def _count_tokens_of_before_a_pause() -> None:
    """A request that was set back by a pause has tokens already; SGLang counts `min_new_tokens` from there again."""
    prepare = BatchedMinNewTokensPenalizer._prepare

    def prepare_with_tokens(self: BatchedMinNewTokensPenalizer) -> None:
        prepare(self)
        counts = [[len(request.output_ids)] for request in self.orchestrator.reqs()]
        self.len_output_tokens += torch.tensor(counts, dtype=torch.int32).to(self.len_output_tokens.device)

    BatchedMinNewTokensPenalizer._prepare = prepare_with_tokens  # type: ignore[method-assign]


def _penalise_repetition_of_the_prompt() -> None:
    """SGLang's repetition penalty is for tokens of the answer only, and forgets those of before a pause."""
    prepare = BatchedRepetitionPenalizer._prepare

    def prepare_with_prompt(self: BatchedRepetitionPenalizer) -> None:
        prepare(self)
        penalties = self.cumulated_repetition_penalties
        for row, request in enumerate(self.orchestrator.reqs()):
            tokens = torch.tensor([*request.origin_input_ids, *request.output_ids], dtype=torch.int64)
            penalties[row, tokens.to(penalties.device)] = request.sampling_params.repetition_penalty

    BatchedRepetitionPenalizer._prepare = prepare_with_prompt  # type: ignore[method-assign]


# Weights that SGLang loads only together: held back until their partners are there. No SGLang here.

# Projections of latent attention (DeepSeek's, GLM's, LongCat's ...) that SGLang joins into one weight: it looks for the
# partners in the call that brings the first of them, and drops what came alone without a word.
_FUSED = re.compile(r"(?P<module>.+)\.(q_a_proj|kv_a_proj_with_mqa|g_proj|indexer\.(wk|weights_proj))\.(?P<kind>[^.]+)")


class FusedWeights:
    """Passes weights on, but those of one attention module that belong together only once all of them have come.

    Example: of a, layers.0.self_attn.q_a_proj.weight | layers.0.self_attn.kv_a_proj_with_mqa.weight (two buckets), a
    passes with the first, the two others with the second.
    """

    def __init__(self, expected: Iterable[str] | None):
        """`expected`: names of all weights of the model; None if nobody knows them: then partners pass at the end."""
        self._partners: dict[str, set[str]] | None = None
        if expected is not None:
            self._partners = {}
            for name in expected:
                if group := _group(name):
                    self._partners.setdefault(group, set()).add(name)
        self._held: dict[str, dict[str, torch.Tensor]] = {}

    def pass_on(self, weights: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        """Return the weights that can be loaded now. What is held back is copied: the source is overwritten by the next
        bucket."""
        ready: list[tuple[str, torch.Tensor]] = []
        arrived: set[str] = set()
        for name, tensor in weights.items():
            group = _group(name)
            if group is None:
                ready.append((name, tensor))
            else:
                self._held.setdefault(group, {})[name] = tensor
                arrived.add(group)
        for group in arrived:
            if self._partners is not None and self._partners.get(group, set()) <= self._held[group].keys():
                ready += self._held.pop(group).items()
            else:
                held = self._held[group]
                held.update({name: held[name].clone() for name in held.keys() & weights.keys()})
        return ready

    def rest(self) -> list[tuple[str, torch.Tensor]]:
        """Return the weights whose partners did not arrive, at the end of an update."""
        held, self._held = self._held, {}
        return [pair for group in held.values() for pair in group.items()]


def _group(name: str) -> str | None:
    """Weights, biases and scales are joined each by themselves."""
    match = _FUSED.fullmatch(name)
    return f"{match['module']} {match['kind']}" if match else None
