"""verl's tables, and which of them a configuration needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from roll.importers import rows as words
from roll.importers.convert import Imported, SourceKeys, convert
from roll.importers.rows import RELEASE, Change, Row, Table, changes, lacks, needless, summed, to
from roll.importers.script import is_output, undated
from roll.importers.verl.combined_keys import COMBINED_KEYS, OF_MACHINES, TRACKER_VARIABLES
from roll.importers.verl.common import (
    ACTOR,
    ALL_ROWS,
    CONDITIONS,
    CRITIC,
    ENDS_SOONER,
    ENGINE_GROUP,
    FILES_ONCE,
    FP32_STATES,
    MEGATRON,
    MODEL,
    OWN_CODE,
    PADDED,
    PROFILES,
    ROLLOUT,
    TILED_HEAD,
    TRAIN,
    device,
    engine_group,
)
from roll.importers.verl.correction import CORRECTION_ROWS
from roll.importers.verl.files import of_program
from roll.importers.verl.overlap import is_overlapping, is_stream, overlapping_table
from roll.importers.verl.pictures import PICTURE_ROWS, picture_notes
from roll.importers.verl.releases import (
    PPO,
    PPO_MEGATRON,
    SFT_ALONE,
    SFT_ENGINE,
    WHOLE_STEPS,
    derived,
    fitting,
    given_notes,
    nearest_name,
    of_checkout,
    release_notes,
)
from roll.importers.verl.reward_sources import GRADES_MATHS
from roll.importers.verl.role_rows import REWARD_ROWS, ROLE_ROWS
from roll.importers.verl.sft_rows import SAVES, SFT
from roll.importers.verl.templates import TEMPLATE_ROWS
from roll.importers.verl.turns import plays, turns_table
from roll.importers.verl.variables import VARIABLE_ROWS, read_by_own_code

# The program that a script starts: its keys say what a run is only where the program is verl's own trainer.

_KNOWN = re.compile(
    r"verl\.trainer\.(main_ppo(_sync)?|fsdp_sft_trainer|sft_trainer(_ray)?)"
    r"|(verl\.)?recipe\.dapo\.(src\.)?main_dapo|(verl\.)?recipe\.entropy\.main_entropy"
    r"|(verl\.experimental|recipe)\.transfer_queue\.main_ppo"
)
"""Trainers whose meaning the importer knows by their keys."""
_OF_ENTROPY = re.compile(r"(verl\.)?recipe\.entropy\.main_entropy")
_OF_RECIPES: tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...] = (
    (_OF_ENTROPY, {GRADES_MATHS: True}),
    (
        re.compile(r"(verl\.)?recipe\.dapo\.(src\.)?main_dapo"),
        {"reward_model.reward_manager": "dapo", "trainer.project_name": "verl-dapo"},
    ),
)
"""Defaults of recipes' own configurations."""
_OF_PRIME = re.compile(r"((verl\.)?recipe\.)?prime\.(src\.)?main_prime")
_ROOTS = ("verl", "recipe")


def program_notes(words: Sequence[str]) -> Iterator[str]:
    """Yield notes about a program other than verl's trainers, as far as its name tells.

    Example: python3 -m recipe.spin.main_spin has pairs of answers, and a loss of its own.
    """
    name = module_of(words)
    if not name or "$" in name or "`" in name or _KNOWN.fullmatch(name) or is_overlapping(name):
        return
    if _OF_PRIME.fullmatch(name):
        yield Change(
            f"{name} trains a reward model beside the policy, adds its rewards of tokens to the advantages, and "
            "samples more prompts than a step trains on (data.oversample_factor, 4 by default). This YAML is the "
            "policy with the rewards of its rows alone."
        )
        return
    yield Change(f"{name} is a program of its own: what it does beside the keys, and its own defaults, are not read.")


