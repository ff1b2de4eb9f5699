"""Checks of the RLVR part of a configuration: domains, rewards, data, validation."""

from collections.abc import Collection, Iterator
from importlib import import_module
from types import ModuleType

from roll.configs.checks.roles import REWARD as REWARD_SWITCHES
from roll.configs.checks.roles import RLVR, switched_off
from roll.configs.checks.rollout import unused_filter_keys
from roll.configs.load.known_keys import ROLL_REWARDS
from roll.configs.load.validate import validate
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.describe import batch_rows
from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.rollout import LENGTH_KEYS
from roll.configs.tables.roles import JUDGE_CHECKS, REWARD_MODEL
from roll.datasets.sight import sight
from roll.datasets.templates import template_name_problem, template_warning, variables_problem
from roll.pipeline.rlvr.rlvr_config import LEARNT, REWARD, RLVRConfig, eval_set_problems
from roll.rewards.chain import parts_of
from roll.rewards.config import BUILTINS, RewardConfig, RewardModelArgs
from roll.run.saving.model_files import known_sight, read_model_config, read_vision
from roll.run.start.data_files import (
    data_args_problems,
    data_args_warnings,
    has_files,
    made_rows,
    missing_data_files,
    unknown_templates,
)
from roll.run.start.machine import lacks_gpus
from roll.utils.imports import split
from roll.utils.text import show

# What can be wrong with the reward models of a run, and with the keys of domains whose answers they score.

NOT_TAKEN = (
    "format_pattern",
    "reward_type",
    "response_length_penalty_coef",
    "reward_manager_config",
    "reward_retries",
    "dynamic_timeout.enable",
)


def reward_model_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Yield problems of reward models that exist on any machine."""
    for domain, worker in config.rewards.items():
        at = f"rewards.{domain}"
        yield from _one_domain(config, at, worker) if worker.is_model else _scorer_problems(at, worker)


def reward_model_warnings(config: RLVRConfig) -> list[str]:
    if config.reward is not None and REWARD.name not in config.scorer_roles:
        return ["reward is not started: no domain of rewards has `reward: reward_model` without strategy_args."]
    return []


def _one_domain(config: RLVRConfig, at: str, worker: RewardConfig) -> Iterator[Problem]:
    if not worker.has_reward_model and config.reward is None:
        yield Problem(
            f"{at}.strategy_args is missing: it names what runs the reward model, such as `strategy_name: hf_infer`. "
            "Or add a section `reward`, whose model then scores all domains that have no strategy_args of their own.",
            (f"{at}.strategy_args", "reward"),
        )
    for key in NOT_TAKEN:
        if worker.is_changed(key):
            yield Problem(
                f"{at}.{key} does nothing with reward: {REWARD_MODEL}, whose scores come after the rollout and are the "
                "rewards. Remove it, or score this domain by a reward that runs on the CPU.",
                (f"{at}.{key}",),
            )
    checked = validate(RewardModelArgs, worker.reward_args)
    for problem in checked.problems:
        yield Problem(f"{at}.reward_args.{problem.text}", tuple(f"{at}.reward_args.{key}" for key in problem.keys))
    if worker.query_filter_config.type != "no_filter" and config.is_use_additional_prompts:
        yield Problem(
            f"is_use_additional_prompts: other prompts are started during the rollout, but {at}.query_filter_config "
            f"can only be applied after it, when the rewards of {REWARD_MODEL} are there. Set "
            "is_use_additional_prompts: false, or remove the filter.",
            ("is_use_additional_prompts", f"{at}.query_filter_config"),
        )


def _scorer_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    for index, part in enumerate(worker.reward_manager_config):
        if part.reward == REWARD_MODEL:
            key = f"{at}.reward_manager_config.{index}.reward"
            yield Problem(
                f"{key}: {REWARD_MODEL} scores after the rollout and cannot be added to rewards that are computed "
                f"during it. Make it the reward of the domain: {at}.reward: {REWARD_MODEL}.",
                (key,),
            )


BUILT_IN = (*BUILTINS, REWARD_MODEL)


def rlvr_problems(config: RLVRConfig) -> list[Problem]:
    """Everything of the RLVR part that cannot work, whatever the machine."""
    return [
        *_reward_problems(config),
        *_redundancy_problems(config),
        *_compared_problems(config),
        *_pure_opd_problems(config),
        *_tag_problems(config),
        *_data_problems(config),
        *eval_set_problems(config.eval_sets),
        *_validation_problems(config),
    ]


def rlvr_warnings(config: RLVRConfig) -> list[str]:
    warnings: list[str] = []
    warnings += [
        f"{validated.at}.data_args.{key} does nothing: all rows are validated, in their order."
        for key in ("shuffle", "domain_interleave_probs")
        for validated in config.validated
        if key in validated.data_args.model_fields_set
    ]
    warnings += [said for key, name in _templates(config).items() if (said := template_warning(name, key)) is not None]
    warnings += [
        f"rewards.{domain}.reward_type does nothing here: {reward.reward} knows one kind of reward."
        for domain, reward in config.rewards.items()
        if reward.reward_type and (known := BUILTINS.get(reward.reward or "")) and not known.reward_types
    ]
    warnings += [text for judges in _judges(config) for text in judges.judge_warnings(config)]
    warnings += [*switched_off(config, RLVR), *_unused_filters(config)]
    warnings += [
        text for d, reward in config.rewards.items() for text in switched_off(reward, REWARD_SWITCHES, f"rewards.{d}")
    ]
    return [*warnings, *data_args_warnings(config.data_args), *reward_model_warnings(config)]


def _unused_filters(config: RLVRConfig) -> Iterator[str]:
    filters = {domain: reward.query_filter_config for domain, reward in config.rewards.items()}
    for domain, keys in filters.items():
        if keys.type == "no_filter" and keys.filter_args:
            yield f"rewards.{domain}.query_filter_config.filter_args does nothing with type: no_filter."
    if all(keys.type == "no_filter" for keys in filters.values()):
        yield from unused_filter_keys(config, "query_filter_config")


def missing_files(config: RLVRConfig) -> list[Problem]:
    """Data files that are not on this machine."""
    sees = has_files(config.data_args) and read_vision(config.actor_train.model_args) is not None
    return [
        *missing_data_files(config.data_args, sees),
        *unknown_templates(_templates(config)),
    ]


def plan_rows(config: RLVRConfig, plan: BatchPlan) -> Iterator[tuple[str, ...]]:
    """Yield the lines about a step in a plan."""
    yield from batch_rows(config, plan)
    yield from (("rows", text) for text in made_rows(config.data_args))
    model = config.actor_train.model_args
    if not config.has_rollouts or read_model_config(model)[0] is None:
        return
    if (vision := read_vision(model, config.actor_train.data_args)) is not None:
        yield "pictures", vision.sizes.text


def _templates(config: RLVRConfig) -> dict[str, str]:
    """The templates in use, by their YAML path. Judges have their own."""
    others = {f"tag_to_template.{tag}": name for tag, name in config.tag_to_template.items()}
    others |= {f"{role}.data_args.template": judge.data_args.template for role, judge in config.judge_roles.items()}
    if config.global_template is not None:
        return {"global_template": config.global_template, **others}
    return {**{f"{at}.template": data.template for at, data in config.data_args.items()}, **others}


def code_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Import the rewards, and yield their problems."""
    # imported here, as below: what is planned without them does not need them
    from roll.pipeline.rlvr.reward_checks import code_problems as reward_problems

    if config.uses_engines:
        yield from reward_problems(config)


