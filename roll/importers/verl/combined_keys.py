"""Settings that several keys of verl yield together: the form of the loss, rewards, rows, trackers; and the table of
all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers import conversions
from roll.importers.conversions import trackers
from roll.importers.rows import ApproximateValue, ChangesRun, CombinedKeys, SourceLookup, data, devices
from roll.importers.verl import batches as counts
from roll.importers.verl.adapters import adapters, head_training
from roll.importers.verl.common import (
    ACTOR,
    CRITIC,
    IS_OLD,
    NO_DUAL_CLIP,
    OF_KWARGS,
    REF,
    ROLLOUT,
    balance,
    floor,
    has_critic,
    overlong_buffer,
    runs_validation,
    terms_beside,
    unread_buffer,
    validates,
)
from roll.importers.verl.correction import CORRECTION_COMBINED_KEYS
from roll.importers.verl.pictures import pictures
from roll.importers.verl.reward_sources import WHOLE, overlong, rewards_by_source
from roll.importers.verl.templates import template_sums
from roll.importers.verl.variables import of_workers
from roll.utils.text import show

DOMAIN = WHOLE
_IN_MAIN = (
    "not given, and rewards of verl before 0.2 are in its own main_ppo.py, for sources that neither rows nor names of "
    "files tell. Give the path of a file with compute_score(data_source, solution_str, ground_truth, extra_info)"
)
_METRIC = "algorithm.filter_groups.metric"


def policy_form(source: SourceLookup) -> CombinedKeys:
    """The form of the policy's loss, and what verl averages in another way than a loss that is a mean over answers."""
    made, terms = policy_loss(source), terms_beside(source)
    at, there = f"{ACTOR}.policy_loss.loss_mode", source(f"{ACTOR}.loss_agg_mode")
    nears = list[str]()
    if terms:
        nears.append(
            f"The {' and '.join(terms)} of the loss: averaged by loss_agg_mode {there} there, and here over answers as "
            "the policy's loss is."
        )
    if source(at) == "gspo" and there != "seq-mean-token-mean":
        nears.append(
            f"Verl from 0.9.1 on averages the policy's loss by loss_agg_mode as well: loss_agg_mode: {there} in the "
            "YAML is that."
        )
    differences, both = {at: " ".join(nears)} if nears else {}, f"{ACTOR}.clip_ratio"
    sides = [source(f"{both}_{side}", source(both)) for side in ("low", "high")]
    if source.is_set(both) and sides != [source(both)] * 2:
        differences[both] = (
            f"clip_ratio_low {show(sides[0])} and clip_ratio_high {show(sides[1])} count, there as here."
        )
    return replace(made, differences=differences) if differences else made


def policy_loss(source: SourceLookup) -> CombinedKeys:
    mode = source(f"{ACTOR}.policy_loss.loss_mode")
    clip = f"{ACTOR}.clip_ratio"
    low, high = (source.amount(f"{clip}_{side}", source(clip)) for side in ("low", "high"))
    if said := data("verl/losses.yaml").get(str(mode)):
        numbers = {"clip": clip, "c": f"{clip}_c"}
        numbers |= {name: f"{ACTOR}.tau_{name}" for name in ("pos", "neg")}
        named = {name: source.amount(key) for name, key in numbers.items() if f"<{name}>" in str(said)}
        return _listed(said, {**named, "low": low, "high": high})
    changed = {}
    if mode not in ("vanilla", "gspo"):
        at = f"{ACTOR}.policy_loss.loss_mode"
        changed[at] = f"there is no loss {mode} here; the clipped ratio stands in (pg_variant: ppo)"
    is_bounded = mode != "gspo" and not (mode == "vanilla" and source(NO_DUAL_CLIP))
    bound_at = source.amount(f"{ACTOR}.clip_ratio_c") if is_bounded else 0  # verl before 0.2 has none
    settings: dict[str, Any] = {"pg_variant": "ppo", "dual_clip_loss": bound_at > 0}
    if mode == "gspo":
        settings["importance_sampling"] = "seq"
    settings |= clip_range(low, high)
    if bound_at > 0:
        settings["dual_clip_ratio_c"] = bound_at
    ratio = "one ratio per answer" if mode == "gspo" else "a ratio per token"
    bound = f", dual clip at {bound_at:g}" if bound_at > 0 else ""
    return CombinedKeys(settings, f"pg_variant: ppo, {ratio} in [1 - {low:g}, 1 + {high:g}]{bound}.", changes=changed)


