"""Foreign keys and values: one table for everything that users of other configurations write and this one names
otherwise.

`RENAMED` keys mean the same as one of ours, in the same section or in one below it. `DROPPED` keys stood in ROLL's
YAMLs and did nothing, or do nothing here. A path with `*` holds for every role.
"""

from collections.abc import Callable, Iterator, Mapping
from math import floor
from typing import Any, cast

from roll.configs.base import Settings, join
from roll.configs.load.inert_keys import COMMUNICATORS_STAY, known_keys, path_text, sections
from roll.configs.problems import Problem
from roll.configs.sections.cluster import StrategyArgs, WorkerConfig
from roll.configs.strategies.table import OTHER_NAMES, spec_of
from roll.configs.tables.roles import LLM_JUDGE, REWARD_MODEL
from roll.utils.text import show

# Keys of Trinity and verl for rollouts that run ahead which no key of ours renames: what is to be written instead, with
# the numbers of the YAML. Those that a key renames are in `aliases`.

_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "explorer": ("over_rollout", "dynamic_timeout", "max_retry_times", "runner_state_report_interval"),
    "synchronizer": ("sync_interval", "sync_offset", "sync_style"),
    "async_training": (
        "staleness_threshold",
        "trigger_parameter_sync_step",
        "require_batches",
        "partial_rollout",
        "use_rollout_log_probs",
    ),
}
"""Sections that they stand in there; here they are taken at the top level."""

_INERT: Mapping[str, tuple[Any, ...]] = {
    "sync_style": ("fixed",),
    "partial_rollout": (True,),
    "over_rollout": (),
    "dynamic_timeout": (),
    "require_batches": (),
    "staleness_threshold": (0,),
    "max_retry_times": (0,),
}
"""Values that ask for what is there anyway."""

_SWITCHES: Mapping[str, str] = {"over_rollout": "ratio", "dynamic_timeout": "enable"}
"""Key that turns a section on: without it the rest of the section has no effect."""

Tree = Mapping[str, Any]


def _over_rollout(value: Any, tree: Tree) -> str:
    ratio, num_prompts = (
        _number(value.get("ratio") if isinstance(value, dict) else None),
        tree.get("rollout_batch_size"),
    )
    started = _number(num_prompts)
    if ratio is None or not 0 < ratio < 1:
        return "unfinished_groups: drop with an async_generation_ratio, and unfinished_grace_s for wait_after_min"
    trained = "" if started is None else f", rollout_batch_size: {floor(round(started * (1 - ratio), 6))}"
    grace = _number(value.get("wait_after_min"))
    waits = "" if grace is None else f", unfinished_grace_s: {grace:g}"
    return f"unfinished_groups: drop, async_generation_ratio: {ratio / (1 - ratio):.4g}{trained}{waits}"


def _dynamic_timeout(value: Any, tree: Tree) -> str:
    return "rewards.<domain>.dynamic_timeout, with the same ratio"


def _retries(value: Any, tree: Tree) -> str:
    return f"rewards.<domain>.reward_retries: {show(value)} or train_env_manager.env_retries: {show(value)}"


def _sync_style(value: Any, tree: Tree) -> str:
    return (
        "sync_style: fixed: weights go to the engines after every actor_train.model_update_frequency steps (1: each), "
        "and running responses continue with them"
    )


def _staleness_threshold(value: Any, tree: Tree) -> str:
    share, steps = _number(value), _number(_interval(tree))
    if share is None or steps is None:
        return "async_generation_ratio, and max_staleness for the age of a token"
    return (
        f"async_generation_ratio: {share * steps:g} (the share, {share:g}, of the {steps:g} steps between two "
        "publishes), and max_staleness for the age of a token"
    )


def _require_batches(value: Any, tree: Tree) -> str:
    return "rollout_batch_size: the prompts of a step, require_batches x ppo_mini_batch_size"


def _partial_rollout(value: Any, tree: Tree) -> str:
    return "nothing: running responses always continue with new weights, and every token records its version"


