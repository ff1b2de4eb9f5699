"""What can be wrong with the judges of a run."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from roll.configs.load.aliases import LLM_JUDGE
from roll.configs.problems import Problem
from roll.pipeline.rlvr.judge.api import why_not_reached
from roll.pipeline.rlvr.judge.build import address_of, way_of
from roll.pipeline.rlvr.judge.prompts import ROLL_PROMPT
from roll.pipeline.rlvr.rlvr_config import RewardConfig, RLVRConfig
from roll.utils.secrets import mask

_OF_API = ("judge_model_name", "judge_api_url")


def judge_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    """Of the domain at a YAML path, whatever the machine; nothing where no judge scores."""
    if not worker.is_judge:
        return
    if worker.judge_model_type is None:
        yield Problem(
            f"{at}.judge_model_type is missing: api, a model behind judge_api_url.", (f"{at}.judge_model_type",)
        )
    elif worker.judge_model_type != "api":
        yield Problem(
            f"{at}.judge_model_type: {worker.judge_model_type} is not implemented yet. Use api.",
            (f"{at}.judge_model_type",),
        )
    else:
        yield from _address_problems(at, worker)
    if [worker.reward, *(part.reward for part in worker.reward_manager_config)].count(LLM_JUDGE) > 1:
        yield Problem(
            f"{at}.reward_manager_config: {LLM_JUDGE} is there twice. A domain has one judge.",
            (f"{at}.reward_manager_config",),
        )
    if (worker.reward == LLM_JUDGE and worker.reward_args) or any(
        part.reward == LLM_JUDGE and part.reward_args for part in worker.reward_manager_config
    ):
        yield Problem(
            f"{at}.reward_args: llm_judge takes none, its settings are the judge_ keys beside it. Remove them.",
            (f"{at}.reward_args",),
        )
    yield from _verdict_problems(at, worker)
    try:
        way_of(worker)
    except (OSError, ValueError) as error:
        key = "judge_verdict_pattern" if _has_bad_pattern(worker) else "judge_prompt"
        yield Problem(f"{at}.{key}: {error}.", (f"{at}.{key}",))


def judge_warnings(config: RLVRConfig) -> list[str]:
    found: list[str] = []
    for domain, worker in config.rewards.items():
        given = sorted(key for key in worker.model_fields_set if key.startswith("judge_"))
        if given and not worker.is_judge:
            verb = "does" if len(given) == 1 else "do"
            found.append(f"rewards.{domain}: {', '.join(given)} {verb} nothing here: llm_judge is not its reward.")
        if worker.is_judge and worker.judge_prompt == ROLL_PROMPT:
            found.append(
                f"rewards.{domain}.judge_prompt: {ROLL_PROMPT} says in words of its own what ROLL's says; for ROLL's "
                "very words write them into a file."
            )
    return found


def unreachable_judges(config: RLVRConfig) -> list[str]:
    """Every judge behind an address that does not answer this machine now."""
    asked: dict[str, str | None] = {}
    problems: list[str] = []
    for domain, worker in config.rewards.items():
        if not worker.is_judge or worker.judge_model_type != "api":
            continue
        address = address_of(worker)
        if address.base_url not in asked:
            asked[address.base_url] = why_not_reached(address)
        if (why := asked[address.base_url]) is not None:
            problems.append(f"rewards.{domain}.judge_api_url: {why}. Start it, or correct the address.")
    return problems


def _address_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    for key in _OF_API:
        if not getattr(worker, key):
            yield Problem(f"{at}.{key} is missing: judge_model_type api asks for it.", (f"{at}.{key}",))
    url = worker.judge_api_url
    if not url:
        return
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        yield Problem(
            f"{at}.judge_api_url: {mask(url)!r} is no address. Write it as http://host:8000/v1.",
            (f"{at}.judge_api_url",),
        )


def _verdict_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    form, pattern = worker.judge_verdict, worker.judge_verdict_pattern
    keys = (f"{at}.judge_verdict", f"{at}.judge_verdict_pattern")
    if form == "pattern" and pattern is None:
        yield Problem(f"{keys[1]} is missing: judge_verdict pattern asks for it.", keys)
    if form not in (None, "pattern") and pattern is not None:
        yield Problem(f"{keys[1]} contradicts {keys[0]}: {form}. Remove one.", keys)
    low, high = worker.judge_score_range
    if low >= high:
        yield Problem(
            f"{at}.judge_score_range: {low:g} is not below {high:g}. Write the lowest score first.",
            (f"{at}.judge_score_range",),
        )
    if blank := [word for word in worker.judge_scores if not word.strip()]:
        yield Problem(f"{at}.judge_scores: {blank[0]!r} is no word.", (f"{at}.judge_scores",))


def _has_bad_pattern(worker: RewardConfig) -> bool:
    try:
        way_of(worker.model_copy(update={"judge_prompt": None}))
    except ValueError:
        return True
    return False
