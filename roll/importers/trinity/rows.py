"""Trinity-RFT's keys: what verl calls them, and those of its own (which rows know with `trinity.` before them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roll.importers import rows as words
from roll.importers.rows import ApproximateValue, AsksNothing, ChangesRun, Row, changes, lacks, needless, summed, to
from roll.importers.trinity.distillation import OPD_ROWS
from roll.importers.trinity.modes import EVAL_ROWS, MIX_ROWS, MODE_ROWS, REC_ROWS
from roll.importers.trinity.old_keys import CONFIG_ROW
from roll.importers.trinity.operators import OPERATOR_ROWS
from roll.importers.trinity.rewards import REWARD_ROWS
from roll.importers.verl.common import ACTOR, CRITIC, MODEL, ROLLOUT, TURNS
from roll.importers.verl.pictures import NO_VIDEOS, ONLY_RLVR

EMBEDDED = "trainer.trainer_config"
_ENGINE, _TASKS, _EVAL = (
    "explorer.rollout_model",
    "buffer.explorer_input.taskset",
    "buffer.explorer_input.eval_tasksets",
)
BUFFER = "buffer.trainer_input.experience_buffer"
_ONE_BUFFER = "in one process samples of a step are handed over in memory and trained on in that step"
_VALIDATION = "validation"

RENAMED: Mapping[str, str] = {
    "project": "trainer.project_name",
    "name": "trainer.experiment_name",
    "algorithm.repeat_times": f"{ROLLOUT}.n",
    "algorithm.entropy_loss_fn_args.entropy_coef": f"{ACTOR}.entropy_coeff",
    "algorithm.optimizer.optimizer_type": f"{ACTOR}.optim.optimizer",
    "algorithm.kl_loss_fn_args.kl_coef": f"{ACTOR}.kl_loss_coef",
    "algorithm.kl_penalty_fn_args.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "algorithm.policy_loss_fn_args.clip_range": f"{ACTOR}.clip_ratio",
    "algorithm.policy_loss_fn_args.clip_range_low": f"{ACTOR}.clip_ratio_low",
    "algorithm.policy_loss_fn_args.clip_range_high": f"{ACTOR}.clip_ratio_high",
    "algorithm.policy_loss_fn_args.clip_ratio_c": f"{ACTOR}.clip_ratio_c",
    "algorithm.policy_loss_fn_args.loss_agg_mode": f"{ACTOR}.loss_agg_mode",
    "algorithm.loss_agg_mode": f"{ACTOR}.loss_agg_mode",
    "algorithm.advantage_fn_args.gamma": "algorithm.gamma",
    "algorithm.advantage_fn_args.lam": "algorithm.lam",
    "model.model_path": f"{MODEL}.path",
    "model.critic_model_path": f"{CRITIC}.model.path",
    "model.lora_configs.0.lora_rank": f"{MODEL}.lora_rank",
    "model.lora_configs.0.lora_alpha": f"{MODEL}.lora_alpha",
    "model.lora_configs.0.target_modules": f"{MODEL}.target_modules",
    "model.lora_configs.0.path": f"{MODEL}.lora_adapter_path",
    "model.max_prompt_tokens": "data.max_prompt_length",
    "model.max_response_tokens": "data.max_response_length",
    "cluster.node_num": "trainer.nnodes",
    "cluster.gpu_per_node": "trainer.n_gpus_per_node",
    "buffer.batch_size": "data.train_batch_size",
    "buffer.total_epochs": "trainer.total_epochs",
    "explorer.eval_interval": "trainer.test_freq",
    "explorer.eval_on_startup": "trainer.val_before_train",
    f"{_ENGINE}.tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
    f"{_ENGINE}.enforce_eager": f"{ROLLOUT}.enforce_eager",
    f"{_ENGINE}.enable_prefix_caching": f"{ROLLOUT}.enable_prefix_caching",
    f"{_ENGINE}.enable_chunked_prefill": f"{ROLLOUT}.enable_chunked_prefill",
    f"{_ENGINE}.gpu_memory_utilization": f"{ROLLOUT}.gpu_memory_utilization",
    f"{_ENGINE}.max_model_len": f"{ROLLOUT}.max_model_len",
    f"{_ENGINE}.dtype": f"{ROLLOUT}.dtype",
    f"{_ENGINE}.ignore_eos": f"{ROLLOUT}.ignore_eos",
    f"{_TASKS}.rollout_args.temperature": f"{ROLLOUT}.temperature",
    f"{_TASKS}.rollout_args.top_p": f"{ROLLOUT}.top_p",
    f"{_TASKS}.rollout_args.top_k": f"{ROLLOUT}.top_k",
    "monitor.monitor_type": "trainer.logger",
    "trainer.save_interval": "trainer.save_freq",
    "trainer.trainer_strategy": f"{ACTOR}.strategy",
    "trainer.grad_clip": f"{ACTOR}.grad_clip",
    "trainer.actor_grad_clip": f"{ACTOR}.grad_clip",
    "trainer.use_dynamic_bsz": f"{ACTOR}.use_dynamic_bsz",
    "trainer.max_token_len_per_gpu": f"{ACTOR}.ppo_max_token_len_per_gpu",
    "trainer.ppo_max_token_len_per_gpu": f"{ACTOR}.ppo_max_token_len_per_gpu",
    "trainer.ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    "trainer.max_checkpoints_to_keep": "trainer.max_actor_ckpt_to_keep",
    "trainer.critic_warmup": "trainer.critic_warmup",
    "trainer.balance_batch": "trainer.balance_batch",
    "trainer.use_remove_padding": f"{MODEL}.use_remove_padding",
    "model.trust_remote_code": f"{MODEL}.trust_remote_code",
    "model.repetition_penalty": f"{ROLLOUT}.repetition_penalty",
    f"{_ENGINE}.data_parallel_size": f"{ROLLOUT}.data_parallel_size",
    f"{_ENGINE}.pipeline_parallel_size": f"{ROLLOUT}.pipeline_model_parallel_size",
}
RENAMED_SECTIONS: Mapping[str, str] = {
    "algorithm.optimizer": f"{ACTOR}.optim",
    f"{EMBEDDED}.actor_rollout_ref": "actor_rollout_ref",
    f"{EMBEDDED}.critic": "critic",
    "trainer.megatron": f"{ACTOR}.megatron",
    f"{EMBEDDED}.trainer": "trainer",
    f"{EMBEDDED}.algorithm": "algorithm",
    f"{EMBEDDED}.data": "data",
    f"{_TASKS}.data_selector": f"trinity.{_TASKS}.task_selector",
    "algorithm.rollout_correction": "algorithm.rollout_correction",
}

# What a model samples with where the tasks do not say it themselves.
OF_ANY_TASK: tuple[Row, ...] = tuple(
    to(f"trinity.model.{name}", f"actor_infer.generating_args.{name}") for name in ("temperature", "top_p", "top_k")
)


def trinity_only(row: Row) -> Row:
    return Row(**{**row.__dict__, "key": f"trinity.{row.key}"})


SHARED = (
    summed("checkpoint_root_dir", "folders"),
    summed("continue_from_checkpoint", "resume", True),
    needless("cluster.ray_address", "RAY_ADDRESS names a cluster; without it the run starts one (docs/network.md)"),
    changes("model.tinker.enable", "roll trains on devices of its own", False),
    changes("model.tinker.**", "roll trains on devices of its own, with no server; LoRA is model.lora_configs"),
    needless("ray_namespace", "every run has a cluster, or a namespace, of its own"),
    needless("group", "exp_name and output_dir name a run"),
    lacks("log.level", "the log has what INFO has", "INFO"),
    lacks("log.group_by_node", "logging_dir has a file for every worker", False),
    needless("log.save_dir", "logging_dir has a file for every worker"),
    needless("stages", "none"),
    lacks("service.**", "data_args.operators run in the process of the run"),
    summed("monitor.monitor_args.*", "trackers"),
    lacks("monitor.monitor_args", "tracker_kwargs.<tracker> has a tracker's settings", {}),
    to("monitor.enable_ray_timeline", "profiler_timeline", idle=(False,)),
    to("model.custom_chat_template", "global_template", via=words.chat_template),
    to("model.chat_template_path", "global_template"),
    changes("trainer.trainer_type", "roll trains with its own strategies", "verl"),
    CONFIG_ROW,
    Row(
        "trainer.fix_actor_microbatch_loss_scale",
        idle=(None, False),
        note="the loss is divided by the counts of the whole update, whatever its micro batches",
        outcome="asks for nothing",
    ),
    needless("trainer.name", "roles have the names of the YAML"),
    lacks("trainer.save_strategy", "every rank writes its part at once", "unrestricted"),
    lacks(
        "trainer.save_hf_checkpoint",
        "every checkpoint has an hf_model, which takes the room of the weights; max_ckpt_to_keep bounds how many stay",
        "always",
    ),
    needless("trainer.enable_preview", "rollout_dump_dir has answers of training and validation"),
    needless("buffer.max_retry_*", "rows are read from files"),
    needless("synchronizer.sync_timeout", "rpc_timeout is the limit of a call"),
)


def shuffles(value: object) -> bool:
    if value in ("random", "shuffle", "sequential"):
        return value != "sequential"
    raise ChangesRun(f"selector_type: {value} is not here: sequential, random and shuffle are")


def _template(thinks: object) -> str:
    if thinks is False:
        return "native_nonthinking"
    raise AsksNothing("the tokenizer's own template thinks where it can")


_LITTLE: tuple[Row, ...] = (
    needless("**.enable_progress_bar", "the table of steps shows where a run is"),
    needless(f"{_EVAL}.*.data_selector.**", "a validation asks all of its rows"),
    needless("buffer.explorer_input.**.max_retry_*", "rows are read from files"),
    needless("buffer.explorer_input.**.format.messages_key", "a task is asked for its prompt_key"),
    lacks("buffer.explorer_input.**.format.tools_key", "data_args.tools is the column of a row's tools", "tools"),
)
"""Keys of tasks and sets."""


def _of_scoring(via: Callable[[Any], Any]) -> Callable[[Any], ApproximateValue]:
    return lambda value: ApproximateValue(via(value), "of scoring an answer, where there it is of a whole task")


OWN_ROWS: tuple[Row, ...] = tuple(
    map(
        trinity_only,
        (
            *SHARED,
            *MODE_ROWS,
            *EVAL_ROWS,
            *MIX_ROWS,
            *OPERATOR_ROWS,
            summed("algorithm.algorithm_type", "algorithm", "grpo"),
            *(summed(f"algorithm.{name}", "algorithm") for name in ("advantage_fn", "policy_loss_fn")),
            *(summed(f"algorithm.{name}", "algorithm") for name in ("kl_penalty_fn", "kl_loss_fn")),
            summed("algorithm.entropy_loss_fn", "entropy"),
            changes("algorithm.sample_strategy_args**", "a step trains on the groups it took", {}),
            to("algorithm.advantage_fn_args.baseline_shift", "asymre_baseline_shift", via=words.number),
            to("algorithm.advantage_fn_args.opmd_baseline", "opmd_baseline", needs="opmd baseline"),
            to("algorithm.advantage_fn_args.tau", "opmd_baseline_tau", via=words.number, needs="opmd baseline"),
            to("algorithm.policy_loss_fn_args.tau", "opmd_tau", via=words.number, needs="opmd"),
            *REC_ROWS,
            to("algorithm.policy_loss_fn_args.epsilon", "sppo_epsilon", needs="sppo", via=words.number),
            to("algorithm.policy_loss_fn_args.m2_threshold", "m2po_threshold", needs="m2po", via=words.number),
            changes("algorithm.policy_loss_fn_args.log_ratio_clip", "log r is kept within +-20", 20, 20.0),
            lacks("algorithm.*_args.epsilon", "what a deviation of 0 is divided by is fixed here"),
            changes("algorithm.*_args.**", "the chosen function has no such setting here"),
            lacks("algorithm.*_args", "the chosen function has no such setting here", {}),
            to(
                "algorithm.use_token_level_loss",
                "loss_agg_mode",
                via=lambda v: "token-mean" if v else "seq-mean-token-mean",
            ),
            summed("model.max_model_len", "lengths"),
            to("model.min_response_tokens", "actor_infer.generating_args.min_new_tokens", idle=(0, 1)),
            summed("buffer.train_batch_size", "actor batches"),
            summed("buffer.total_steps", "steps"),
            summed("trainer.total_steps", "steps"),
            summed(f"{_TASKS}.path", "tasks"),
            to(f"{_TASKS}.subset_name", "actor_train.data_args.subset"),
            to(f"{_TASKS}.split", "actor_train.data_args.split"),
            *(summed(f"{at}.format.image_key", "trinity pictures") for at in (_TASKS, f"{_EVAL}.0")),
            changes("**.format.image_key", ONLY_RLVR),
            changes("**.format.video_key", NO_VIDEOS),
            needless("**.format.prompt_type", "texts and messages are distinguished row by row"),
            to(f"{_TASKS}.format.prompt_key", "actor_train.data_args.prompt", default="prompt"),
            to(f"{_TASKS}.format.response_key", "actor_train.data_args.ground_truth", default="response"),
            needless(f"{_TASKS}.repeat_times", "algorithm.repeat_times counts"),
            summed("model.lora_configs.0.name", "lora"),
            needless("model.lora_configs.0.base_model_name", "pretrain is the base"),
            lacks("model.lora_configs.0.lora_dtype", "adapters have the type of the weights", "auto"),
            needless("*.*.name", "roles have the names of the YAML"),
            needless("**.name", "roles have the names of the YAML"),
            changes(f"{_TASKS}.storage_type", "rows are read from files, folders, addresses and the hub", "file"),
            to(
                f"{_TASKS}.task_selector.selector_type",
                "actor_train.data_args.shuffle",
                via=shuffles,
                default="sequential",
            ),
            to(
                f"{_TASKS}.task_selector.seed",
                "seed",
                via=lambda seed: ApproximateValue(int(seed), "of all that a run draws"),
            ),
            changes(f"{_TASKS}.task_selector.**", "rows come in their order or shuffled: data_args.shuffle"),
            *REWARD_ROWS,
            needless("**.rollout_args.logprobs", "the sampled token's log-prob is always returned"),
            *_LITTLE,
            summed(f"{_TASKS}.rollout_args.max_tokens", "lengths"),
            changes(f"{_TASKS}.**", "data_args has the keys of rows (docs/data.md)", {}, [], ""),
            to(f"{_EVAL}.0.path", f"{_VALIDATION}.data_args.file_name", via=words.files),
            to(f"{_EVAL}.0.split", f"{_VALIDATION}.data_args.split"),
            to(f"{_EVAL}.0.subset_name", f"{_VALIDATION}.data_args.subset"),
            to(f"{_EVAL}.0.repeat_times", f"{_VALIDATION}.generating_args.num_return_sequences"),
            to(f"{_EVAL}.0.rollout_args.n", f"{_VALIDATION}.generating_args.num_return_sequences"),
            *(
                to(f"{_EVAL}.0.format.{key}_key", f"{_VALIDATION}.data_args.{name}", default=key, needs="eval set")
                for key, name in (("prompt", "prompt"), ("response", "ground_truth"))
            ),
            to(f"{_EVAL}.0.rollout_args.max_tokens", f"{_VALIDATION}.generating_args.max_new_tokens"),
            to(
                f"{_EVAL}.0.rollout_args.temperature",
                f"{_VALIDATION}.generating_args.temperature",
                via=words.number,
                default=1.0,
                needs="eval set",
            ),
            to(
                f"{_EVAL}.0.rollout_args.top_p",
                f"{_VALIDATION}.generating_args.top_p",
                via=words.number,
                needs="eval set",
            ),
            to(f"{_EVAL}.0.rollout_args.top_k", f"{_VALIDATION}.generating_args.top_k", needs="eval set"),
            lacks(f"{_EVAL}.0.storage_type", "rows are read from files, folders, addresses and the hub", "file"),
            changes(
                f"{_EVAL}.**",
                "data_args and generating_args have the keys of a validation (docs/modes.md)",
                {},
                [],
                "",
            ),
            needless(_EVAL, "no validation"),
            needless(f"{BUFFER}.**", _ONE_BUFFER),
            changes("buffer.trainer_input.sft_warmup_steps", "a stage before the run (docs/stages.md)", 0),
            lacks(
                "buffer.trainer_input.**", "rows of answers are fine-tuned on in a run of their own (docs/sft.md)", 0
            ),
            needless("buffer.cache_dir", "rows are read from files"),
            summed(f"{_ENGINE}.engine_num", "placement", 1),
            to(
                f"{_ENGINE}.engine_type",
                "actor_infer.strategy_args.strategy_name",
                via=lambda value: words.engine(str(value).removesuffix("_async")),
            ),
            needless(f"{_ENGINE}.use_v1", "there is no other engine any more"),
            needless(f"{_ENGINE}.seed", "seed of the run counts"),
            lacks(f"{_ENGINE}.enable_history", "calls of environments are recorded by themselves", False),
            to("model.enable_thinking", "global_template", via=_template),
            to(f"{_ENGINE}.enable_thinking", "global_template", via=_template, default=False, needs="own thinking"),
            to("algorithm.enable_router_replay", "actor_train.router_replay.mode", via=lambda _: "R3", idle=(False,)),
            summed("algorithm.bypass_old_logprobs", "algorithm"),
            *(needless(f"trainer.{part}_offload", TURNS) for part in ("param", "optimizer", "grad")),
            lacks("trainer.offload_policy", "states are offloaded while a role waits", False),
            lacks("explorer.concurrent_mode", "groups run as coroutines of one loop", "sequential"),
            summed("explorer.max_inflight_batches", "ahead", 2),
            lacks("monitor.detailed_stats", "metrics have mean, least and most where they say more", False),
            lacks(f"{_ENGINE}.*_parser", "an environment, or a reward of yours, reads calls and thinking of an answer"),
            lacks(f"{_ENGINE}.enable_expert_parallel", "engines share experts by tensor parallel", False),
            lacks(f"{_ENGINE}.enable_*", "templates and tools are the rows' or an agent's", False),
            *(summed(f"{_ENGINE}.max_{kind}_tokens", "lengths") for kind in ("prompt", "response")),
            *(
                changes(f"{_ENGINE}.{name}", f"{name} of the section model, and of the tasks, is read")
                for name in ("temperature", "top_p", "top_k", "repetition_penalty")
            ),
            to(f"{_ENGINE}.min_response_tokens", "actor_infer.generating_args.min_new_tokens", idle=(0, 1)),
            changes(f"{_ENGINE}.chat_template", "global_template takes the path of a file with it"),
            changes(f"{_ENGINE}.enable_prompt_truncation", "that of the section model counts", True),
            lacks(f"{_ENGINE}.*", "engines and their cluster are the run's own", False, 0, 1),
            *OPD_ROWS,
            needless("explorer.runner_*", "groups run as coroutines of one loop; max_running_requests bounds answers"),
            to("explorer.runner_state_report_interval", "runner_state_report_interval"),
            lacks("explorer.max_repeat_times_per_runner", "groups run as coroutines of one loop"),
            to("explorer.max_timeout", "rewards.trinity.timeout_s", via=_of_scoring(words.number)),
            to("explorer.max_retry_times", "rewards.trinity.reward_retries", via=_of_scoring(int)),
            to("explorer.env_vars.*", "system_envs.*", via=str),
            summed("explorer.over_rollout.ratio", "ahead", idle=(0, 0.0)),
            summed("explorer.over_rollout.wait_after_min", "ahead", needs="over rollout"),
            to("explorer.dynamic_timeout.enable", "rewards.trinity.dynamic_timeout.enable", idle=(False,)),
            to(
                "explorer.dynamic_timeout.ratio",
                "rewards.trinity.dynamic_timeout.ratio",
                via=_of_scoring(words.number),
                default=3.0,
                needs="dynamic timeout",
            ),
            lacks(
                "synchronizer.sync_method",
                "weights go by memory, collectives or a file, by placement",
                "nccl",
                "checkpoint",
            ),
            summed("synchronizer.sync_style", "ahead", idle=("fixed",)),
            summed("synchronizer.sync_interval", "ahead", 1),
            summed("synchronizer.sync_offset", "ahead", 0),
            needless("synchronizer.wait_for_checkpoint", "weights go by memory, collectives or a file"),
        ),
    )
)
