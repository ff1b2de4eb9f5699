"""What several keys of Trinity-RFT say together: the algorithm by name, devices of trainer and engines, lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roll.importers import verl_counts, words
from roll.importers.arithmetic import devices
from roll.importers.rows import Condition, Look, Near, NotHere, Sum
from roll.importers.trinity_mix import MIX_CONDITIONS, MIX_SUMS
from roll.importers.trinity_modes import MODE_CONDITIONS, MODE_SUMS
from roll.importers.trinity_opd import OPD_CONDITIONS, OPD_SUMS, teacher_gpus
from roll.importers.trinity_operators import INPUTS, OPERATOR_SUMS
from roll.importers.trinity_rec import REC_CONDITIONS
from roll.importers.verl_conditions import ACTOR, ROLLOUT
from roll.importers.verl_counts import batches, gpus
from roll.utils.text import show

_OWN = "trinity."
_ENGINES = f"{_OWN}explorer.rollout_model.engine_num"
_TASKS = f"{_OWN}buffer.explorer_input.taskset"
_EVAL = f"{_OWN}buffer.explorer_input.eval_tasksets.0.path"
_INPUTS = f"{_OWN}{INPUTS}"
_TYPE = f"{_OWN}algorithm.algorithm_type"
SAVES = "trainer.save_freq"
_LENGTHS_OF_RUN = (f"{_OWN}trainer.total_steps", f"{_OWN}buffer.total_steps")
DOMAIN = "trinity"

_LOSSES: Mapping[str, str] = {
    "ppo": "vanilla",
    "ppo_policy_loss": "vanilla",
    "gspo": "gspo",
    "cispo": "cispo",
    "sapo": "sapo",
    "opmd": "opmd",
    "sft": "gpg",  # the policy gradient without a ratio, which is the loss of fine-tuning where advantages are 1
    "rec": "rec",
    "sppo": "sppo",
    "topr": "topr",
    "mix": "vanilla",
    "mix_chord": "vanilla",
}
_WITHOUT_RATIO = ("opmd", "gpg")  # of verl's names
_OWN_BOUNDS: Mapping[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 0.28)}
"""Of losses that have other reaches of the clip than .2 where none is given."""
_GROUPS: Mapping[str, int] = {"ppo": 1, "raft": 1, "dapo": 16, "mix": 8, "mix_chord": 8}
"""Answers per task where repeat_times is not given; 2 in all other algorithms."""
_ADVANTAGES: Mapping[str, str] = {
    "ppo": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforceplusplus": "reinforce_plus_plus",
    "asymre": "asymre",
    "opmd": "opmd",
    "reinforce": "reinforce",
}
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"algorithm.adv_estimator": "gae"},
    "grpo": {"algorithm.adv_estimator": "grpo"},
    "dapo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.use_kl_loss": False},
    "rloo": {"algorithm.adv_estimator": "rloo"},
    "reinforceplusplus": {"algorithm.adv_estimator": "reinforce_plus_plus"},
    "asymre": {
        "algorithm.adv_estimator": "asymre",
        f"{ACTOR}.policy_loss.loss_mode": "opmd",
        f"{ACTOR}.use_kl_loss": False,
    },
    "opmd": {"algorithm.adv_estimator": "opmd", f"{ACTOR}.policy_loss.loss_mode": "opmd"},
    "raft": {
        "algorithm.adv_estimator": "raft",
        f"{ACTOR}.policy_loss.loss_mode": "gpg",
        f"{ACTOR}.use_kl_loss": False,
    },
    "rec": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ACTOR}.policy_loss.loss_mode": "rec",
        f"{ACTOR}.use_kl_loss": False,
    },
    "sppo": {
        "algorithm.adv_estimator": "opmd",
        f"{ACTOR}.policy_loss.loss_mode": "sppo",
        f"{ACTOR}.use_kl_loss": False,
    },
    "topr": {"algorithm.adv_estimator": "reinforce", f"{ACTOR}.policy_loss.loss_mode": "topr"},
    "gspo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}.policy_loss.loss_mode": "gspo"},
    "sapo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}.policy_loss.loss_mode": "sapo"},
    "cispo": {"algorithm.adv_estimator": "grpo", f"{ACTOR}.policy_loss.loss_mode": "cispo"},
    "on_policy_distill": {"algorithm.adv_estimator": "reinforce", f"{ACTOR}.use_kl_loss": False},
    "mix": {"algorithm.adv_estimator": "grpo"},
    "mix_chord": {"algorithm.adv_estimator": "grpo"},
}


def algorithm_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """verl's keys as Trinity fills them: by the algorithm's name, and by the functions named beside it."""
    found: dict[str, Any] = {
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": "k2",
        f"{ACTOR}.strategy": "fsdp2",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.gpu_memory_utilization": 0.9,
        "trainer.logger": "tensorboard",
        "trainer.total_epochs": 1,
        "trainer.test_freq": 100,
        "trainer.project_name": "Trinity-RFT",
        "trainer.experiment_name": "rft",
        "data.train_batch_size": 1,
        "data.prompt_key": None,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    }
    found |= _ALGORITHMS.get(str(given.get(_TYPE, "grpo")), _ALGORITHMS["grpo"])
    loss, advantage = (str(given.get(f"{_OWN}algorithm.{name}_fn")) for name in ("policy_loss", "advantage"))
    if loss in _LOSSES:
        found[f"{ACTOR}.policy_loss.loss_mode"] = _LOSSES[loss]
    if advantage in _ADVANTAGES:
        found["algorithm.adv_estimator"] = _ADVANTAGES[advantage]
    if given.get(f"{_OWN}algorithm.advantage_fn_args.std_normalize") is True:
        found["algorithm.norm_adv_by_std_in_grpo"] = True
    found |= _defaults_of_loss(given, str(found.get(f"{ACTOR}.policy_loss.loss_mode")))
    found[f"{ROLLOUT}.n"] = _GROUPS.get(str(given.get(_TYPE, "grpo")), 2)
    in_loss, in_reward = (given.get(f"{_OWN}algorithm.{name}_fn") for name in ("kl_loss", "kl_penalty"))
    if in_loss is not None:
        found |= {f"{ACTOR}.use_kl_loss": in_loss != "none"}
        found |= {f"{ACTOR}.kl_loss_type": in_loss} if in_loss != "none" else {}
    if in_reward not in (None, "none"):
        found |= {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": in_reward}
    total, response = given.get(f"{_OWN}model.max_model_len"), given.get("data.max_response_length")
    if isinstance(total, int) and isinstance(response, int):
        found["data.max_prompt_length"] = total - response
    elif isinstance(total, int) and isinstance(prompt := given.get("data.max_prompt_length"), int):
        found["data.max_response_length"] = total - prompt
    return found


def _defaults_of_loss(given: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Those of policy_loss_fn_args: none where one reach of the clip is given."""
    found: dict[str, Any] = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"} if mode == "gspo" else {}
    names = [f"{ACTOR}.clip_ratio{side}" for side in ("_low", "_high", "")]
    if mode in _OWN_BOUNDS and all(given.get(name) is None for name in names):
        found |= zip(names, _OWN_BOUNDS[mode], strict=False)
    return found


