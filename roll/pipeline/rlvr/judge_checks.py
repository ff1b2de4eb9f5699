"""Checks of the judges of a run."""

from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import feature_problem
from roll.configs.tables.roles import LLM_JUDGE
from roll.configs.tables.sight import VisionModel
from roll.pipeline.rlvr.rlvr_config import JUDGE, RLVRConfig
from roll.rewards.chain import parts_of
from roll.rewards.config import BUILTINS, RewardConfig
from roll.rewards.judge.api import address_of, method_of, why_not_reached
from roll.utils.secrets import mask

_OF_API = ("judge_model_name", "judge_api_url")
_OF_API_ALONE = (*_OF_API, "judge_api_key", "judge_max_requests", "judge_request_timeout_s")
_OF_ENGINES = ("strategy_args", "device_mapping")


def judge_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    """Checks the judge of the domain at a YAML path, without looking at the machine; nothing if no judge scores."""
    if not worker.is_judge:
        return
    if worker.judge_model_type is None:
        yield Problem(
            f"{at}.judge_model_type is missing: api (a model behind judge_api_url), inference (engines of its own) or "
            "cluster (those of reward_model).",
            (f"{at}.judge_model_type",),
        )
    elif worker.judge_model_type == "api":
        yield from _address_problems(at, worker)
    else:
        yield from _engine_problems(at, worker)
    if (worker.reward == LLM_JUDGE and worker.reward_args) or any(
        part.reward == LLM_JUDGE and part.reward_args for part in worker.reward_manager_config
    ):
        yield Problem(
            f"{at}.reward_args: llm_judge takes none, its settings are the judge_ keys beside it. Remove them.",
            (f"{at}.reward_args",),
        )
    yield from _verdict_problems(at, worker)
    try:
        method_of(worker)
    except (OSError, ValueError) as error:
        is_of_pattern = str(error).startswith(repr(worker.judge_verdict_pattern))
        key = f"{at}.judge_{'verdict_pattern' if is_of_pattern else 'prompt'}"
        yield Problem(f"{key}: {error}.", (key,))


def judge_warnings(config: RLVRConfig) -> list[str]:
    warnings: list[str] = []
    if config.reward_model is not None and JUDGE.name not in config.judge_of.values():
        warnings.append("reward_model is not started: no domain of rewards has judge_model_type: cluster.")
    for domain, worker in config.rewards.items():
        set_keys = sorted(key for key in worker.model_fields_set if key.startswith("judge_"))
        if set_keys and not worker.is_judge:
            verb = "does" if len(set_keys) == 1 else "do"
            warnings.append(
                f"rewards.{domain}: {', '.join(set_keys)} {verb} nothing here: llm_judge is not its reward."
            )
    return warnings


def unreachable_judges(config: RLVRConfig) -> list[str]:
    """Every judge behind an address that does not answer this machine now."""
    causes: dict[str, str | None] = {}
    problems: list[str] = []
    for domain, worker in config.rewards.items():
        if not worker.is_judge or worker.judge_model_type != "api":
            continue
        address = address_of(worker)
        if address.base_url not in causes:
            causes[address.base_url] = why_not_reached(address)
        if (why := causes[address.base_url]) is not None:
            problems.append(f"rewards.{domain}.judge_api_url: {why}. Start it, or correct the address.")
    return problems


def _address_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    for key in _OF_API:
        if not getattr(worker, key):
            yield Problem(f"{at}.{key} is missing: judge_model_type api needs it.", (f"{at}.{key}",))
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
            f"{at}.judge_api_url: {mask(url)!r} is not an address. Write it as http://host:8000/v1.",
            (f"{at}.judge_api_url",),
        )