_INSTEAD: Mapping[str, Callable[[Any, Tree], str]] = {
    "over_rollout": _over_rollout,
    "dynamic_timeout": _dynamic_timeout,
    "max_retry_times": _retries,
    "sync_style": _sync_style,
    "staleness_threshold": _staleness_threshold,
    "require_batches": _require_batches,
    "partial_rollout": _partial_rollout,
}


def take_ahead_names(cls: type[Settings], tree: dict[str, Any]) -> Iterator[Problem]:
    """Brings keys of their sections to the top level, and takes those out that no key of ours renames."""
    if "RolloutConfig" not in (base.__name__ for base in cls.__mro__):  # the class itself needs this module
        return
    at: dict[str, str] = {}
    for section, names in _SECTIONS.items():
        below = tree.get(section)
        if not isinstance(below, dict):
            continue
        for name in [name for name in names if name in below and name not in tree]:
            tree[name], at[name] = below.pop(name), f"{section}.{name}"
        if not below:
            del tree[section]
    original = dict(tree)
    for name, instead in _INSTEAD.items():
        if name in tree and not _is_inert(name, value := tree.pop(name)):
            key = at.get(name, name)
            yield Problem(f"{key}: {show(value)} has no key of its own here. Write {instead(value, original)}.", (key,))


def _is_inert(name: str, value: Any) -> bool:
    is_off = name in _SWITCHES and isinstance(value, dict) and not value.get(_SWITCHES[name])
    return value is None or is_off or value in _INERT[name]


def _interval(tree: Tree) -> Any:
    trainer = tree.get("actor_train")
    ours = trainer.get("model_update_frequency", 1) if isinstance(trainer, dict) else 1
    return tree.get("trigger_parameter_sync_step", tree.get("sync_interval", ours))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


CLASS_DECIDES = "the role decides which class runs it"

AROUND = "../"
"""Prefix of a key of the section around."""