def module_of(words: Sequence[str]) -> str:
    """The module that a command starts: the last one behind -m, else the last file of Python; empty for none.

    Example: torchrun -m verl.trainer.sft_trainer, and python3 /x/verl/trainer/main_ppo.py is verl.trainer.main_ppo.
    """
    modules = [word for before, word in pairwise(words) if before in ("-m", "--module")]
    modules += [word[2:] for word in words if re.fullmatch(r"-m[A-Za-z_][\w.]*\.[\w.]+", word)]
    modules = [name for name in modules if name not in ("torch.distributed.run", "torch.distributed.launch")]
    if modules:
        return modules[-1]
    files = [word for word in words if word.endswith(".py") and not word.startswith("-")]
    if not files:
        return ""
    parts = files[-1].removesuffix(".py").split("/")
    return ".".join(parts[max((i for i, part in enumerate(parts) if part in _ROOTS), default=len(parts) - 1) :])


# PRIME, which verl's recipe trains with a configuration of its own (`recipe/prime/config/prime_trainer.yaml`).

_NO_PRIME = "no reward model that learns beside the policy is here"
_CHOSEN = "groups whose share of right answers is within bounds come first there; difficulty_mask leaves others out"
_SAMPLED = "a step samples so many times data.train_batch_size prompts there, and trains on one part of them"
_SHARES = "weights of the two rewards in the advantages: there is one of them here"
_PRIME_DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "rloo",
    f"{ROLLOUT}.n": 4,
    f"{MODEL}.use_remove_padding": True,
    f"{ACTOR}.entropy_coeff": 0.001,
    "reward_model.reward_manager": "prime",
    "trainer.val_before_train": False,
}
_PRIME_ROWS = (
    changes("data.filter_accuracy", _CHOSEN, False),
    *(changes(f"data.accuracy_{name}_bound", _CHOSEN) for name in ("lower", "upper")),
    changes("data.oversample_factor", _SAMPLED, 1),
    *(changes(f"algorithm.reward_{name}_coef", _SHARES) for name in ("gt", "dpo")),
    changes("reward_model.**", _NO_PRIME),
)
_OF_RULES = tuple(f"reward_model.{name}" for name in ("reward_manager", "reward_kwargs", "sandbox", "overlong"))
"""Keys of the section that speak of rules, and not of PRIME's model."""


def _prime_table(table: Table) -> Table:
    rows = (row for row in table.rows if not row.key.startswith("reward_model.") or row.key.startswith(_OF_RULES))
    of_version = table.derived
    return replace(table, rows=(*rows, *_PRIME_ROWS), derived=lambda values: {**of_version(values), **_PRIME_DEFAULTS})


# verl's keys for reinforcement learning (`ppo_trainer`, `ppo_megatron_trainer` and what builds on them).

