"""What every rollout engine refuses before it samples."""

from __future__ import annotations

from roll.errors import StrategyError
from roll.types.rollout import GenerationRequest


def check_request(request: GenerationRequest, limit: int, limit_key: str) -> None:
    """StrategyError for an empty prompt, no sample, an empty stop string, images, or more than `limit` tokens of
    prompt and answer together; `limit_key` is the setting that raises the limit."""
    num_prompt, sampling = len(request.prompt_ids), request.sampling
    what = f"request {request.request_id}"
    if num_prompt == 0 or request.num_samples < 1:
        raise StrategyError(f"{what} has an empty prompt or requests no sample")
    if num_prompt + sampling.max_new_tokens > limit:
        raise StrategyError(
            f"{what}: prompt of {num_prompt} + max_new_tokens {sampling.max_new_tokens} > {limit_key} {limit}. Shorten "
            f"one of them, or raise {limit_key} in strategy_config."
        )
    if request.media:
        raise StrategyError(f"{what} shows {len(request.media)} images: no engine takes any yet")
    if "" in sampling.stop_strings:
        raise StrategyError(f"{what}: stop_strings must not be empty")