def local_rows(config: RLVRConfig) -> Iterator[str]:
    """Yield problems of rows in this machine's files."""
    if has_files(config.data_args):
        yield from _row_problems(config, reach=False)
        return
    template = config.global_template
    for at, args in config.data_args.items():
        name, key = (template, "global_template") if template else (args.template, f"{at}.template")
        yield from filter(None, [variables_problem(name, args.template_kwargs, key)])


def data_problems(config: RLVRConfig) -> Iterator[str]:
    """Yield problems of all rows, wherever they are, and of judges that do not answer."""
    for judges in _judges(config) if config.uses_engines else ():
        yield from judges.unreachable_judges(config)
    yield from _row_problems(config, reach=True)


def _row_problems(config: RLVRConfig, reach: bool) -> Iterator[str]:
    from roll.datasets.encoding import load_tasks
    from roll.datasets.preflight import preflight
    from roll.pipeline.rlvr.row_operators import data_domains
    from roll.run.start.first_rows import learners_tokenizer, refusals_of_rows

    try:
        domains = data_domains(config)
    except (ImportError, OSError, ValueError):  # code_problems says which reward it is, _verdict_problems which prompt
        return
    told: set[str] = set()
    tokenizer = learners_tokenizer(config)

    def told_once(shown: Collection[str]) -> Iterator[str]:
        for text in _shown_problems(config, shown):
            if text not in told:
                told.add(text)
                yield text

    for at, args in config.data_args.items() if domains else ():  # without any no row has one
        if args.operators:  # which may leave rows out: the run reads what they leave before it starts anything
            continue
        vision = read_vision(config.actor_train.model_args, args)
        problems = preflight(args, at, domains, config.global_template, reach, vision, told_once)
        yield from problems
        if problems or tokenizer is None or vision is not None:
            continue
        most = config.prompt_length if at == LEARNT else config.val_lengths[0]
        limits = domains, tokenizer, most, config.global_template, config.tag_to_template
        yield from refusals_of_rows(load_tasks, args, at, *limits)