_DATA = (
    to("data.train_files", f"{TRAIN}.data_args.file_name", via=words.files),
    to("data.val_files", "validation.data_args.file_name", via=words.files),
    to("data.tokenizer", f"{TRAIN}.model_args.tokenizer_path"),
    to(
        "data.prompt_key",
        f"{TRAIN}.data_args.messages",
        default=RELEASE,
        note="verl's prompts are chat messages; the answer to compare with is the column reward_model.ground_truth",
    ),
    summed("data.reward_fn_key", "rewards"),
    to("data.max_prompt_length", "prompt_length", default=RELEASE),
    to("data.max_response_length", "response_length", default=RELEASE),
    summed("data.train_batch_size", "actor batches"),
    summed("data.gen_batch_size", "filter", needs="filter"),
    to("data.val_batch_size", "val_batch_size", idle=(None,)),
    to("data.shuffle", f"{TRAIN}.data_args.shuffle", default=RELEASE),
    to("data.drop_last", f"{TRAIN}.data_args.drop_last"),
    to("data.seed", "seed", idle=(None,)),
    summed("data.truncation", "rows"),
    summed("data.filter_overlong_prompts", "rows"),
    needless("data.filter_overlong_prompts_workers", "prompts are measured as they are needed"),
    needless("data.dataloader_num_workers", "prompts are read as they are needed"),
    lacks("data.validation_shuffle", "all rows are validated, in their order", False),
    replace(changes("data.val_max_samples", ALL_ROWS, -1), needs="validations"),
    changes("data.*_max_samples", ALL_ROWS, -1),
    *PICTURE_ROWS,
    to("data.prompt_id_key", f"{TRAIN}.data_args.id", idle=(None,)),
    needless("data.max_prompt_id_length", "ids of rows are texts, of any length"),
    changes("data.need_tools_kwargs", "tools belong to agentic runs: custom_envs.<tag>.tool_wrapper", False),
    *(
        needless(f"data.return_{what}", "messages, texts and tokens of a row are kept where something reads them")
        for what in ("raw_input_ids", "raw_chat", "full_prompt", "multi_modal_inputs")
    ),
    needless("data.use_shm", FILES_ONCE),
    lacks("data.trust_remote_code", OWN_CODE, False),
    changes("data.custom_cls.*", "rows of one's own become a file of rows: docs/data.md"),
    changes("data.sampler.*", "rows come shuffled, or in their order"),
    changes("data.datagen.*", "rows are there before the run"),
    changes(
        "data.tool_config_path",
        "single_turn_agent there writes the tools of that file into prompts, and none is called: give the rows a "
        f"column of their JSON schemas ({TRAIN}.data_args.tools, docs/data.md)",
    ),
    *TEMPLATE_ROWS,
)

_ALGORITHM = (
    summed("algorithm.adv_estimator", "estimator"),
    to("algorithm.gamma", "gamma", via=words.number, default=RELEASE),
    to("algorithm.lam", "lambd", via=words.number, default=RELEASE, needs="critic"),
    summed("algorithm.norm_adv_by_std_in_grpo", "norms"),
    to(
        "algorithm.gdpo_reward_keys",
        "gdpo_reward_keys",
        via=words.files,
        needs="gdpo",
        note="the function of the reward must return them beside its score; whether it does shows in the first step",
    ),
    to("algorithm.gdpo_reward_weights", "gdpo_reward_weights", idle=(None,), needs="gdpo"),
    to("algorithm.use_kl_in_reward", "add_token_level_kl", default=RELEASE),
    to("algorithm.kl_penalty", "kl_penalty", via=words.kl, default=RELEASE, needs="kl reward"),
    to("algorithm.kl_ctrl.kl_coef", "init_kl_coef", via=words.number, default=RELEASE, needs="kl reward"),
    Row("algorithm.kl_ctrl.type", idle=("fixed",), note="target_kl adapts it", needs="kl reward"),
    to("algorithm.kl_ctrl.target_kl", "target_kl", via=words.number, default=RELEASE, needs="adaptive kl"),
    to("algorithm.kl_ctrl.horizon", "kl_horizon", default=RELEASE, needs="adaptive kl"),
    summed("algorithm.filter_groups.enable", "filter", needs="filter"),
    summed("algorithm.filter_groups.max_num_gen_batches", "filter", needs="filter"),
    summed("algorithm.filter_groups.metric", "filter", needs="filter"),
    changes("algorithm.use_pf_ppo", "rows are not drawn again by weight; difficulty_loss_weight weighs them", False),
    *(needless(f"algorithm.pf_ppo.{name}", "use_pf_ppo says whether") for name in ("reweight_method", "weight_pow")),
    *CORRECTION_ROWS,
    needless("algorithm._target_", "classes of verl's"),
    needless("algorithm.kl_ctrl._target_", "classes of verl's"),
)