def _listed(said: Mapping[str, Any], numbers: Mapping[str, float]) -> CombinedKeys:
    """Return a loss of the list, with numbers in the place of their names."""
    settings = {key: numbers.get(str(value).strip("<>"), value) for key, value in said["settings"].items()}
    settings |= clip_range(numbers["low"], numbers["high"]) if said.get("range") else {}
    text = said["text"]
    for name, number in numbers.items():
        text = text.replace(f"<{name}>", f"{number:g}")
    return CombinedKeys(settings, text, said.get("near", ""))


def clip_range(low: float, high: float) -> dict[str, Any]:
    if low == high:
        return {"pg_clip": low}
    return {"use_pg_clip_range": True, "pg_clip_low": low, "pg_clip_high": high}


_OF_TOKENS = ("optimal_token_baseline", "tir_optimal_token_baseline")
_OF_GROUPS = ("grpo", "grpo_vectorized", "rloo", "opo")
_BY_DEVIATION = ("grpo", "grpo_vectorized", "grpo_passk")
_OTHERS_ONLY = ("rloo", "rloo_vectorized")
_WITH_ITSELF = (*_OF_GROUPS, "reinforce_plus_plus_baseline")


def estimator(source: SourceLookup) -> CombinedKeys:
    """The estimator; one that compares answers takes the reward itself in verl where there is one answer alone."""
    name = source("algorithm.adv_estimator")
    if name in (*_OF_GROUPS, *_OF_TOKENS) and source.number(f"{ROLLOUT}.n") == 1:
        text = f"adv_estimator: reinforce: with rollout.n 1, {name} takes the reward itself there."
        near = "The KL in the reward is that from a token on, where verl's is of the whole answer at every token."
        return CombinedKeys({"adv_estimator": "reinforce"}, text, near if _has_kl(source) else "")
    made = conversions.estimator(name)
    value, near = (made.value, made.note) if isinstance(made, ApproximateValue) else (made, "")
    if name == "gdpo" and source("algorithm.use_kl_in_reward"):
        near = "the KL in the reward counts here, where it is no part that verl compares"
    changed = {}
    if kl := compared_kl(source):
        if _divides(source):
            changed["algorithm.adv_estimator"] = kl
        else:
            near = kl
    text = f"adv_estimator: {show(value)};" if near else f"adv_estimator: {show(value)}"
    return CombinedKeys({"adv_estimator": value}, text, near, changes=changed)


_OF_FORKS = ("reinforce", "raft", "opmd", "asymre")
"""Estimators of here that verl has not."""


def of_verl(source: SourceLookup) -> CombinedKeys:
    """The estimator; one that verl has not is of a fork's own, which may mean something else by the name."""
    made, name = estimator(source), source("algorithm.adv_estimator")
    if name not in _OF_FORKS:
        return made
    said = (
        f"verl has no estimator {name}, so this is one of a fork's own. If it is that of docs/algorithms.md, --lossy "
        "accepts it"
    )
    return replace(made, changes={**made.changes, "algorithm.adv_estimator": said})


def compared_kl(source: SourceLookup) -> str:
    """How credit differs where verl takes the KL off the reward of an answer before answers are compared; empty where
    nothing is compared. Here KL comes off after the comparison, token by token.

    Example: of rewards 1 and 0 with KL .2 and 0, rloo at coefficient 1 has .8 and -.8 in verl. Here the first token has
    .8 and -1; the differences 0 and .2 are the KL of the other answer.
    """
    name = source("algorithm.adv_estimator")
    if not _has_kl(source):
        return ""
    if _divides(source):
        return (
            f"{name} compares rewards of which the KL of the whole answer has been taken off in verl, and scales the "
            "result. Here KL comes off afterwards, with kl_coef as its weight in every group, where in verl the weight "
            "depends on the group, and groups of equal rewards learn from the KL alone. Nearest: a KL in the loss, "
            "actor.use_kl_loss=true with algorithm.use_kl_in_reward=false"
        )
    if name not in (*_OTHERS_ONLY, *_WITH_ITSELF):
        return ""
    mean, kept = f"group's mean KL{', weighted by length,' if name == 'opo' else ''}", ""
    if name in _OTHERS_ONLY:
        mean, kept = "mean KL of the other answers", ", a baseline, which leaves the mean of the gradient as it is"
    return (
        "verl takes the KL of the whole answer off its reward before answers are compared, here the KL from a token on "
        f"comes off afterwards: advantages are less by kl_coef x ({mean} - KL before the token){kept}"
    )


