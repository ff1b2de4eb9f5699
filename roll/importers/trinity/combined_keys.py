"""Settings that several keys of Trinity-RFT yield together: the algorithm by name, devices of trainer and engines,
lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roll.importers import conversions as words
from roll.importers.row_files import conditions_of, filled
from roll.importers.rows import ApproximateValue, ChangesRun, CombinedKeys, Condition, NotHere, SourceLookup, data
from roll.importers.trinity.distillation import OPD_CONDITIONS, compares_mixtures, distils, opd
from roll.importers.trinity.modes import MIX_CONDITIONS, MODE_COMBINED_KEYS, REC_CONDITIONS, mix
from roll.importers.trinity.operators import INPUTS, OPERATOR_COMBINED_KEYS
from roll.importers.trinity.rewards import REWARD_COMBINED_KEYS, REWARD_CONDITIONS
from roll.importers.trinity.rows import is_read
from roll.importers.trinity.steps import STEP_COMBINED_KEYS, counts_epochs, over_share
from roll.importers.verl.combined_keys import compared_kl, estimator, policy_loss
from roll.importers.verl.common import ACTOR, CRITIC, MODEL, ROLLOUT
from roll.importers.verl.pictures import refusal, stops
from roll.utils.text import show

_TASKS = "trinity.buffer.explorer_input.taskset"
_SET = "trinity.buffer.explorer_input.eval_tasksets.0"
_EVAL = f"{_SET}.path"
_INPUTS = f"trinity.{INPUTS}"
_TYPE = "trinity.algorithm.algorithm_type"
_BYPASS = ("trinity.algorithm.bypass_old_logprobs", "algorithm.rollout_correction.bypass_mode")
_MOST = f"{_TASKS}.rollout_args.max_tokens"

_TABLES = filled(data("trinity/algorithms.yaml"))
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = _TABLES["algorithms"]
_LOSSES: Mapping[str, str] = _TABLES["losses"]
_ADVANTAGES: Mapping[str, str] = _TABLES["advantages"]
_LACKING: Mapping[str, str] = _TABLES["lacking"]
_WITHOUT_RATIO = ("opmd", "gpg")  # of verl's names
_OF_TEACHERS = ("on_policy_distill", "jsd")
"""Advantages that compare with a teacher, whatever the reward."""
_JSD = (
    "jsd subtracts terms of the divergence there, and its updates raise it; opd_advantage: js_divergence lowers it "
    "(docs/distillation.md)"
)
_DISCOUNTING = ("gae", "reinforce_plus_plus")
"""Estimators, by verl's names, that have a discount there."""
_KL_COUNTS = ("ppo", "reinforceplusplus", "rloo")
"""Algorithms whose advantages Trinity's trainer computes, which is where it reads a KL in the reward."""
_KL_MAYBE = ("asymre", "grpo_verl")
"""Algorithms of which some versions compute advantages of groups in the trainer."""
_KL_FN = "trinity.algorithm.kl_penalty_fn"