_TRAINER = (
    summed("trainer.nnodes", "placement"),
    summed("trainer.n_gpus_per_node", "placement"),
    to(
        "trainer.total_epochs",
        "num_train_epochs",
        default=RELEASE,
        needs="epochs",
        note="the run counts its steps when it knows its rows: epochs x whole batches of them",
    ),
    to("trainer.total_training_steps", "max_steps", idle=(None,), note=ENDS_SOONER, outcome="approximated"),
    summed("trainer.project_name", "trackers"),
    to("trainer.experiment_name", "exp_name", via=words.run_name, default=RELEASE),
    summed("trainer.logger", "trackers"),
    *(
        summed(f"${name}", "trackers", note=f"tracker_kwargs.{where}.{key}.")
        for name, (where, key) in TRACKER_VARIABLES.items()
    ),
    needless("trainer.log_val_generations", "rollout_dump_dir has answers of training and validation"),
    to("trainer.rollout_data_dir", "rollout_dump_dir", idle=(None,)),
    lacks("trainer.validation_data_dir", "rollout_dump_dir has answers of training and validation"),
    to("trainer.save_freq", "save_steps", via=words.positive, default=RELEASE),
    to("trainer.test_freq", "eval_steps", via=words.positive, default=RELEASE),
    to("trainer.val_before_train", "val_before_train", default=RELEASE, needs="validation"),
    changes("trainer.val_only", "there is no run of a validation alone", False),
    summed("trainer.critic_warmup", "critic warmup"),
    to("trainer.default_local_dir", "checkpoint_config.output_dir"),
    lacks("trainer.default_hdfs_dir", "checkpoints go into a directory; copy it from there"),
    summed("trainer.resume_mode", "resume"),
    summed("trainer.resume_from_path", "resume"),
    summed("trainer.max_actor_ckpt_to_keep", "checkpoints", idle=(None,)),
    needless("trainer.max_critic_ckpt_to_keep", "a checkpoint holds all roles"),
    summed("trainer.remove_previous_ckpt_in_save", "checkpoints", idle=(False,)),
    lacks("trainer.del_local_ckpt_after_load", "max_ckpt_to_keep says how many stay", False),
    needless("trainer.balance_batch", "rows are divided over ranks by work"),
    to("trainer.device", "platform", via=device),
    needless("trainer.esi_redundant_time", "interrupt_timeout is the time after SIGTERM"),
    needless("trainer.ray_wait_register_center_timeout", "rpc_timeout is the limit of a call"),
    needless(
        "trainer.use_legacy_worker_impl",
        "it chooses verl's engines or its older workers, whose token-mean is of a micro batch: see loss_agg_mode",
    ),
    needless("trainer.use_v1", "classes of verl's"),
    lacks("trainer.profile_**", PROFILES),
    needless("trainer.npu_profile.**", PROFILES),
    needless("trainer.*_nsight_options.**", PROFILES),
    needless("trainer.val_generations_to_log_to_*", "rollout_dump_dir has answers of training and validation"),
)

_OF_TUNING = ("model", "optim")

_OTHERS = (
    needless("**._target_", "classes of verl's"),
    needless("**.profiler.**", PROFILES),
    needless("global_profiler.**", PROFILES),
    lacks("transfer_queue.**", "rows travel through Ray's object store", False),
    changes(
        "distillation.**",
        "a teacher is a section here: teacher and use_opd for on-policy distillation (docs/distillation.md)",
        False,
    ),
    changes("reward.**", "how rewards are computed is the domain's: rewards.<domain> (docs/rewards.md)", None, {}, 0),
    *(
        needless(f"{name}.**", f"{name} is a section of fine-tuning, which no other trainer reads")
        for name in _OF_TUNING
    ),
    *VARIABLE_ROWS,
    needless("ray_kwargs.**", "a Ray cluster is joined at RAY_ADDRESS, or started"),
    needless("ray_init.**", "a Ray cluster is joined at RAY_ADDRESS, or started"),
    needless("defaults", "verl's defaults are known to the importer; files of one's own beside it are read"),
    needless("defaults.**", "verl's defaults are known to the importer; files of one's own beside it are read"),
    to(
        "af_output_dir", "output_dir", note="checkpoint_config.output_dir wins where trainer.default_local_dir is given"
    ),
    needless("hydra.**", "of Hydra's own"),
)