RENAMED: Mapping[tuple[str, str], str] = {
    ("DataArgs", "path"): "file_name",
    ("DataArgs", "prompt_key"): "prompt",
    ("DataArgs", "subset_name"): "subset",
    ("ModelArgs", "flash_attn"): "attn_implementation",
    ("ModelArgs", "lora_adapter_path"): "adapter_name_or_path",
    ("ModelArgs", "model_name"): "model_name_or_path",
    ("ModelArgs", "target_modules"): "lora_target",
    ("ModelArgs", "tokenizer"): "tokenizer_path",
    ("ModelArgs", "tokenizer_name_or_path"): "tokenizer_path",
    ("ModelArgs", "torch_dtype"): "dtype",
    ("ModelArgs", "ulysses_sequence_parallel_size"): "ulysses_size",
    ("ModelArgs", "use_remove_padding"): f"{AROUND}use_sequence_packing",
    ("ModelArgs", "use_torch_compile"): f"{AROUND}use_torch_compile",
    ("WorkerConfig", "ulysses_sequence_parallel_size"): "model_args.ulysses_size",
    ("WorkerConfig", "use_remove_padding"): "use_sequence_packing",
    ("GeneratingArgs", "min_tokens"): "min_new_tokens",
    ("GeneratingArgs", "stop"): "stop_strings",
    ("GeneratingArgs", "n"): "num_return_sequences",
    ("RunConfig", "external_libs"): "external_lib",
    ("RunConfig", "total_epochs"): "num_train_epochs",
    ("RunConfig", "total_steps"): "max_steps",
    ("RunConfig", "total_training_steps"): "max_steps",
    ("RunConfig", "eval_on_startup"): "val_before_train",
    ("RLVRConfig", "positive_loss_coef"): "postive_loss_coef",
    ("RewardConfig", "max_retry_times"): "reward_retries",
    ("EnvManagerConfig", "max_retry_times"): "env_retries",
    ("EnvManagerConfig", "env_groups"): "num_env_groups",
    ("EnvManagerConfig", "n_groups"): "num_groups_partition",
    ("EnvConfig", "max_actions_per_traj"): "max_steps",
    ("EnvConfig", "max_steps_per_traj"): "max_steps",
    ("RLVRConfig", "use_additional_prompts"): "is_use_additional_prompts",
    ("RolloutConfig", "sync_interval"): "actor_train.model_update_frequency",
    ("RolloutConfig", "sync_offset"): "async_generation_ratio",
    ("RolloutConfig", "trigger_parameter_sync_step"): "actor_train.model_update_frequency",
    ("RolloutConfig", "wait_after_min"): "unfinished_grace_s",
    ("AlgorithmConfig", "student_infer"): "actor_infer",
    ("AlgorithmConfig", "student_train"): "actor_train",
    ("AlgorithmConfig", "model_update_frequency"): "actor_train.model_update_frequency",
    ("AlgorithmConfig", "use_rollout_log_probs"): "force_disable_old_logprobs_recompute",
}
DROPPED: Mapping[tuple[str, str], str] = {
    ("DataArgs", "dataset_dir"): "file_name holds the whole path",
    ("DataArgs", "interleave_probs"): "domain_interleave_probs sets the shares",
    ("DataArgs", "max_samples"): "all rows are read",
    ("DataArgs", "overwrite_cache"): "nothing is cached",
    ("RewardConfig", "reward_system_config"): "ROLL does not read it either",
    ("AlgorithmConfig", "reward_system_config"): "ROLL does not read it either",
    ("EnvConfig", "user_prompt_format"): "agent_template says in which form to respond",
    ("EnvConfig", "reward_template"): "the policy is not shown its rewards",
    ("EnvConfig", "max_tokens"): "{max_response_length} in agent_template says how long a response may be",
    ("AgenticConfig", "action_sep"): "a response is one action, which action_pattern finds",
    ("AlgorithmConfig", "reward_scale"): "ROLL does not read it either; see norm_std_type",
    ("AlgorithmConfig", "reward_shift"): "ROLL does not read it either; see norm_mean_type",
    ("AlgorithmConfig", "reward_norm"): "ROLL does not read it either; see norm_mean_type and norm_std_type",
    ("AlgorithmConfig", "offload_nccl"): COMMUNICATORS_STAY,
    ("AlgorithmConfig", "model_name"): "pretrain names the model",
    ("RunConfig", "track_name"): "track_with names the trackers",
    ("DPOConfig", "train_batch_size"): "a step is one update, of per_device_train_batch_size x "
    "gradient_accumulation_steps x data-parallel ranks pairs, as in ROLL's newer versions",
    ("DPOConfig", "val_batch_size"): "infer_batch_size is the batch of a validation",
    ("RLVRConfig", "default_history_length"): "only agentic runs have a history",
    ("AgenticConfig", "default_history_length"): "history_length of an entry of custom_envs sets it",
    ("AgenticConfig", "positive_loss_coef"): "ROLL does not read it either",
    ("AgenticConfig", "postive_loss_coef"): "ROLL does not read it either",
    **{
        ("AgenticConfig", key): "it is a variable of ROLL's fragments, to which nothing in this YAML refers"
        for key in (
            *("max_tokens_per_step", "max_actions_per_traj", "env_manager_cls", "action_pattern"),
            *("think_action_pattern", "user_prompt_no_think_format", "user_prompt_think_format"),
            *("added_text_no_think", "added_text_think"),
        )
    },
}

_HOME = "roll.pipeline.rlvr.rewards"
_IFEVAL = f"{_HOME}.ifeval_rule_reward_worker.GeneralRuleRewardWorker"
_GENERAL = f"{_HOME}.general_val_rule_reward_worker.GeneralValRuleRewardWorker"
_BOXED = f"{_HOME}.multiple_choice_boxed_rule_reward_worker.MultipleChoiceBoxedRuleRewardWorker"
_CROSSTHINK = f"{_HOME}.crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker"