def _algorithm(look: Look) -> Sum:
    """The words for what `algorithm_defaults` has filled in."""
    name = str(look(_TYPE))
    given = {key: look(f"{_OWN}algorithm.{key}") for key in ("policy_loss_fn", "advantage_fn")}
    settings: dict[str, Any] = {"adv_estimator": words.estimator(look("algorithm.adv_estimator"))}
    if look(f"{ACTOR}.policy_loss.loss_mode") not in _WITHOUT_RATIO:
        settings["force_disable_old_logprobs_recompute"] = True
    near, lost = "", {}
    if name == "raft":
        settings["raft_keep"] = "positive"
        near = "There all answers are learned that their workflow keeps, here those with a reward above 0."
    elif name not in _ALGORITHMS:
        near = f"There is no algorithm {name} here; grpo stands in."
    for key, table in (("policy_loss_fn", _LOSSES), ("advantage_fn", _ADVANTAGES)):
        if given[key] is not None and given[key] not in table:
            lost[f"{_OWN}algorithm.{key}"] = f"there is no {given[key]} here; there are {', '.join(table)}"
    for key, translated in (("kl_loss_fn", words.kl_loss), ("kl_penalty_fn", words.kl)):
        kind = look(f"{_OWN}algorithm.{key}")
        if kind not in (None, "none"):
            try:
                translated(kind)
            except NotHere as reason:
                lost[f"{_OWN}algorithm.{key}"] = str(reason)
    text = f"{name}: adv_estimator {settings['adv_estimator']}, loss {look(f'{ACTOR}.policy_loss.loss_mode')}, KL in "
    text += f"the loss {'on' if look(f'{ACTOR}.use_kl_loss') else 'off'}."
    if "force_disable_old_logprobs_recompute" in settings:
        text += " Ratios are to the engine's log-probs (force_disable_old_logprobs_recompute)."
    return Sum(settings, text, near, lost)