_MODES = "trainer_mode is sync; async_generation_ratio says how far rollouts run ahead (docs/rollouts.md)"

_NEWEST = (
    needless("**.pad_to_length**", PADDED),
    needless("**.pad_bshd_to_minibatch_max", PADDED),
    needless("**.megatron.thd_format", PADDED),
    needless("**.entropy_from_logits_*", TILED_HEAD),
    needless("**.use_no_sync_for_gradient_accumulation", "gradients are added up over ranks once per update"),
    needless("**.turbo_config.**", "of an engine that actor.strategy does not name"),
    lacks("actor_rollout_ref.actor.use_prefix_grouper", "use_prefix_sharing: on (docs/trainers.md)", False),
    to("actor_rollout_ref.actor.policy_loss.dro_beta", "kimi15_tau", via=words.number, needs="dro"),
    needless(f"{ROLLOUT}.seed", "seed of the run counts"),
    needless(f"{ROLLOUT}.full_determinism", "seed of the run counts"),
    lacks(f"{ROLLOUT}.router_config_path", "engines are chosen by load and session"),
    lacks(f"{ROLLOUT}.moe_load_balance_metrics_interval", "router/ metrics are of the trainer", 0),
    needless(f"{ROLLOUT}.mtp", "model.mtp says what becomes of MTP heads"),
    needless(f"{ROLLOUT}.qat", "actor.qat says whether weights are quantised"),
    changes("data.function_tool_path", "tools belong to agentic runs: custom_envs.<tag>.tool_wrapper"),
    *(
        lacks(f"**.optim.{name}", FP32_STATES, "fp32", "float32")
        for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    ),
    needless("**.optim.use_precision_aware_optimizer", "master weights are fp32"),
    needless("**.optim.use_layer_wise_distributed_optimizer", "states are shared as use_distributed_optimizer says"),
    needless("**.optim.muon_**", "of the optimizer muon, which optim.optimizer does not name"),
    changes("**.megatron.dynamic_context_parallel", "context_parallel_size is the same for all rows", False),
    needless("**.megatron.max_seqlen_per_dp_cp_rank", "dynamic_context_parallel is off"),
    needless("**.megatron.*_fully_reshardable**", "a checkpoint can be read by another number of ranks"),
    lacks("**.megatron.use_megatron_fsdp", "use_distributed_optimizer shares states over ranks", False),
    changes("**.megatron.router_replay.mode", "router_replay.mode of the role", "disabled"),
    changes("**.megatron.router_replay.**", "experts are neither recorded to a file nor read from one"),
    lacks("critic.loss_scale_factor", "the value loss is a mean over the tokens"),
    *(lacks(f"critic.model.{name}", "as the policy has it") for name in ("hf_config_path", "custom_chat_template")),
    *(
        lacks(f"critic.model.{name}", "the critic is trained in full")
        for name in ("exclude_modules", "lora_adapter_path")
    ),
    lacks("critic.model.use_liger", "model_args.use_torch_compile fuses what is beside the matrices", False),
    needless("critic.model.use_fused_kernels", "values never come from whole logits"),
    needless("critic.model.fused_kernel_options.**", "values never come from whole logits"),
    changes("trainer.checkpoint_callback_class", "what follows a checkpoint is checkpoint_config's"),
    changes(
        "trainer.v1.trainer_mode", "async_generation_ratio says how far ahead rollouts are (docs/rollouts.md)", "sync"
    ),
    changes("trainer.v1.sampler.custom_sampler.**", "rows come shuffled, or in their order"),
    needless("trainer.v1.**", _MODES),
    needless("algorithm.filter_groups.max_inflight_gen_batches", "max_additional_running_prompts says how many"),
)
"""Keys that came with verl 0.7 and later."""

_ENGINE_ROWS = (to(ENGINE_GROUP, f"{TRAIN}.strategy_args.strategy_name", via=engine_group),)
"""The choice of verl's files for an engine, which a strategy that is given overrules."""