def _shown_problems(config: RLVRConfig, domains: Collection[str]) -> Iterator[str]:
    """Yield the problems of rows of these domains that show pictures, as far as the models that are here say."""
    of_text = config.scorers_without(domains)
    seen = known_sight(config.model_roles)
    yield from sight().problems(config, "actor_train", seen, lacks_gpus(config), of_text)
    for judges in _judges(config):
        yield from judges.judge_sight_problems(config, known_sight(config.judge_roles), domains)


def _judges(config: RLVRConfig) -> list[ModuleType]:
    """The module of checks of judges, for a run with a key of one."""
    of_domains = (key for worker in config.rewards.values() for key in worker.model_fields_set)
    is_named = any(worker.is_judge for worker in config.rewards.values())
    if config.reward_model is None and not is_named and not any(key.startswith("judge_") for key in of_domains):
        return []
    return [import_module(JUDGE_CHECKS)]


def _reward_problems(config: RLVRConfig) -> Iterator[Problem]:
    if not config.rewards:
        yield Problem(
            "rewards is missing: name at least one domain, such as `rewards: {math: {reward: math_rule}}`.",
            ("rewards",),
        )
    if config.estimator.per_turn:
        yield Problem(
            f"adv_estimator: {config.adv_estimator} is for agentic runs. Choose grpo, rloo, reinforce or gae.",
            ("adv_estimator",),
        )
    for domain, worker in config.rewards.items():
        yield from _filter_problems(f"rewards.{domain}", worker)
        if not worker.is_model:
            yield from _one_reward(f"rewards.{domain}", worker)
            for judges in _judges(config):
                yield from judges.judge_problems(f"rewards.{domain}", worker)
    for judges in _judges(config):
        yield from judges.engine_judge_problems(config)
    yield from reward_model_problems(config)