def _engine_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    """Checks a judge on engines of the run. Their strategy has its own checks."""
    kind = f"{at}.judge_model_type"
    for key in _OF_API_ALONE:
        if worker.is_changed(key):
            yield Problem(
                f"{at}.{key} is for judge_model_type: api, but {kind} is {worker.judge_model_type}. Remove {key}"
                + (f", or set {kind}: api." if key in _OF_API else "."),
                (f"{at}.{key}", kind),
            )
    if worker.has_own_judge:
        if worker.device_mapping is None:
            yield _no_devices(at)
    else:
        for key in _OF_ENGINES:
            if worker.is_changed(key):
                yield Problem(
                    f"{at}.{key}: with judge_model_type: cluster the engines of the section {JUDGE.name} judge. Move "
                    f"it there, or set {kind}: inference for engines of this domain's own.",
                    (f"{at}.{key}", kind),
                )
    for part in parts_of(worker, at):
        if part.reward != LLM_JUDGE and not (part.reward in BUILTINS and BUILTINS[part.reward].is_light):
            yield Problem(
                f"{part.key}.reward: {part.reward} cannot be a part beside a judge on engines of the run, which has no "
                f"processes of its own. Parts that can: {', '.join(n for n, row in BUILTINS.items() if row.is_light)}. "
                "Or use judge_model_type: api.",
                (f"{part.key}.reward", kind),
            )
    if (count := worker.generating_args.num_return_sequences or 1) > 1:
        key = f"{at}.generating_args.num_return_sequences"
        yield Problem(f"{key}: {count}, but a judge is asked once. Remove it.", (key,))


def _no_devices(at: str) -> Problem:
    return Problem(
        f"{at}.device_mapping is missing: it says where the engines of this judge run. Give devices of its own, such "
        "as list(range(6, 8)), or those of roles with which it takes turns.",
        (f"{at}.device_mapping",),
    )


def engine_judge_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Checks the section reward_model, which domains with judge_model_type: cluster use, and judges that take turns
    with other roles."""
    asking = [domain for domain, role in config.judge_of.items() if role == JUDGE.name]
    if asking and config.reward_model is None:
        key = f"rewards.{asking[0]}.judge_model_type"
        yield Problem(
            f"{JUDGE.name} is missing: {key} is cluster, which uses its engines. Add the section (model_args, "
            "strategy_args, device_mapping), or use inference or api.",
            (JUDGE.name, key),
        )
    elif asking and config.reward_model is not None and config.reward_model.device_mapping is None:
        yield _no_devices(JUDGE.name)
    for domain, role in config.judge_of.items():
        filters = config.rewards[domain].query_filter_config
        if domain in config.after_rollout_domains and filters.type != "no_filter" and config.is_use_additional_prompts:
            yield Problem(
                "is_use_additional_prompts: other prompts are started during the rollout, but "
                f"rewards.{domain}.query_filter_config can only be applied after it: {role} shares devices with other "
                "roles and takes its turn then. Set is_use_additional_prompts: false, remove the filter, or give "
                f"{role}.device_mapping devices of its own.",
                ("is_use_additional_prompts", f"rewards.{domain}.query_filter_config", f"{role}.device_mapping"),
            )


def judge_sight_problems(
    config: RLVRConfig, seen: Mapping[str, VisionModel | None], domains: Collection[str]
) -> Iterator[str]:
    """Yield the problems of judges on engines that are to be shown the pictures of these domains. `seen`: how the
    models of judges see, None: not at all; without those that are not known."""
    for domain, role in config.judge_of.items():
        says, key = config.rewards[domain].judge_sees_pictures, f"rewards.{domain}.judge_sees_pictures"
        if domain not in domains or role not in seen or (seen[role] is None and not says):
            continue
        choice = Choice(config.roles[role], config.sections[role])
        if seen[role] is None:
            name = choice.worker.model_args.model_name_or_path
            yield f"{key}: true, but {role} is {name}, which sees no pictures. Take a model that does"
        elif problem := feature_problem(choice, Feature.PICTURES, "rows with pictures", key):
            yield problem.text


def _verdict_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    form, pattern = worker.judge_verdict, worker.judge_verdict_pattern
    keys = (f"{at}.judge_verdict", f"{at}.judge_verdict_pattern")
    if form == "pattern" and pattern is None:
        yield Problem(f"{keys[1]} is missing: judge_verdict pattern needs it.", keys)
    if form not in (None, "pattern") and pattern is not None:
        yield Problem(f"{keys[1]} contradicts {keys[0]}: {form}. Remove one.", keys)
    low, high = worker.judge_score_range
    if low >= high:
        yield Problem(
            f"{at}.judge_score_range: {low:g} is not below {high:g}. Write the lowest score first.",
            (f"{at}.judge_score_range",),
        )