def _engine_gpus(look: Look) -> int:
    return look.size(_ENGINES) * look.size(f"{ROLLOUT}.tensor_model_parallel_size")


def trainer_gpus(look: Look) -> int:
    """Engines have GPUs of their own, the trainer has the others; where there are no others, all share."""
    total = gpus(look)
    left = total - _engine_gpus(look) - teacher_gpus(look)
    return left if left > 0 else total


def _placement(look: Look) -> Sum:
    made, total, train = verl_counts.placement(look), gpus(look), trainer_gpus(look)
    if train == total:
        near = "No GPU is left for a trainer of its own: trainer and engines share all, in turn."
        return replace(made, near=near)
    settings = {
        key: devices(0, train) if key.endswith(".device_mapping") else value for key, value in made.settings.items()
    }
    last = train + _engine_gpus(look)
    settings["actor_infer.device_mapping"] = devices(train, last - train)
    size = look.size(f"{ROLLOUT}.tensor_model_parallel_size")
    taught = f", the teacher the last {total - last}" if last < total else ""
    text = (
        f"{look.size(_ENGINES)} engines x {size} GPUs = {last - train}: devices {train} to {last - 1}; the "
        f"trainer has the first {train}{taught}."
    )
    return Sum(settings, text)


def _per_update(look: Look) -> int:
    whole = look.number("data.train_batch_size") * look.number(f"{ROLLOUT}.n")
    return min(whole, look.number(f"{_OWN}buffer.train_batch_size", whole) or whole)