def _compared_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Checks an estimator that compares rewards with that of a greedy response, or part by part."""
    row, late = config.estimator, ", ".join(sorted(config.after_rollout_domains))
    reasons: dict[str, str] = {}
    if row.needs_greedy and late:
        reasons["rewards"] = f"scores {late} after the rollout, without the greedy response"
    if row.needs_greedy and config.user_defined_rollout_loop_cls is not None:
        reasons["user_defined_rollout_loop_cls"] = "makes groups without a greedy response"
    if (row.needs_greedy or row.needs_parts) and config.experience_operators:
        reasons["experience_operators"] = "changes neither the reward of the greedy response nor parts of rewards"
    for key, why in reasons.items():
        text = f"adv_estimator: {config.adv_estimator} with {key}, which {why}. Choose grpo or rloo, or change {key}."
        yield Problem(text, ("adv_estimator", key))


def _pure_opd_problems(config: RLVRConfig) -> Iterator[Problem]:
    """Yield keys that weigh rows by rewards although nothing is learned from rewards."""
    for key in ("difficulty_mask", "error_max_len_clip", "difficulty_loss_weight"):
        if config.is_pure_opd and config.value(key):
            yield Problem(
                f"{key}: true chooses or weighs rows by their rewards, and is_pure_opd learns nothing from rewards. "
                f"Remove {key}, or set use_opd instead of is_pure_opd.",
                (key, "is_pure_opd"),
            )


def _redundancy_problems(config: RLVRConfig) -> Iterator[Problem]:
    if (more := config.group_size_redundancy) and config.rollout_mock.replays:
        text = f"group_size_redundancy: {more}, but with rollout_mock.mode: mock recorded groups keep their size"
        yield Problem(f"{text}. Remove it.", ("group_size_redundancy", "rollout_mock"))


def _filter_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    if worker.query_filter_config.type != "no_filter":
        from roll.distributed.scheduler.filters import filter_problems  # numpy: only where a filter is used

        filters = worker.query_filter_config
        for text in filter_problems(filters.type, filters.filter_args, f"{at}.query_filter_config"):
            yield Problem(text, (f"{at}.query_filter_config",))


def _one_reward(at: str, worker: RewardConfig) -> Iterator[Problem]:
    if worker.worker_cls is not None and worker.reward != ROLL_REWARDS.get(worker.worker_cls, worker.worker_cls):
        yield _worker_cls_problem(at, worker.worker_cls, worker.reward)
    elif not parts_of(worker):
        yield Problem(
            f"{at}.reward is missing: {', '.join(BUILT_IN)}, or your own package.module:object.", (f"{at}.reward", at)
        )
    else:
        yield from _part_problems(at, worker)
    if worker.reward == "code_sandbox" and not worker.use_local and worker.code_url is None:
        yield Problem(
            f"{at}.code_url is missing, and {at}.use_local is false. Give the address of a sandbox, or run programs "
            "here with use_local: true.",
            (f"{at}.code_url", f"{at}.use_local"),
        )
    keys = worker.dynamic_timeout
    if keys.enable and keys.min_s > worker.timeout_s:
        yield Problem(
            f"{at}.dynamic_timeout.min_s: {keys.min_s:g} is above {at}.timeout_s: {worker.timeout_s:g}, the longest "
            "limit there is. Lower it.",
            (f"{at}.dynamic_timeout.min_s", f"{at}.timeout_s"),
        )
    if worker.device_mapping is not None and not worker.is_judged_by_engines and parts_of(worker):
        yield Problem(
            f"{at}.device_mapping: rewards run on the CPU. Remove it and set {at}.world_size, the number of processes.",
            (f"{at}.device_mapping",),
        )


def _part_problems(at: str, worker: RewardConfig) -> Iterator[Problem]:
    owner: dict[str, str] = {}
    for part in parts_of(worker, at):
        key = f"{part.key}.reward"
        if part.reward not in BUILT_IN:
            try:
                split(part.reward, dict.fromkeys(BUILT_IN, ""))
            except ImportError as error:
                yield Problem(f"{key}: {error}.{did_you_mean(part.reward, BUILT_IN)}", (key,))
        if part.name in owner:
            yield Problem(
                f"{key}: its metrics would have the same name as those of {owner[part.name]}: {part.name}. Set "
                f"{at}.reward_manager_config.<index>.name.",
                (key, owner[part.name]),
            )
        owner.setdefault(part.name, key)


def _worker_cls_problem(at: str, worker_cls: str, reward: str | None) -> Problem:
    """`worker_cls`, as ROLL names rewards, beside a `reward` that says otherwise or without a counterpart."""
    if worker_cls in ROLL_REWARDS:
        what = f"{at}.worker_cls stands for `reward: {ROLL_REWARDS[worker_cls]}`."
    else:
        what = f"{at}.worker_cls: {worker_cls} is not supported yet."
    if reward is not None:
        remedy = f"Remove it: `reward: {reward}` says what runs."
    else:
        remedy = f"Write `reward:` instead, with {', '.join(BUILT_IN)} or your own package.module:object."
    return Problem(f"{what} {remedy}", (f"{at}.worker_cls", f"{at}.reward"))


def _tag_problems(config: RLVRConfig) -> Iterator[Problem]:
    known = [tag for domain, worker in config.rewards.items() for tag in (domain, *worker.tag_included)]
    for tag in config.tag_to_template:
        if tag not in known:
            yield Problem(
                f"tag_to_template.{tag}: no domain has this tag.{did_you_mean(tag, known)} Known tags: "
                f"{', '.join(known)}. Correct it, or add it to rewards.<domain>.tag_included.",
                (f"tag_to_template.{tag}", *(f"rewards.{domain}.tag_included" for domain in config.rewards)),
            )
    owner: dict[str, str] = {}
    for domain, worker in config.rewards.items():
        for tag in dict.fromkeys((domain, *worker.tag_included)):
            if tag in owner:
                yield Problem(
                    f"rewards.{domain}.tag_included: tag {show(tag)} belongs to rewards.{owner[tag]} already. A tag "
                    "has one domain.",
                    (f"rewards.{domain}.tag_included", f"rewards.{owner[tag]}.tag_included"),
                )
            owner.setdefault(tag, domain)


def _data_problems(config: RLVRConfig) -> Iterator[Problem]:
    for key, name in _templates(config).items():
        if (wrong := template_name_problem(name, key)) is not None:
            yield Problem(f"{wrong}.", (key,))
    for at, data in config.data_args.items():
        if data.prompt is not None and data.messages is not None:
            yield Problem(
                f"{at}.prompt: {show(data.prompt)} and {at}.messages: {show(data.messages)} exclude each other: a row "
                "is a bare prompt or a conversation. Remove one.",
                (f"{at}.prompt", f"{at}.messages"),
            )
    yield from data_args_problems(config.data_args)


def _validation_problems(config: RLVRConfig) -> Iterator[Problem]:
    for validated in config.validated:
        at, keys, response = f"{validated.at}.generating_args", validated.generating_args, config.val_lengths[1]
        limit = keys.max_new_tokens
        if keys.min_new_tokens > min(limit or response, response):
            yield Problem(
                f"{at}.min_new_tokens: {keys.min_new_tokens} is more than the longest response, "
                f"{min(limit or response, response)} tokens. Lower it.",
                (f"{at}.min_new_tokens", f"{at}.max_new_tokens", *LENGTH_KEYS),
            )
        if limit is not None and limit > response:
            yield Problem(
                f"{at}.max_new_tokens: {limit} is more than the {response} tokens that "
                "val_sequence_length and val_prompt_length (or sequence_length and prompt_length) leave for it.",
                (f"{at}.max_new_tokens", *LENGTH_KEYS, "val_sequence_length"),
            )
