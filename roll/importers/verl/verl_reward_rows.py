"""verl's keys of rewards: functions, managers, the sandbox, a model that scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.importers.rows import Row, changes, lacks, needless, summed, to
from roll.importers.verl.common import OWN_CODE
from roll.importers.verl.verl_conditions import OVERLONG

_SCORES = "hf_infer scores, or the processes of the domain: rewards.<domain> (docs/reward_models.md)"
_SANDBOX = "reward: code_sandbox runs code here, or at code_url"
_LIMITS = "code_sandbox has limits of its own (docs/code_sandbox.md)"
_LEARNS = "a reward model that learns beside the policy is not here"
_LEARNT: Mapping[str, tuple[Any, ...]] = {
    "update": ("none",),
    "beta_train": (),
    "ref_path": (),
    "ref_type": (),
    "loss_type": (),
    "tokenizer_path": (),
}
"""Keys of PRIME's, with the values of a model that stays as it is."""
_OF_WORKERS = (
    "strategy", "use_dynamic_bsz", "forward_max_token_len_per_gpu", "ulysses_sequence_parallel_size",
    "launch_reward_fn_async", "num_workers", "enable_resource_pool", "n_gpus_per_node", "nnodes", "use_reward_loop",
    "nccl_timeout", "load_weight", "reward_kwargs", "profile",
)  # fmt: skip
"""How and where rewards are computed, and not what they are."""

REWARD_ROWS: tuple[Row, ...] = (
    summed("reward_model.enable", "rewards", False),
    summed("reward_model.model.path", "rewards", needs="reward model"),
    summed("reward_model.micro_batch_size", "rewards", needs="reward model"),
    summed("reward_model.micro_batch_size_per_gpu", "rewards", needs="reward model"),
    summed("reward_model.max_length", "rewards", needs="reward model"),
    needless("reward_model.model.input_tokenizer", "answers are rendered anew where tokenizers differ"),
    needless("reward_model.rollout.**", _SCORES),
    *(changes(f"reward_model.model.{name}", _LEARNS, *idle) for name, idle in _LEARNT.items()),
    changes("reward_model.model.optim.**", _LEARNS),
    lacks("reward_model.model.trust_remote_code", OWN_CODE, False),
    changes("reward_model.model.override_config**", "the configuration of a reward model is the one beside it", {}),
    to("reward_model.model.external_lib", "external_lib", needs="reward model", idle=(None,)),
    needless("reward_model.model.fsdp_config.**", _SCORES),
    *(
        needless(f"reward_model.model.{name}", _SCORES)
        for name in (
            "use_remove_padding",
            "use_fused_kernels",
            "use_shm",
            "enable_gradient_checkpointing",
            "use_rmpad",
        )
    ),
    needless("reward_model.fsdp_config.**", _SCORES),
    needless("reward_model.megatron.**", _SCORES),
    changes("reward_model.sandbox_fusion.url", _SANDBOX),
    changes("reward_model.sandbox_fusion_url", _SANDBOX),
    *(needless(f"reward_model.sandbox_fusion.{name}", _LIMITS) for name in ("max_concurrent", "memory_limit_mb")),
    changes(
        "reward_model.reward_manager", "rewards run in worker processes of their own", "naive", "dapo", "prime", "batch"
    ),
    *(summed(f"{section}.{name}", "rewards") for section in OVERLONG for name in ("enable", "len", "penalty_factor")),
    *(needless(f"{section}.log", "rollout/reward_overlong_mean is always recorded") for section in OVERLONG),
    needless("reward_model.reward_kwargs.max_resp_len", "response_length counts"),
    changes("reward_model.reward_kwargs.**", "reward_args has the arguments of a reward"),
    changes("reward_manager.source", "rewards run in worker processes of their own", "register"),
    changes("reward_manager.name", "rewards run in worker processes of their own", "naive", "dapo", "prime", "batch"),
    needless("reward_manager.module.**", "reward_manager.source is register"),
    *(
        changes(f"reward_model.{name}", "a loop of one's own is none here: rewards.<domain> (docs/rewards.md)")
        for name in ("reward_loop_source", "reward_loop_module_path", "reward_loop_class_name")
    ),
    *(needless(f"reward_model.{name}", _SCORES) for name in _OF_WORKERS),
    summed("custom_reward_function.path", "rewards"),
    summed("custom_reward_function.name", "rewards", "compute_score"),
    summed("custom_reward_function.reward_kwargs.**", "rewards"),
    needless("custom_reward_function.reward_kwargs", "empty"),
)