def _has_kl(source: SourceLookup) -> bool:
    """Whether a KL in the reward counts: a fixed coefficient of 0 leaves none."""
    return bool(source("algorithm.use_kl_in_reward")) and source("algorithm.kl_ctrl.kl_coef") != 0


def _divides(source: SourceLookup) -> bool:
    """Whether an estimator scales what it has compared by numbers of the group."""
    name = source("algorithm.adv_estimator")
    return name == "gpg" or (name in _BY_DEVIATION and bool(source("algorithm.norm_adv_by_std_in_grpo")))


def norms(source: SourceLookup) -> CombinedKeys:
    """Return the normalisation that verl always applies to advantages."""
    name = source("algorithm.adv_estimator")
    if name in ("gae", "gdpo", "reinforce_plus_plus_baseline"):
        return CombinedKeys({"whiten_advantages": True}, f"whiten_advantages: true: verl whitens {name} over tokens.")
    if name in _BY_DEVIATION and not source("algorithm.norm_adv_by_std_in_grpo"):
        return CombinedKeys(
            {"norm_std_type": "none"}, "norm_std_type: none: advantages are not divided by the deviation."
        )
    return CombinedKeys({}, "as the estimator has it here")


# --- rewards


def rewards(source: SourceLookup) -> CombinedKeys:
    """A function of one's own takes all rows, which verl calls by data_source and ground truth; without one the source
    of a row chooses its reward."""
    at = f"rewards.{DOMAIN}"
    if source("reward_model.enable"):
        return _reward_model(source, at)
    path = source("custom_reward_function.path")
    if path:
        name = source("custom_reward_function.name")
        path = str(path).removeprefix("pkg://").removeprefix("file://")
        args = {"path": path, "name": name, "kwargs": source.section("custom_reward_function.reward_kwargs")}
        args = {key: value for key, value in args.items() if value != {}}
        args |= {"data_source_key": column} if (column := source("data.reward_fn_key")) != "data_source" else {}
        settings: dict[str, Any] = {f"{at}.reward": "verl_function", f"{at}.reward_args": args}
        text, changed = f"{at}.reward: verl_function calls {name} of {path}.", dict[str, str]()
        near = _unlimited(source)
        places = [at]
    else:
        made, near = rewards_by_source(source)
        settings = {f"rewards.{name}.{key}": value for name, keys in made.items() for key, value in keys.items()}
        text = " ".join(f"rewards.{name}.reward: {keys['reward']}." for name, keys in made.items())
        if len(made) > 1:
            sections = ["actor_train", *([] if validates(source) else ["validation"])]
            settings |= {f"{section}.data_args.tag": source("data.reward_fn_key") for section in sections}
        reads_source = any("tag_included" in keys or keys["reward"] == "verl_function" for keys in made.values())
        if any(keys["reward"] == "verl_function" for keys in made.values()):
            near = f"{near} {_unlimited(source)}".rstrip()
        changed, places = _verl_only_values(source, reads_source), [f"rewards.{name}" for name in made]
        if source(IS_OLD) and any(keys["reward"] == "verl_function" for keys in made.values()):
            changed["custom_reward_function.path"] = _IN_MAIN
    if buffer := overlong_buffer(source):
        try:
            part, said = overlong(source, buffer)
        except ChangesRun as reason:
            changed[f"{buffer}.len"] = str(reason)
        else:
            settings |= {f"{place}.reward_manager_config": [part] for place in places}
            text += f" {said}"
    unread = f"{OF_KWARGS}.enable" if source(f"{OF_KWARGS}.enable") else ""
    idle = {unread: why} if unread and (why := unread_buffer(source)) else {}
    return CombinedKeys(settings, text, near, changes=changed, idle=idle)


def _unlimited(source: SourceLookup) -> str:
    """Sentence on the time of a call, which verl's classes but one do not limit."""
    names = [source(key) for key in ("reward_model.reward_manager", "reward_manager.name")]
    return "" if "prime" in names else _UNLIMITED


_UNLIMITED = (
    "An answer whose scoring takes more than timeout_s, 30 s by default, is left out of the training here; there "
    "nothing limits it."
)