ROLL_REWARDS: Mapping[str, str] = {
    f"{_HOME}.math_rule_reward_worker.MathRuleRewardWorker": "math_rule",
    f"{_HOME}.gsm8k_math_reward_worker.GSM8KMathRewardWorker": "math_rule",
    f"{_HOME}.llm_judge_reward_worker.LLMJudgeRewardWorker": LLM_JUDGE,
    f"{_HOME}.code_sandbox_reward_worker.CodeSandboxRewardWorker": "code_sandbox",
    "roll.pipeline.base_worker.RewardWorker": REWARD_MODEL,
    _IFEVAL: "ifeval",
    _GENERAL: "general_rule",
    _BOXED: "multiple_choice",
    _CROSSTHINK: "crossthinkqa",
    f"{_HOME}.detection_reward_worker.DetectionRewardWorker": "detection",
}
"""ROLL's reward classes that have a counterpart here."""

_REPETITION = {"reward": "repetition", "reward_args": {"ngram_size": 3, "max_penalty": -0.5}}

ROLL_REWARD_KEYS: Mapping[str, Mapping[str, Any]] = {
    _BOXED: {"reward_args": {"require_boxed": True}},
    _IFEVAL: {"reward_manager_config": [_REPETITION]},
    _CROSSTHINK: {"reward_manager_config": [_REPETITION]},
}
"""Keys of ours that reproduce further behaviour of ROLL's reward classes; they hold unless the YAML sets them."""

ROLL_WORKERS: Mapping[str, str] = {
    "roll.pipeline.rlvr.actor_worker.ActorWorker": CLASS_DECIDES,
    "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker": CLASS_DECIDES,
    "roll.pipeline.agentic.agentic_actor_worker.ActorWorker": CLASS_DECIDES,
    "roll.pipeline.agentic.agentic_actor_pg_worker.ActorWorker": CLASS_DECIDES,
    "roll.pipeline.base_worker.ActorWorker": CLASS_DECIDES,
    "roll.pipeline.base_worker.CriticWorker": CLASS_DECIDES,
    "roll.pipeline.base_worker.InferWorker": CLASS_DECIDES,
    "roll.pipeline.base_worker.RewardWorker": CLASS_DECIDES,
}
"""ROLL's worker classes whose job a role does here anyway."""


def foreign_keys(settings: type[Settings]) -> frozenset[str]:
    """The keys of these tables that may stand in a section."""
    names = {base.__name__ for base in settings.__mro__}
    return frozenset(key for table in (RENAMED, DROPPED) for name, key in table if name in names)


def spellings(settings: type[Settings]) -> frozenset[str]:
    """All keys that a section may have, those of other systems included."""
    return frozenset(known_keys(settings)) | foreign_keys(settings)


def apply_aliases(cls: type[Settings], tree: dict[str, Any]) -> tuple[list[Problem], list[str]]:
    """Renames and drops foreign keys of a raw tree in place. Returns problems (both spellings given) and warnings."""
    problems: list[Problem] = list(take_ahead_names(cls, tree))
    warnings: list[str] = []
    _name_teachers(cls, tree)
    warnings += [*_of_students(cls, tree), *_domains_of_teachers(tree)]
    around: dict[tuple[Any, ...], dict[str, Any]] = {}
    for settings, node, place in sections(cls, tree):  # as they are named once those around them are done
        path, around[place] = path_text(place), node
        for key in list(node):
            here = join(path, key)
            names = [base.__name__ for base in settings.__mro__]
            target = next((RENAMED[name, key] for name in names if (name, key) in RENAMED), None)
            reason = next((DROPPED[name, key] for name in names if (name, key) in DROPPED), None)
            if target is not None:
                value, home, at = node.pop(key), cast(Any, node), path
                if target.startswith(AROUND):
                    target, home, at = target.removeprefix(AROUND), around[place[:-1]], path_text(place[:-1])
                other = join(at, target)
                *below, name = target.split(".")
                for section in below:
                    home = home.setdefault(section, {}) if isinstance(home, dict) else None
                if isinstance(home, dict) and home.setdefault(name, value) != value:
                    text = f"{here}: {show(value)} contradicts {other}: {show(home[name])}; both mean the same."
                    problems.append(Problem(f"{text} Keep one.", (here, other)))
            elif reason is not None and key not in known_keys(settings):
                node.pop(key)
                warnings.append(f"{here} does nothing here: {reason}.")
        if issubclass(settings, StrategyArgs):
            warnings += _without_dropped(node, path)
            name = node.get("strategy_name")
            if isinstance(name, str) and name in OTHER_NAMES:
                ours = " or ".join(OTHER_NAMES[name].values())
                warnings.append(f"{join(path, 'strategy_name')}: {name} is taken as {ours}, whichever fits the role.")
    return problems, warnings


