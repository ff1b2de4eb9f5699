"""Sampling parameters to vLLM, answers from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from roll.errors import StrategyError
from roll.types.rollout import FinishReason, Generation, SamplingParams

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import SamplingParams as VllmSamplingParams

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def to_vllm(sampling: SamplingParams, index: int) -> VllmSamplingParams:
    """Parameters of sample `index` of a group, which is a request of its own: vLLM seeds the samples of one request
    with seed + index, so that neighbouring seeds would share samples."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmSamplingParams

    return VllmSamplingParams(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_tokens=sampling.min_new_tokens,
        repetition_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop_strings),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        seed=sampling.seed_of(index),
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop_strings),
        skip_special_tokens=False,  # a stop string may name one
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def to_generation(output: CompletionOutput) -> Generation:
    from vllm.logprobs import FlatLogprobs

    reason = _FINISH_REASONS.get(output.finish_reason or "")
    if reason is None:
        raise StrategyError(f"vllm ended a request with {output.finish_reason!r}")
    num_tokens = len(output.token_ids)
    versions = np.zeros(num_tokens, np.int32)
    for span in output.weight_versions or []:
        versions[span.start : span.end] = int(span.version)
    log_probs = np.zeros(0, np.float32)
    if num_tokens:
        assert isinstance(output.logprobs, FlatLogprobs)
        log_probs = np.array(output.logprobs.logprobs, np.float32)
    return Generation(np.array(output.token_ids, np.int32), log_probs, versions, reason)