def _where_it_counts(row: Row) -> Row:
    """The row of a key of a critic or a reward model, which asks for nothing where none runs."""
    if row.needs or row.key == f"{CRITIC}.enable":
        return row
    if row.key.startswith(f"{CRITIC}."):
        return replace(row, needs="critic")
    return replace(row, needs="open reward model") if row.key.startswith("reward_model.model.") else row


ROWS: tuple[Row, ...] = tuple(
    map(
        _where_it_counts,
        (*_DATA, *_ALGORITHM, *ROLE_ROWS, *_ENGINE_ROWS, *REWARD_ROWS, *_TRAINER, *_OTHERS, *_NEWEST),
    )
)
"""A key stands in one row; of two that fit, the first."""


_OF_SFT = ("model.partial_pretrain", "data.prompt_dict_keys", "data.multiturn.enable", "data.max_length", "optim.lr")
CONFIG_NAME = "config-name"
_OF_ENGINE: Mapping[str, str] = {
    "engine.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    "model.use_remove_padding": "use_remove_padding",
    "engine.use_remove_padding": "use_remove_padding",
    "data.messages_key": "data.multiturn.messages_key",
}
"""Keys of newer versions, and what older ones call the same."""
ASCEND = "backend_config"
"""The section in which the guide for Ascend has verl's keys."""
FLAGS: Mapping[str, str] = {
    "nproc-per-node": "trainer.n_gpus_per_node",
    "nnodes": "trainer.nnodes",
    CONFIG_NAME: "actor_rollout_ref.actor.strategy",
}
"""Words of the command that say what a key says as well."""


def is_verl(tree: Mapping[str, Any]) -> bool:
    inner = tree.get(ASCEND)
    if isinstance(inner, Mapping):
        return is_verl(inner)
    model = tree.get("model")
    return "actor_rollout_ref" in tree or (isinstance(model, Mapping) and "partial_pretrain" in model)


def verl_table(original: SourceKeys, script: Path | None = None) -> Table:
    """The table for what the keys train; tools are read from files beside the script."""
    values = {_known_as(key): value for key, value in original.keys}
    keys = values.keys()
    is_sft = (original.command and "sft_trainer" in " ".join(original.command.program)) or any(
        key in keys for key in _OF_SFT
    )
    is_rl = any(key.startswith("actor_rollout_ref.") for key in keys)
    module = module_of(original.command.program) if original.command else ""
    if is_sft and not is_rl:
        return VERL_SFT
    table = overlapping_table(VERL_RL, module, values)
    if own := next((own for of, own in _OF_RECIPES if of.fullmatch(module)), None):
        of_version = table.derived
        table = replace(table, derived=lambda values: {**own, **of_version(values)})
    if _OF_PRIME.fullmatch(module):
        table = _prime_table(table)
    return turns_table(table, values, script) if plays(values) else table


def import_verl(
    original: SourceKeys, notes: Sequence[str], script: Path | None = None, version: str | None = None
) -> Imported:
    """The import by the defaults of a release: the newest that has all given keys, if no `version` says which."""
    table, keys, of_script = verl_table(original, script), verl_keys(original), original.command is not None
    given = {key.removeprefix(f"{ASCEND}."): value for key, value in original.keys}
    added = {word.lstrip("+").partition("=")[0] for word in original.overrides if word.startswith("+")}
    own = {key: value for key, value in given.items() if key not in added}
    name = _configuration(original, table, own)
    notes = [*notes, *verl_notes(original)]
    module = module_of(original.command.program) if original.command else ""
    found = of_program(module, original.command, script) if original.command and script and version is None else None
    if found is not None:
        below = fitting(name, own)[0][0] if found[1].bases else None
        mine, told = of_checkout(name, str(found[0]), found[1].tree, below, table, given)
        return convert(keys, mine, [*notes, *told, *found[1].notes], of_script)
    fits, lacking = fitting(name, own, version)
    tables = [release.over(table, given) for release in fits]
    is_said = version is not None
    said = release_notes(fits, lacking, tables, lambda each: convert(keys, each, (), of_script).tree, is_said)
    return convert(keys, tables[0], [*notes, *said], of_script)