def algorithm_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """verl's keys as Trinity fills them: by the algorithm's name, and by the functions named beside it."""
    name = str(values.get(_TYPE, "grpo"))
    defaults: dict[str, Any] = dict(_TABLES["defaults"])
    defaults[f"{CRITIC}.grad_clip"] = values.get(f"{ACTOR}.grad_clip") or 1.0  # one key for both there
    defaults |= _ALGORITHMS.get(name, _ALGORITHMS["grpo"])
    loss, advantage = (str(values.get(f"trinity.algorithm.{name}_fn")) for name in ("policy_loss", "advantage"))
    if loss in _LOSSES:
        defaults[f"{ACTOR}.policy_loss.loss_mode"] = _LOSSES[loss]
    if advantage in _ADVANTAGES:
        defaults["algorithm.adv_estimator"] = _ADVANTAGES[advantage]
    if defaults["algorithm.adv_estimator"] not in _DISCOUNTING:
        defaults["algorithm.gamma"] = None
    if advantage == "rec":
        defaults["algorithm.norm_adv_by_std_in_grpo"] = False
    if "trinity.model.lora_configs.0.name" in values:
        defaults |= {f"{MODEL}.lora_rank": 32, f"{MODEL}.lora_alpha": 32}
    if values.get("trinity.algorithm.advantage_fn_args.std_normalize") is True:
        defaults["algorithm.norm_adv_by_std_in_grpo"] = True
    defaults |= _defaults_of_loss(values, str(defaults.get(f"{ACTOR}.policy_loss.loss_mode")))
    defaults[f"{ROLLOUT}.n"] = _TABLES["groups"].get(name, 2)
    in_loss, in_reward = (values.get(f"trinity.algorithm.{name}_fn") for name in ("kl_loss", "kl_penalty"))
    if in_loss is not None:
        defaults |= {f"{ACTOR}.use_kl_loss": in_loss != "none"}
        defaults |= {f"{ACTOR}.kl_loss_type": in_loss} if in_loss != "none" else {}
    if in_reward not in (None, "none") and name in (*_KL_COUNTS, *_KL_MAYBE):
        defaults |= {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": in_reward}
    for name in ("temperature", "top_p", "top_k"):
        if (value := values.get(f"trinity.model.{name}")) is not None:
            defaults[f"{_SET}.rollout_args.{name}"] = value
    return defaults | _default_lengths(values)


def _default_lengths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shares max_model_len out as Trinity does; without it what is not given stays open."""
    total = _whole(values.get("trinity.model.max_model_len"))
    prompt, response = (_whole(values.get(f"data.max_{kind}_length")) for kind in ("prompt", "response"))
    if total is None:
        return {"data.max_prompt_length": None, "data.max_response_length": None}
    if prompt is None and response is None:
        prompt = total // 2
    return {
        "data.max_prompt_length": None if response is None else total - response,
        "data.max_response_length": None if prompt is None else total - prompt,
    } | ({"data.max_prompt_length": prompt} if response is None else {})


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _defaults_of_loss(values: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return the defaults of policy_loss_fn_args: none if one bound of the clip is set."""
    defaults: dict[str, Any] = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"} if mode == "gspo" else {}
    names = [f"{ACTOR}.clip_ratio{side}" for side in ("_low", "_high", "")]
    if mode in _TABLES["bounds"] and all(values.get(name) is None for name in names):
        defaults |= zip(names, _TABLES["bounds"][mode], strict=False)
    return defaults


def _algorithm(source: SourceLookup) -> CombinedKeys:
    """The words for what `algorithm_defaults` has filled in."""
    name = str(source(_TYPE))
    functions = {key: source(f"trinity.algorithm.{key}") for key in ("policy_loss_fn", "advantage_fn")}
    settings: dict[str, Any] = dict(estimator(source).settings)
    bypass = all(source(key) is not False for key in _BYPASS)
    if bypass and source(f"{ACTOR}.policy_loss.loss_mode") not in _WITHOUT_RATIO:
        settings["force_disable_old_logprobs_recompute"] = True
    near, lost = "", dict[str, str]()
    if name == "raft":
        settings["raft_keep"] = "positive"
        near = "There all answers are learned that their workflow keeps, here those with a reward above 0."
    elif name == "rec" and source("trinity.algorithm.kl_loss_fn") is None:
        near = "Newer versions there add a KL loss of 0.001 where kl_loss_fn is not none; older ones none, as here."
    elif name not in _ALGORITHMS:
        there = _LACKING.get(name, f"there are {', '.join(_ALGORITHMS)}")
        lost[_TYPE] = f"there is no algorithm {name} here, and grpo stands in; {there}"
    if compares_mixtures(source):
        lost["trinity.algorithm.advantage_fn" if functions["advantage_fn"] else _TYPE] = _JSD
    advantages = [*_ADVANTAGES, *(_OF_TEACHERS if distils(source) else ())]
    for key, table in (("policy_loss_fn", _LOSSES), ("advantage_fn", advantages)):
        if functions[key] is not None and functions[key] not in table:
            there = _LACKING.get(str(functions[key]), f"there are {', '.join(table)}")
            lost[f"trinity.algorithm.{key}"] = f"there is no {functions[key]} here; {there}"
    for key, translated in (("kl_loss_fn", words.kl_loss), ("kl_penalty_fn", words.kl)):
        kind = source(f"trinity.algorithm.{key}")
        if kind not in (None, "none"):
            try:
                translated(kind)
            except NotHere as reason:
                lost[f"trinity.algorithm.{key}"] = str(reason)
    idle = dict[str, str]()
    if source("algorithm.use_kl_in_reward") and name in _KL_MAYBE:
        lost.setdefault(
            _KL_FN,
            f"older versions of {name} compare rewards less the KL, and newer ones read none; here it counts token by "
            f"token, as for {', '.join(_KL_COUNTS)}. Nearest: kl_loss_fn",
        )
    elif source("algorithm.use_kl_in_reward") and name == "rloo":
        near = compared_kl(source)
    elif source(_KL_FN) not in (None, "none") and name not in _KL_COUNTS:
        idle[_KL_FN] = f"{name} reads no KL in the reward: its advantages are not computed by the trainer there"
    text = f"{name}: adv_estimator {settings['adv_estimator']}, loss {source(f'{ACTOR}.policy_loss.loss_mode')}, KL in "
    text += f"the loss {'on' if source(f'{ACTOR}.use_kl_loss') else 'off'}."
    if "force_disable_old_logprobs_recompute" in settings:
        text += " Ratios are to the engine's log-probs (force_disable_old_logprobs_recompute)."
    return CombinedKeys(settings, text, near, changes=lost, idle=idle)


def _entropy(source: SourceLookup) -> CombinedKeys:
    kind, key = source("trinity.algorithm.entropy_loss_fn"), f"{ACTOR}.entropy_coeff"
    if kind not in (None, "default", "basic", "mix", "none"):
        raise ChangesRun(f"entropy_loss_fn: {kind} is not here: entropy_loss_coef weighs the entropy")
    if kind == "none" and source.amount(key, 0):
        raise ChangesRun("the coefficient asks for nothing there, and counts here: take entropy_coef out")
    return CombinedKeys({}, "entropy_loss_coef weighs the entropy")


def _of_engine(source: SourceLookup, kind: str) -> int:
    """Return a length limit: the engine's key wins over the model's, and the tasks' key limits a response."""
    length = source.number(f"data.max_{kind}_length")
    length = source.number(f"trinity.explorer.rollout_model.max_{kind}_tokens", length)
    return min(length, source.number(_MOST)) if kind == "response" and source.is_set(_MOST) else length


def _lengths(source: SourceLookup) -> CombinedKeys:
    missing = [kind for kind in ("prompt", "response") if source(f"data.max_{kind}_length") is None]
    if missing:
        keys = [f"model.max_{kind}_tokens" for kind in missing]
        source.unresolved.update(keys)
        raise NotHere(f"the model's own length counts there, which no file here says: give {' and '.join(keys)}")
    prompt, response = (_of_engine(source, kind) for kind in ("prompt", "response"))
    if prompt <= 0 or response <= 0:
        raise ChangesRun(f"model.max_model_len leaves {prompt} tokens for prompts and {response} for answers")
    known = {"prompt": prompt, "response": response}
    stated = {kind for kind in known if source.is_set(f"data.max_{kind}_length")}
    other = {kind for kind in known if known[kind] != source(f"data.max_{kind}_length")}
    settings = {f"{kind}_length": n for kind, n in known.items() if kind in other or kind not in stated}
    near, total = "", _whole(source("trinity.model.max_model_len"))
    if not stated | other:
        near = "Half is the prompt's, as there; calls of its OpenAI API may answer with all that a prompt leaves."
    elif total is not None and prompt + response > total:
        near = f"There both together have at most {total}."
    if source.is_set(_MOST) and source(_EVAL):
        near = f"{near} A validation answers with at most {response} as well.".strip()
    return CombinedKeys(settings, f"prompt_length {prompt} + response_length {response} = {prompt + response}.", near)


def _tasks(source: SourceLookup) -> CombinedKeys:
    """Converts the task set. If a task pipeline has inputs, it writes the set that Trinity trains on; here its inputs
    are read."""
    path, inputs = source(f"{_TASKS}.path"), source(_INPUTS)
    if not (inputs or path):
        raise NotHere("set actor_train.data_args.file_name")
    settings = {"actor_train.data_args.file_name": words.files(inputs or path)}
    lost = {f"{_TASKS}.path": "the task pipeline writes it there; here its inputs are read"} if inputs else {}
    return CombinedKeys(settings, f"actor_train.data_args.file_name: {show(inputs or path)} (docs/data.md).", lost=lost)


_MONITOR = "trinity.monitor.monitor_args"


_PICTURE_COLUMNS = {
    f"{_TASKS}.format.image_key": "actor_train",
    f"{_SET}.format.image_key": "validation",
}


def _pictures(source: SourceLookup) -> CombinedKeys:
    """The column of pictures of the tasks, and of the first set of evaluation."""
    keys = {key: role for key, role in _PICTURE_COLUMNS.items() if source.is_set(key)}
    reasons = [refusal(source(f"{MODEL}.path")), *(why for why, _ in stops(source))]
    if why := next(filter(None, reasons), ""):
        return CombinedKeys({}, "", changes=dict.fromkeys(keys, why))
    settings = {f"{role}.data_args.image_key": source(key) for key, role in keys.items()}
    text = "; ".join(f"{key}: {value}" for key, value in settings.items())
    return CombinedKeys(settings, f"{text or 'no column of pictures'}.")


def folders(source: SourceLookup) -> CombinedKeys:
    root, project, name = (
        source("trinity.checkpoint_root_dir"),
        source("trainer.project_name"),
        source("trainer.experiment_name"),
    )
    if root is None:
        return CombinedKeys({}, "not given")
    path = f"{str(root).rstrip('/')}/{project}/{name}"
    return CombinedKeys({"checkpoint_config.output_dir": path}, f"checkpoint_config.output_dir: {path}.")


def trackers(source: SourceLookup) -> CombinedKeys:
    converted = words.trackers(source("trainer.logger"))
    names, near = (converted.value, converted.note) if isinstance(converted, ApproximateValue) else (converted, "")
    settings: dict[str, Any] = {"track_with": names}
    if "wandb" in names:
        settings["tracker_kwargs.wandb.project"] = source("trainer.project_name")
    idle: dict[str, str] = {}
    for key, value in source.below(_MONITOR).items():
        target = next((known[key] for name in names if key in (known := _TABLES["monitor"].get(name, {}))), None)
        if value is None:
            continue
        if target is None:
            idle[f"{_MONITOR}.{key}"] = f"the monitor {', '.join(names)} of Trinity-RFT does not read it"
        else:
            settings[target] = value
    text = f"track_with: {', '.join(names)}; tracker_kwargs, system_envs."
    return CombinedKeys(settings, text, near, idle=idle)


def resume(source: SourceLookup) -> CombinedKeys:
    """A run that is not to go on gets a name of its own there."""
    mode, path = source("trainer.resume_mode"), source("trainer.resume_from_path")
    if source("trinity.continue_from_checkpoint") is False and source("trinity.mode") != "bench":
        near = "There an older run of this name is left alone and this one is named after the time; here: exp_name."
        return CombinedKeys({"resume_from_checkpoint": False}, "resume_from_checkpoint: false.", near)
    value: Any = path if mode == "resume_path" and path else mode != "disable"
    lost = {} if not path or value == path else {"trainer.resume_from_path": "only resume_mode: resume_path reads it"}
    return CombinedKeys({"resume_from_checkpoint": value}, f"resume_from_checkpoint: {value}.", lost=lost)


def _no_rows(source: SourceLookup) -> CombinedKeys:
    return CombinedKeys({}, "columns are those of taskset.format")


TRINITY_CONDITIONS: Mapping[str, Condition] = {
    **conditions_of("trinity/conditions.yaml"),
    **MIX_CONDITIONS,
    **REC_CONDITIONS,
    **OPD_CONDITIONS,
    "epochs": counts_epochs,
    "unread config": is_read,
    **REWARD_CONDITIONS,
    "own aggregation": lambda source: "",
    "own thinking": lambda source: (
        "model.enable_thinking counts" if source.is_set("trinity.model.enable_thinking") else ""
    ),
    "over rollout": lambda source: "" if over_share(source) else "over_rollout.ratio is 0",
}
TRINITY_COMBINED_KEYS: Mapping[str, Callable[[SourceLookup], CombinedKeys]] = {
    "algorithm": _algorithm,
    "estimator": estimator,
    **STEP_COMBINED_KEYS,
    "lengths": _lengths,
    "entropy": _entropy,
    "tasks": _tasks,
    "trinity pictures": _pictures,
    **MODE_COMBINED_KEYS,
    "mix": mix,
    "opd": opd,
    **OPERATOR_COMBINED_KEYS,
    **REWARD_COMBINED_KEYS,
    "rewards": REWARD_COMBINED_KEYS["trinity rewards"],
    "policy": policy_loss,
    "resume": resume,
    "rows": _no_rows,
    "validation": _no_rows,
    "folders": folders,
    "trackers": trackers,
}