def _verl_only_values(look: SourceLookup, reads_source: bool = False) -> dict[str, str]:
    """Return keys that have no effect without a user-defined function, with the reason."""
    reason = "custom_reward_function.path is not given: nothing here takes it"
    below = look.below("custom_reward_function.reward_kwargs")
    found = {f"custom_reward_function.reward_kwargs.{key}": reason for key in below}
    if look("custom_reward_function.name") != "compute_score":
        found["custom_reward_function.name"] = reason
    if look("data.reward_fn_key") != "data_source" and not reads_source:
        found["data.reward_fn_key"] = "math_rule scores all rows, whatever a column says"
    return found


def _reward_model(source: SourceLookup, at: str) -> CombinedKeys:
    path, everything = source("reward_model.model.path"), devices(0, counts.gpus(source))
    if isinstance(path, list):
        if len(path) > 1:
            raise ChangesRun(f"{len(path)} reward models: one scores here, another needs a domain of its own")
        path = path[0] if path else None
    micro = counts.micro_batch(source, "reward_model", ("micro_batch_size",), counts.gpus(source))
    settings: dict[str, Any] = {
        f"{at}.reward": "reward_model",
        f"{at}.strategy_args.strategy_name": "hf_infer",
        f"{at}.device_mapping": everything,
    }
    settings |= {f"{at}.model_args.model_name_or_path": path} if path else {}
    settings |= {f"{at}.infer_batch_size": micro} if micro else {}
    if source("reward_model.max_length"):
        settings[f"{at}.reward_args.max_length"] = source.number("reward_model.max_length")
    if not path:
        raise ChangesRun(f"reward_model.model.path is missing: set {at}.model_args.model_name_or_path")
    changed = _verl_only_values(source)
    if source("custom_reward_function.path"):
        changed["custom_reward_function.path"] = f"the reward model scores; put both into {at}.reward_manager_config"
    text = f"{at}: the reward model {path} on all GPUs, in turn (docs/reward_models.md)."
    near = "" if runs_validation(source) else _MODEL_VALIDATES
    return CombinedKeys(settings, text, near, changes=changed)


_MODEL_VALIDATES = (
    "A validation has the model's scores here; verl's trainers before its reward loop (0.7) score one by the rules of "
    "data_source, and none whose rows have the style model."
)


# --- the rest


_WITH_PROJECTS = ("wandb", "swanlab", "mlflow")
TRACKER_VARIABLES: Mapping[str, str] = data("trackers.yaml")["settings"]
OF_MACHINES: Mapping[str, str] = data("trackers.yaml")["of machines"]
_INSTEAD = {"WANDB_NAME": "trainer.experiment_name counts", "WANDB_PROJECT": "trainer.project_name counts"}


def board(source: SourceLookup) -> CombinedKeys:
    """Trackers, and the project's name in those that have projects."""
    converted = trackers(source("trainer.logger"))
    names, near = (converted.value, converted.note) if not isinstance(converted, list) else (converted, "")
    settings: dict[str, Any] = {"track_with": names}
    project = source("trainer.project_name")
    kwargs = {name: {"project": project} for name in names if name in _WITH_PROJECTS}
    idle = {} if kwargs else {"trainer.project_name": f"{', '.join(names)}: none of these has projects"}
    for variable, setting in TRACKER_VARIABLES.items():
        tracker, _, key = setting.partition(".")
        if tracker not in names or not key:
            idle[f"${variable}"] = _INSTEAD[variable] if not key else f"no tracker is {tracker}"
        elif source.is_set(f"${variable}"):
            value = source(f"${variable}")
            kwargs.setdefault(tracker, {})[key] = str(value).split(",") if key == "tags" else value
    settings |= {"tracker_kwargs": kwargs} if kwargs else {}
    return CombinedKeys(settings, f"track_with: {', '.join(names)}.", near, idle=idle)


def rows_of_data(source: SourceLookup) -> CombinedKeys:
    """Prompts above the limit are left out before the run, or treated as truncation says. Rows of verl have their
    answer in a column of mappings."""
    rule = "drop" if source("data.filter_overlong_prompts") else source("data.truncation")
    sections = ["actor_train", *([] if validates(source) else ["validation"])]
    settings = {f"{section}.data_args.truncation": rule for section in sections}
    settings |= {f"{section}.data_args.messages": source("data.prompt_key") for section in sections}
    settings |= {f"{section}.data_args.ground_truth": "reward_model.ground_truth" for section in sections}
    idle = {"data.truncation": "filter_overlong_prompts: none is left to cut"} if rule == "drop" else {}
    return CombinedKeys(settings, f"data_args.truncation: {rule}.", idle=idle)