def _configuration(original: SourceKeys, table: Table, given: Mapping[str, Any]) -> str:
    """The name of verl's configuration that the program starts with."""
    module = module_of(original.command.program).rpartition(".")[2] if original.command else ""
    if table.pipeline == VERL_SFT.pipeline:
        if "sft_trainer" in module:
            return SFT_ALONE if "fsdp" in module else SFT_ENGINE
        return nearest_name((SFT_ALONE, SFT_ENGINE), given)
    values = {_known_as(key): value for key, value in verl_keys(original)}
    return PPO_MEGATRON if {**derived(values), **values}.get(f"{ACTOR}.strategy") == MEGATRON else PPO


def verl_keys(original: SourceKeys) -> list[tuple[str, Any]]:
    """The keys with what the words of a launcher and the name of the configuration say beside them."""
    keys = list(original.keys)
    there = {_known_as(key) for key, _ in keys}
    if any("megatron" in base for base in original.bases) and FLAGS[CONFIG_NAME] not in there:
        keys.append((f"--{CONFIG_NAME}", "megatron"))
    for flag, known_as in FLAGS.items():
        value = original.command.flag(flag) if original.command else None
        value = "1" if flag == "nproc-per-node" and _is_single(original) else value
        if value is None or flag == CONFIG_NAME or known_as in there:
            continue
        if value.isdecimal():
            keys.append((f"--{flag}", int(value)))
        elif "$" in value:
            keys.append((known_as, value))
    return keys + [(f"${name}", value) for name, value in _of_trackers(original) if not is_output(value)]


def _of_trackers(original: SourceKeys) -> Iterator[tuple[str, Any]]:
    """Yield the variables of trackers that the script gives its program."""
    variables = original.command.environment if original.command else {}
    yield from ((name, undated(variables[name])) for name in TRACKER_VARIABLES if variables.get(name))


def _unwritten(original: SourceKeys, logger: Any) -> Iterator[str]:
    """Yield a note about variables of trackers that are in the script and no setting of a run."""
    variables = original.command.environment if original.command else {}
    if names := [name for name, tracker in OF_MACHINES.items() if variables.get(name) and tracker in str(logger)]:
        yield f"The script exports {', '.join(names)}, which no YAML should hold: export it where the run starts."


_UNFILTERED = (
    "verl's main_ppo reads algorithm.filter_groups since trainer.use_v1 (0.9); before, only its recipe of DAPO did. "
    "Here groups are filtered. To keep all, give algorithm.filter_groups.enable=false after the file."
)


_OF_V1 = ("trainer.use_v1", "algorithm.filter_groups.max_inflight_gen_batches")


def _filters(original: SourceKeys) -> bool:
    """Whether the program reads filter_groups, as far as its name and newer keys tell."""
    module = module_of(original.command.program) if original.command else ""
    is_v1 = any(key.startswith("trainer.v1.") or key in _OF_V1 for key, _ in original.keys)
    return is_v1 or not module.startswith("verl.trainer.main_ppo")


def _of_generation_batches(values: Mapping[str, Any], reads_filter: bool) -> Iterator[str]:
    """Yield what data.gen_batch_size decides beside the filter of groups: it is the batch of the loader."""
    prompts, generated = values.get("data.train_batch_size"), values.get("data.gen_batch_size")
    if not isinstance(generated, int) or generated == prompts:
        return
    if values.get("algorithm.filter_groups.enable") is not True:
        yield Change(
            f"data.gen_batch_size is {generated}: without the filter of groups, verl trains on all of them, and "
            f"data.train_batch_size counts no more. Give data.train_batch_size={generated} after the file."
        )
    elif not reads_filter:
        yield f"Where main_ppo does not filter, a step trains on all {generated} prompts of data.gen_batch_size."
    elif values.get("trainer.total_training_steps") is None:
        yield (
            f"There an epoch has at most rows / {generated} steps (data.gen_batch_size), since what a step generates "
            f"beyond its prompts is thrown away; here it has rows / {prompts}. trainer.total_training_steps after the "
            "file sets the number of steps."
        )