def _in_steps(look: Look, updates: int) -> tuple[int, str]:
    """Their steps are updates: a step here makes as many as its samples have train batches."""
    update, samples = _per_update(look), look.number("data.train_batch_size") * look.number(f"{ROLLOUT}.n")
    steps = max(1, -(-updates * update // samples))
    return steps, f"{updates} x {update} of {samples} samples = {steps}."


def _steps(look: Look) -> Sum:
    given = [key for key in _LENGTHS_OF_RUN if look(key) is not None]
    if not given:
        return Sum({}, "epochs count")
    steps, text = _in_steps(look, look.number(given[0]))
    return Sum({"max_steps": steps}, f"max_steps: {text}")


def _saves(look: Look) -> Sum:
    updates = look.number(SAVES)
    if updates <= 0:
        return Sum({"save_steps": -1}, "save_steps: -1.")
    steps, text = _in_steps(look, updates)
    return Sum({"save_steps": steps}, f"save_steps: {text}")


def _ahead(look: Look) -> Sum:
    interval, offset = (look.number(f"{_OWN}synchronizer.sync_{name}") for name in ("interval", "offset"))
    settings = {"actor_train.model_update_frequency": interval, "async_generation_ratio": float(offset)}
    return Sum(settings, f"weights go to the engines every {interval} steps, rollouts run {offset} steps ahead.")


def _lengths(look: Look) -> Sum:
    prompt, response = (look.number(f"data.max_{kind}_length") for kind in ("prompt", "response"))
    if prompt <= 0 or response <= 0:
        raise NotHere(f"model.max_model_len leaves {prompt} tokens for prompts and {response} for answers")
    known = {"prompt": prompt, "response": response}
    settings = {f"{kind}_length": n for kind, n in known.items() if not look.is_given(f"data.max_{kind}_length")}
    return Sum(settings, f"prompt_length {prompt} + response_length {response} = {prompt + response}.")


def _tasks(look: Look) -> Sum:
    """Where a task pipeline has inputs, it writes the task set that is trained on."""
    path, inputs = look(f"{_TASKS}.path"), look(_INPUTS)
    if not (inputs or path):
        raise NotHere("set actor_train.data_args.file_name")
    settings = {"actor_train.data_args.file_name": words.files(inputs or path)}
    lost = {f"{_TASKS}.path": "the task pipeline writes it there; here its inputs are read"} if inputs else {}
    return Sum(settings, f"actor_train.data_args.file_name: {show(inputs or path)} (docs/data.md).", lost=lost)


def _rewards(look: Look) -> Sum:
    at, args = f"rewards.{DOMAIN}", f"{_TASKS}.reward_fn_args"
    settings: dict[str, Any] = {f"{at}.reward": "math_rule"}
    text = f"{at}.reward: math_rule."
    if look(f"{args}.enable_overlong_penalty"):
        most, cache = look.number(f"{args}.max_response_length"), look.number(f"{args}.cache_length")
        part = {"reward": "overlong", "reward_args": {"max_tokens": most, "cache_tokens": cache}}
        weight = look.amount(f"{args}.penalty_factor", 1.0)
        settings[f"{at}.reward_manager_config"] = [{**part, "weight": weight}]
        text += f" overlong: from {most - cache} to {most} tokens down to -{weight:g}."
    name = look("trinity.buffer.explorer_input.default_reward_fn_type") or look(f"{_TASKS}.default_reward_fn_type")
    flow = look("trinity.buffer.explorer_input.default_workflow_type") or look(f"{_TASKS}.default_workflow_type")
    lost = {}
    if flow and not any(word in str(flow) for word in ("math", "on_policy_distill")):
        reason = f"workflow {flow} is an environment here: start_agentic_pipeline.py and docs/adding_an_env.md"
        lost = {
            "trinity.buffer.explorer_input.default_workflow_type": reason,
            f"{_TASKS}.default_workflow_type": reason,
        }
    near = "" if name and "math" in str(name) else f"{name or 'the workflow'} is not here; math_rule stands in."
    return Sum(settings, text, f"{near} Other rewards: docs/rewards.md.".strip(), lost)


def folders(look: Look) -> Sum:
    root, project, name = (
        look("trinity.checkpoint_root_dir"),
        look("trainer.project_name"),
        look("trainer.experiment_name"),
    )
    if root is None:
        return Sum({}, "not given")
    path = f"{str(root).rstrip('/')}/{project}/{name}"
    return Sum({"checkpoint_config.output_dir": path}, f"checkpoint_config.output_dir: {path}.")


def trackers(look: Look) -> Sum:
    found = words.trackers(look("trainer.logger"))
    names, near = (found.value, found.note) if isinstance(found, Near) else (found, "")
    return Sum({"track_with": names}, f"track_with: {', '.join(names)}.", near)


def _no_rows(look: Look) -> Sum:
    return Sum({}, "columns are those of taskset.format")


def _counts_epochs(look: Look) -> str:
    return next((f"{key.removeprefix(_OWN)} counts" for key in _LENGTHS_OF_RUN if look(key) is not None), "")


TRINITY_CONDITIONS: Mapping[str, Condition] = {
    **MODE_CONDITIONS,
    **MIX_CONDITIONS,
    **REC_CONDITIONS,
    **OPD_CONDITIONS,
    "own aggregation": lambda look: "",
    "epochs": _counts_epochs,
    "eval set": lambda look: "" if look(_EVAL) else "there are no eval_tasksets",
    "validation": lambda look: "" if look(_EVAL) else "there are no eval_tasksets: no validation",
}
TRINITY_SUMS: Mapping[str, Callable[[Look], Sum]] = {
    "algorithm": _algorithm,
    "placement": _placement,
    "actor batches": batches("actor_train", trainer_gpus, _per_update),
    "critic batches": batches("critic", trainer_gpus, _per_update),
    "steps": _steps,
    "saves": _saves,
    "ahead": _ahead,
    "lengths": _lengths,
    "tasks": _tasks,
    **MODE_SUMS,
    **MIX_SUMS,
    **OPD_SUMS,
    **OPERATOR_SUMS,
    "rewards": _rewards,
    "trinity rewards": _rewards,
    "rows": _no_rows,
    "validation": _no_rows,
    "folders": folders,
    "trackers": trackers,
}