def sampling(source: SourceLookup) -> CombinedKeys:
    """do_sample: false is greedy, whatever the temperature."""
    key = "actor_infer.generating_args.temperature"
    if not source(f"{ROLLOUT}.do_sample"):
        return CombinedKeys({key: 0.0}, f"{key}: 0, greedy: do_sample is off.")
    temperature = source.amount(f"{ROLLOUT}.temperature")
    return CombinedKeys({key: temperature}, f"{key}: {temperature:g}.")


def validation_sampling(source: SourceLookup) -> CombinedKeys:
    at = f"{ROLLOUT}.val_kwargs"
    sampled = source(f"{at}.do_sample") or source(f"{ROLLOUT}.mode") == "async"  # whose loops never ask for do_sample
    temperature = source.amount(f"{at}.temperature") if sampled else 0.0
    args = "validation.generating_args"
    answers = source.number(f"{at}.n")
    settings = {f"{args}.temperature": temperature, f"{args}.num_return_sequences": answers}
    if temperature:
        settings |= {f"{args}.top_p": source.amount(f"{at}.top_p"), f"{args}.top_k": source.number(f"{at}.top_k")}
    text = f"{args}: {'greedy' if not temperature else f'temperature {temperature:g}'}, {answers} per prompt."
    names = () if temperature else ("top_p", "top_k", "do_sample" if sampled else "temperature")
    why = "validation is greedy: " + ("val_kwargs.temperature is 0" if sampled else "val_kwargs.do_sample is off")
    idle = {f"{at}.{name}": why for name in names}
    if sampled and not source(f"{at}.do_sample"):
        idle[f"{at}.do_sample"] = "rollout.mode is async: its loops sample at val_kwargs.temperature in any case"
    return CombinedKeys(settings, text, idle=idle)


def _domains(source: SourceLookup) -> list[str]:
    """The domains of rewards that an import writes."""
    is_own = source("custom_reward_function.path") or source("reward_model.enable")
    return [DOMAIN] if is_own else list(rewards_by_source(source)[0])


def group_filter(source: SourceLookup) -> CombinedKeys:
    """Dynamic sampling: groups whose answers are all right or all wrong are replaced."""
    prompts = source.number("data.train_batch_size")
    names = _domains(source)
    more = max(0, source.number("data.gen_batch_size", prompts) - prompts)
    near = "A step starts at most as many groups again as it has, where verl counts max_num_gen_batches."
    settings = {
        **{f"rewards.{name}.query_filter_config.type": "std_filter" for name in names},
        **{f"rewards.{name}.query_filter_config.filter_args": {"std_threshold": 0.0} for name in names},
        "is_use_additional_prompts": True,
        "max_additional_running_prompts": more,
    }
    return CombinedKeys(
        settings,
        f"query_filter_config: groups with equal rewards are dropped; {more} more prompts than the {prompts} of a step "
        "run at once.",
        near,
        differences={_METRIC: f"{_other_metric(source)} {near}".strip()},
    )


def _other_metric(source: SourceLookup) -> str:
    """How filters differ that look at another number there; empty where it is the reward."""
    metric = str(source(_METRIC, "seq_reward"))
    if metric in ("reward", "seq_reward", "seq_final_reward"):
        return ""
    if overlong_buffer(source):
        return (
            f"Filters here look at rewards with the penalty for length, where there {metric} is without it: a group of "
            "equal answers stays in where some of them are too long."
        )
    if metric in ("acc", "score") and not source("custom_reward_function.path"):
        return ""
    return f"Filters here look at rewards, where there they look at {metric}."


_MANAGERS = ("naive", "dapo", "prime", "gdpo", "remote")
"""Classes that call the reward of a row for one answer at a time."""


def reward_manager(source: SourceLookup) -> CombinedKeys:
    """verl's own classes around rewards; one of a project's own computes what nothing here does."""
    lost, settings, nears = dict[str, str](), dict[str, Any](), dict[str, str]()
    for key in ("reward_model.reward_manager", "reward_manager.name"):
        name = source(key)
        if name == "batch":
            nears[key] = "the function gets lists of one answer: right unless it compares the answers of a batch"
        elif name is not None and name not in _MANAGERS:
            lost[key] = (
                f"there is no reward manager {show(name)} here. Give the file of the function that it calls: "
                f"{key}=naive custom_reward_function.path=FILE"
            )
        elif name == "prime" and not source("reward_model.enable"):
            settings = {f"rewards.{domain}.timeout_s": _PRIME_S for domain in _domains(source)}
            nears[key] = _UNSCORED
    text = "rewards run in worker processes of their own"
    text += f"; timeout_s: {_PRIME_S:g} of each domain" if settings else ""
    return CombinedKeys(settings, f"{text}.", changes=lost, differences=nears)