def _is_single(original: SourceKeys) -> bool:
    """True for fine-tuning under a torchrun that is not told how many processes to start: it starts one."""
    command = original.command
    if command is None or command.flag("nproc-per-node") is not None:
        return False
    is_torchrun = any(Path(word).name == "torchrun" for word in command.program[:3])
    return is_torchrun and "sft_trainer" in " ".join(command.program)


def verl_notes(original: SourceKeys) -> Iterator[str]:
    """Yield notes about words of a command that no key has taken."""
    values = {_known_as(key): value for key, value in original.keys}
    there = values.keys()
    yield from given_notes(values)
    shows = verl_table(original).pipeline == VERL_RL.pipeline
    yield from picture_notes({_known_as(key): value for key, value in verl_keys(original)}, shows)
    yield from program_notes(original.command.program if original.command else ())
    if values.get("algorithm.filter_groups.enable") is True and not _filters(original):
        yield _UNFILTERED
    if not is_stream(module_of(original.command.program) if original.command else "", values):
        yield from _of_generation_batches(values, _filters(original))
    yield from _unwritten(original, values.get("trainer.logger"))
    yield from read_by_own_code(original.command, values)
    for name, value in _of_trackers(original):
        if is_output(value):
            yield f"{name} is taken from a program, and not read: tracker_kwargs.{'.'.join(TRACKER_VARIABLES[name])}."
    if _is_single(original) and "trainer.n_gpus_per_node" not in there:
        yield "torchrun without --nproc-per-node starts one process: 1 GPU."
    for flag, known_as in FLAGS.items():
        value = original.command.flag(flag) if original.command else None
        if flag != CONFIG_NAME and value and known_as not in there and not value.isdecimal() and "$" not in value:
            yield f"--{flag} {value} is unknown, so verl's default is used: give {known_as}=8 after the file."


@lru_cache(maxsize=10000)
def _known_as(key: str) -> str:
    """Name of a key in the table: without the section of Ascend's guide and without a launcher's words."""
    key = FLAGS.get(key.removeprefix("--"), key).removeprefix(f"{ASCEND}.")
    key = f"{ROLLOUT}.{key}" if key.startswith("engine_kwargs.") else key
    return next((older + key[len(newer) :] for newer, older in _RENAMED if _is_below(key, newer)), key)


def _is_below(key: str, section: str) -> bool:
    return key == section or (section.endswith(".") and key.startswith(section))


_RENAMED = (
    ("reward.custom_reward_function.", "custom_reward_function."),
    ("reward.reward_manager.name", "reward_model.reward_manager"),
    ("reward.reward_manager.", "reward_manager."),
    ("reward.reward_model.model_path", "reward_model.model.path"),
    ("reward.reward_model.", "reward_model."),
    ("reward.reward_kwargs.", "reward_model.reward_kwargs."),
    ("reward.sandbox_fusion.", "reward_model.sandbox_fusion."),
    ("sandbox_fusion.", "reward_model.sandbox_fusion."),
    ("reward.num_workers", "reward_model.num_workers"),
    ("critic.fsdp.", "critic.fsdp_config."),
)
"""Keys and sections of newer versions, and what older ones call them."""


VERL_RL = Table(
    "verl",
    "rlvr",
    ROWS,
    COMBINED_KEYS,
    CONDITIONS,
    _known_as,
    derived,
    partly_off=("reward_model",),
)
VERL_SFT = replace(
    SFT,
    rows=tuple(SAVES if row.key == SAVES.key else row for row in SFT.rows),
    canonical=lambda key: _OF_ENGINE.get(key, _known_as(key)),
    derived=lambda values: WHOLE_STEPS,
)
