"""Builds the judge of a domain from its keys."""

from __future__ import annotations

from dataclasses import dataclass

from roll.rewards.config import RewardConfig
from roll.rewards.judge.api import Address, ApiModel, key_of
from roll.rewards.judge.judge import VerdictForm, VerdictReader
from roll.rewards.judge.judge_judge import Judge
from roll.rewards.judge.prompts import JudgePrompt, prompt_named


@dataclass(frozen=True)
class Way:
    """How a domain's answers are judged."""

    prompt: JudgePrompt
    form: VerdictForm
    read: VerdictReader


def way_of(config: RewardConfig) -> Way:
    """Raises ValueError, or OSError, for a prompt or a pattern that is none."""
    named = prompt_named(config.judge_prompt)
    form = config.judge_verdict or ("pattern" if config.judge_verdict_pattern is not None else named.verdict)
    low, high = config.judge_score_range
    read = VerdictReader(form, config.judge_verdict_pattern, config.judge_scores, (low, high))
    return Way(JudgePrompt(named.text, low, high), form, read)


def address_of(config: RewardConfig) -> Address:
    assert config.judge_api_url is not None and config.judge_model_name is not None
    return Address(config.judge_api_url, config.judge_model_name, key_of(config.judge_api_key))


def api_judge(config: RewardConfig) -> Judge:
    """A judge behind an address, for one of the domain's processes, which share the requests among them."""
    way = way_of(config)
    max_requests = max(1, config.judge_max_requests // config.num_workers)
    model = ApiModel(address_of(config), config.generating_args, max_requests, config.judge_request_timeout_s)
    return Judge(way.prompt, way.read, model, config.judge_max_retries)


def for_workers(config: RewardConfig) -> RewardConfig:
    """The config with what only this process can read: the prompt's file, and the key of its environment."""
    if config.judge_model_type is None:
        return config
    found = {"judge_prompt": prompt_named(config.judge_prompt).text, "judge_api_key": key_of(config.judge_api_key)}
    return config.model_copy(update={**found, "judge_verdict": way_of(config).form})
