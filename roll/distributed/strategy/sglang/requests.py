"""Sampling parameters to SGLang, answers from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from roll.distributed.strategy.sglang.routes import ToldRoutes
from roll.errors import StrategyError
from roll.types.rollout import FinishReason, Generation, SamplingParams

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def to_sglang(sampling: SamplingParams, index: int) -> dict[str, Any]:
    """Parameters of sample `index` of a group, which is a request of its own."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_new_tokens": sampling.min_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop_strings) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "ignore_eos": sampling.ignore_eos,
        "sampling_seed": sampling.seed_of(index),
        "skip_special_tokens": False,  # a stop string may name one
    }


def to_generation(answer: Any, was_aborted: bool, told: ToldRoutes | None = None) -> Generation:
    """StrategyError if SGLang ended the request for a reason of its own. `told`: experts come with it."""
    meta = answer["meta_info"]
    ended = meta["finish_reason"] or {}
    reason = _FINISH_REASONS.get(ended.get("type", ""))
    if reason is None or (reason == "abort" and not was_aborted):
        raise StrategyError(f"sglang ended a request: {ended.get('message') or ended}")
    sampled = meta.get("output_token_logprobs") or []
    token_ids = [token_id for _, token_id, *_ in sampled]
    if token_ids != list(answer["output_ids"])[: len(token_ids)] or (
        reason != "abort" and len(token_ids) != len(answer["output_ids"])
    ):
        raise StrategyError("sglang's tokens and log-probs do not match")
    versions = np.zeros(len(token_ids), np.int32)
    spans = meta.get("weight_versions") or []
    if token_ids and not spans:
        raise StrategyError("sglang does not report which weights sampled a response")
    for span in spans:
        versions[span["start"] : span["end"]] = int(span["version"])
    log_probs = np.array([log_prob for log_prob, *_ in sampled], np.float32)
    routes = told.read(meta) if told is not None else None
    if told is not None and routes is None and reason != "abort":
        raise StrategyError("sglang does not report which experts processed the tokens of a response")
    return Generation(np.array(token_ids, np.int32), log_probs, versions, reason, routes)