_PRIME_S = 300.0  # verl's time limit of one answer
_UNSCORED = (
    "An answer whose scoring fails, or takes longer, has reward 0 there and is learnt from; here it is left out of the "
    "training, and counted in rollout/failed_fraction."
)


def resume(source: SourceLookup) -> CombinedKeys:
    """verl's word for the start; a path alone is one of its older versions."""
    mode, path = source("trainer.resume_mode"), source("trainer.resume_from_path")
    known = {"auto": True, "disable": False, "resume_path": path, None: path}
    if mode not in known:
        raise ChangesRun(f"trainer.resume_mode: {show(mode)} is not here; auto, disable and resume_path are")
    if (value := known[mode]) is None:
        return CombinedKeys({}, "not given")
    return CombinedKeys({"resume_from_checkpoint": value}, f"resume_from_checkpoint: {value}.")


def checkpoints(source: SourceLookup) -> CombinedKeys:
    """An older word for one checkpoint counts before the number of them."""
    is_last = bool(source("trainer.remove_previous_ckpt_in_save"))
    number = 1 if is_last else source.number("trainer.max_actor_ckpt_to_keep", 0)
    if not number:
        return CombinedKeys({}, "all checkpoints stay")
    return CombinedKeys({"max_ckpt_to_keep": number}, f"max_ckpt_to_keep: {number}.")


def critic_warmup(source: SourceLookup) -> CombinedKeys:
    """Steps without an update of the policy, which a run without a critic has there as well."""
    steps = source.number("trainer.critic_warmup")
    if not has_critic(source):
        return CombinedKeys({"critic_warmup": steps}, f"critic_warmup: {steps}.")
    if steps < 2:
        return CombinedKeys({}, "no critic runs")
    near = f"No critic runs, and nothing is learnt in verl's first {steps - 1} steps; here it is from the first."
    return CombinedKeys({}, "", near)


def without_turns(source: SourceLookup) -> CombinedKeys:
    """Keys of a search engine, in a run that asks none."""
    return CombinedKeys({}, "nothing: no turns are played")


_LEARNERS = ((ACTOR, "actor_train"), (CRITIC, "critic"))
COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    **template_sums("actor_train"),
    "variables": of_workers,
    "episodes": without_turns,
    "placement": counts.placement,
    "actor batches": counts.batches("actor_train"),
    "critic batches": counts.batches("critic"),
    **{f"{role} rise": counts.warmup(role, counts.updates_per_step(role)) for role in ("actor_train", "critic")},
    "estimator": of_verl,
    "policy": policy_form,
    "norms": norms,
    **CORRECTION_COMBINED_KEYS,
    **{f"{role} floor": floor(section, role) for section, role in _LEARNERS},
    **{f"{role} balance": balance(f"{section}.megatron", role) for section, role in _LEARNERS},
    "rewards": rewards,
    "trackers": board,
    "rows": rows_of_data,
    "validation": validation_sampling,
    "pictures": pictures,
    "sampling": sampling,
    "engine": counts.engine_arguments,
    "filter": group_filter,
    "lora": adapters,
    "mtp": head_training,
    "reward manager": reward_manager,
    "resume": resume,
    "checkpoints": checkpoints,
    "critic warmup": critic_warmup,
    "actor scoring": counts.scoring("actor_train", ROLLOUT, ("log_prob_micro_batch_size",)),
    "ref scoring": counts.scoring("reference", REF, ("log_prob_micro_batch_size",)),
    "critic scoring": counts.scoring("critic", CRITIC, ("forward_micro_batch_size", "ppo_micro_batch_size")),
    "actor tokens": counts.token_batches("actor_train", ACTOR, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "train"),
    "actor scoring tokens": counts.token_batches(
        "actor_train", ROLLOUT, "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "infer"
    ),
    "ref tokens": counts.token_batches(
        "reference", REF, "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "infer"
    ),
    "critic tokens": counts.token_batches("critic", CRITIC, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "train"),
    "critic scoring tokens": counts.token_batches(
        "critic", CRITIC, "use_dynamic_bsz", "forward_max_token_len_per_gpu", "infer"
    ),
}
"""Functions that combine keys, by the name that rows give. Those of roles or switches that are off write nothing."""