def _of_students(cls: type[Settings], tree: dict[str, Any]) -> Iterator[str]:
    """ROLL's roles of pure distillation, whose script sets the switch that no key of its YAMLs says."""
    named = next((key for key in STUDENTS if key in tree), None)
    if named and "is_pure_opd" in cls.model_fields and not {"is_pure_opd", "use_opd"} & tree.keys():
        tree["is_pure_opd"] = True
        yield f"{named}: is_pure_opd: true is taken from it, as ROLL's script for such roles sets it."


STUDENTS = ("student_train", "student_infer")


def _name_teachers(cls: type[Settings], tree: dict[str, Any]) -> None:
    """ROLL's `teacher` holds one teacher, or several by name. One that `teachers` names as well stays where it is, and
    is refused there."""
    section, others = tree.get("teacher"), tree.get("teachers") or {}
    if not isinstance(section, dict) or not section or {"teacher", "teachers"} - cls.model_fields.keys():
        return
    if holds_teachers(section) and isinstance(others, dict) and not section.keys() & others.keys():
        tree["teachers"] = {**tree.pop("teacher"), **others}


def holds_teachers(section: object) -> bool:
    """True for a section `teacher` in ROLL's second form: several teachers by name."""
    return (
        isinstance(section, dict)
        and bool(section)
        and all(isinstance(each, dict) for each in section.values())
        and not section.keys() & known_keys(WorkerConfig).keys()
    )


def _domains_of_teachers(tree: dict[str, Any]) -> Iterator[str]:
    """ROLL chooses a teacher by the tag of a row, roll by its domain: tags of a teacher become the domain of which they
    are all the tags. Others stay, and are refused as domains that are not there."""
    rewards, teachers = tree.get("rewards"), tree.get("teachers")
    if not isinstance(rewards, dict) or not isinstance(teachers, dict):
        return
    tags_of = {name: set(_names(each)) for name, each in rewards.items() if isinstance(each, dict)}
    for name, teacher in teachers.items():
        tags = list(_names(teacher)) if isinstance(teacher, dict) else []
        whole = {domain: all_ for domain, all_ in tags_of.items() if all_ - {domain} and all_ <= set(tags)}
        for domain, all_ in whole.items():
            tags = list(dict.fromkeys([*(tag for tag in tags if tag not in all_ or tag in rewards), domain]))
            listed = ", ".join(sorted(all_))
            yield f"teachers.{name}.tag_included: {listed} is taken as the domain {domain}, whose rows have this tag."
        if whole:
            teacher["tag_included"] = tags


def _names(section: Mapping[str, Any]) -> Iterator[str]:
    value = section.get("tag_included")
    yield from (item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _without_dropped(node: dict[str, Any], path: str) -> Iterator[str]:
    """Takes the keys that its engine does not have out of a raw `strategy_args`."""
    config, name = node.get("strategy_config"), node.get("strategy_name")
    if not isinstance(config, dict) or not isinstance(name, str):
        return
    dropped = spec_of(name).retired
    for key in list(config):
        if key in dropped:
            config.pop(key)
            yield f"{join(path, 'strategy_config')}.{key} does nothing here: {dropped[key]}."
