"""Keys of other systems by the names of here: what is said of an unknown key in a YAML.

verl's and Trinity's come from the tables that convert them. Those of TRL's configs are below, and names that these
tables divide over several keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from roll.importers.trinity.tables import TRINITY_RL
from roll.importers.verl.tables import VERL_RL

_TRAIN, _SAMPLE = "actor_train.training_args", "actor_infer.generating_args"
_ENGINE = "actor_infer.strategy_args.strategy_config"
_GROUP, _ROWS = ("num_return_sequences_in_group", "train_env_manager.group_size"), "actor_train.data_args.file_name"

NAMES: Mapping[str, tuple[str, ...]] = {
    # TRL
    "adam_eps": (f"{_TRAIN}.adam_epsilon",),
    "beta": ("kl_loss_coef",),
    "chat_template": ("global_template",),
    "dataset": (_ROWS,),
    "dataset_config": ("actor_train.data_args.subset",),
    "dataset_name": (_ROWS,),
    "dataset_train_split": ("actor_train.data_args.split",),
    "delta": ("dual_clip_ratio_c",),
    "epsilon": ("pg_clip",),
    "epsilon_high": ("pg_clip_high",),
    "eval_dataset": ("validation.data_args.file_name",),
    "eval_on_start": ("val_before_train",),
    "gradient_checkpointing": ("actor_train.model_args.recompute_granularity",),
    "hub_model_id": ("checkpoint_config.hub_model_id",),
    "importance_sampling_level": ("importance_sampling",),
    "lora_r": ("actor_train.model_args.lora_rank",),
    "lora_target_modules": ("actor_train.model_args.lora_target",),
    "loss_type": ("loss_agg_mode",),
    "lr": (f"{_TRAIN}.learning_rate",),
    "lr_scheduler": (f"{_TRAIN}.lr_scheduler_type",),
    "mask_truncated_completions": ("max_len_mask",),
    "max_completion_length": ("response_length",),
    "max_length": ("sequence_length",),
    "max_new_tokens": ("response_length",),
    "max_prompt_length": ("prompt_length",),
    "max_seq_length": ("sequence_length",),
    "max_tokens": ("response_length",),
    "mini_batch_size": (f"{_TRAIN}.gradient_accumulation_steps",),
    "model": ("pretrain",),
    "model_name": ("pretrain",),
    "model_name_or_path": ("pretrain",),
    "num_epochs": ("num_train_epochs",),
    "num_generations": _GROUP,
    "num_iterations": ("ppo_epochs",),
    "num_ppo_epochs": ("ppo_epochs",),
    "packing": ("actor_train.use_sequence_packing",),
    "ref_model": ("reference.model_args.model_name_or_path",),
    "report_to": ("track_with",),
    "reward_funcs": ("rewards.<domain>.reward",),
    "run_name": ("exp_name",),
    "save_total_limit": ("max_ckpt_to_keep",),
    "scale_rewards": ("norm_std_type",),
    "temperature": (f"{_SAMPLE}.temperature",),
    "top_k": (f"{_SAMPLE}.top_k",),
    "top_p": (f"{_SAMPLE}.top_p",),
    "train_dataset": (_ROWS,),
    "use_peft": ("actor_train.model_args.lora_target",),
    "use_vllm": ("actor_infer.strategy_args.strategy_name",),
    "vllm_gpu_memory_utilization": (f"{_ENGINE}.gpu_memory_utilization",),
    "vllm_tensor_parallel_size": (f"{_ENGINE}.tensor_parallel_size",),
    "vllm_importance_sampling_correction": ("train_infer_correction",),
    "vllm_mode": ("actor_infer.device_mapping",),
    # verl and Trinity: keys that theirs become together with others, or that several of theirs are called
    "algorithm_type": ("algorithm",),
    "batch_size": ("rollout_batch_size",),
    "clip_ratio": ("pg_clip",),
    "clip_ratio_high": ("pg_clip_high",),
    "clip_ratio_low": ("pg_clip_low",),
    "custom_reward_function.path": ("rewards.<domain>.reward",),
    "engine_num": ("actor_infer.device_mapping",),
    "experiment_name": ("exp_name",),
    "gen_batch_size": ("rollout_batch_size",),
    "gpu_per_node": ("num_gpus_per_node",),
    "max_response_length": ("response_length",),
    "model_path": ("pretrain",),
    "n": _GROUP,
    "n_gpus_per_node": ("num_gpus_per_node",),
    "nnodes": ("num_nodes",),
    "node_num": ("num_nodes",),
    "ppo_micro_batch_size_per_gpu": (f"{_TRAIN}.per_device_train_batch_size",),
    "ppo_mini_batch_size": (f"{_TRAIN}.gradient_accumulation_steps",),
    "repeat_times": _GROUP,
    "reward_fn": ("rewards.<domain>.reward",),
    "rollout_n": _GROUP,
    "save_freq": ("save_steps",),
    "save_interval": ("save_steps",),
    "tensor_model_parallel_size": (f"{_ENGINE}.tensor_parallel_size",),
    "tensor_parallel_size": (f"{_ENGINE}.tensor_parallel_size",),
    "eval_interval": ("eval_steps",),
    "total_epochs": ("num_train_epochs",),
    "total_training_steps": ("max_steps",),
    "train_batch_size": ("rollout_batch_size",),
}


def foreign_names(path: str, value: object, has: Callable[[str], bool]) -> dict[str, str]:
    """Return the keys of here for an unknown key and for what is below it, if other systems have them. `has`: whether a
    key can be in this YAML.

    Example: {"data.train_batch_size": "rollout_batch_size"} for data: {train_batch_size: 32}.
    """
    found = {name: _ours(name, has) for name in _leaves(path, value)}
    same = {name: last for name in found if name != path and has(last := name.rpartition(".")[2])}
    return {name: ours for name, said in found.items() if (ours := said or same.get(name)) is not None}


def _leaves(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path


def _ours(path: str, has: Callable[[str], bool]) -> str | None:
    section, _, name = path.rpartition(".")
    rows = [row for table in (VERL_RL, TRINITY_RL) if section and (row := table.row(path)) is not None]
    names = [
        *(target for row in rows for target in row.targets),
        *NAMES.get(path, NAMES.get(name, _alone().get(name, ()))),
    ]
    # The same key of another role.
    beside = [f"{section}.{'.'.join(each.split('.')[-n:])}" for each in names if section for n in (1, 2)]
    return next(filter(has, [*beside, *names]), None)


@cache
def _alone() -> dict[str, tuple[str, ...]]:
    """Names that mean one key, wherever verl's and Trinity's tables have them."""
    targets: dict[str, set[Any]] = {}
    for row in (*VERL_RL.rows, *TRINITY_RL.rows):
        targets.setdefault(row.key.rpartition(".")[2], set()).add(row.targets)
    return {name: found.pop() for name, found in targets.items() if len(found) == 1}
