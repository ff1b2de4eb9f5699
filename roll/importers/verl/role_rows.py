"""verl's keys of the roles: the model, the policy where it trains and samples, the reference, the critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.importers import rows as words
from roll.importers.rows import (
    CHANGES,
    RELEASE,
    ChangesRun,
    CombinedKeys,
    Row,
    SourceLookup,
    changes,
    lacks,
    needless,
    summed,
    to,
)
from roll.importers.verl.common import (
    ACTOR,
    CRITIC,
    FILES_ONCE,
    HIDDEN_NOISE,
    INFER,
    ITSELF,
    MEGATRON,
    MODEL,
    MOST_TOKENS,
    OF_MODEL,
    OVERLONG,
    OWN_CODE,
    REF,
    ROLLOUT,
    SECTION,
    TEMPLATE_OF_MODEL,
    TRAIN,
    TURNS,
    attention,
    checkpoint,
    fsdp,
    has_adapters,
    has_section,
    megatron,
    model_path,
    optimizer,
    runs_on,
    strategy_of,
)
from roll.importers.verl.pictures import MODULE_ROWS, NO_VIDEOS

# verl's keys of adapters: flat ones with FSDP, a section of Megatron Bridge's words with Megatron.

_ARGS = f"{TRAIN}.model_args"
_OURS: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_fc2": ("down_proj",),
}
"""Linear layers as Hugging Face names them, by Megatron's names."""
_ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_SHARED = "verl's adapter of a fused layer (linear_qkv, linear_fc1) has one A for its parts, here each has its own."

ADAPTER_ROWS: tuple[Row, ...] = (
    summed(f"{MODEL}.lora_rank", "lora"),
    summed(f"{MODEL}.lora_alpha", "lora", needs="lora"),
    summed(f"{MODEL}.target_modules", "lora", needs="lora"),
    to(f"{MODEL}.lora_adapter_path", f"{_ARGS}.adapter_name_or_path", needs="lora"),
    summed(f"{SECTION}.rank", "lora"),
    summed(f"{SECTION}.alpha", "lora", needs="lora section"),
    summed(f"{SECTION}.target_modules", "lora", needs="lora section"),
    to(f"{SECTION}.dropout", f"{_ARGS}.lora_dropout", needs="lora section"),
    to(f"{SECTION}.adapter_path", f"{_ARGS}.adapter_name_or_path", needs="lora section"),
    changes(f"{SECTION}.exclude_modules", "lora_target names what gets adapters", []),
    changes(
        f"{SECTION}.type", "adapters are those of LoRA; canonical_lora is what they are here", "lora", "canonical_lora"
    ),
    needless(
        f"{SECTION}.merge",
        "engines get merged weights; actor_infer.strategy_args.strategy_config.enable_lora: true sends adapters (vLLM)",
    ),
    Row(
        f"{SECTION}.**",
        note="keys of adapters are lora_target, lora_rank, lora_alpha, lora_dropout (docs/lora.md)",
        outcome=CHANGES,
        needs="lora section",
        idle=(None, 0, False, True, "pre", "xavier", "zero"),
    ),
)


_UNREAD_RANK = (
    "verl's workers on {0} do not read it and train the whole model, while its trainer, which does, starts no "
    "reference. For adapters give {1} instead after the file, without it for none"
)


def adapters(source: SourceLookup) -> CombinedKeys:
    trainer, flat, nested = strategy_of(source, ACTOR), f"{MODEL}.lora_rank", f"{SECTION}.rank"
    read, other = (nested, flat) if trainer == MEGATRON else (flat, nested)
    is_read = has_section(source) if trainer == MEGATRON else has_adapters(source)
    if not is_read and source.number(other, 0) > 0:
        return CombinedKeys({}, "", changes={other: _UNREAD_RANK.format(trainer, read)})
    if has_section(source):
        return _of_section(source)
    if not has_adapters(source):
        return CombinedKeys({}, "lora_rank is 0: no adapters")
    names, rank = source(f"{MODEL}.target_modules"), source.number(f"{MODEL}.lora_rank")
    if rank > 0:
        return _lora_keys(names, rank, source(f"{MODEL}.lora_alpha"))
    near = "lora_rank and lora_alpha must be those of the adapter's own file: set them where it has others than 8, 16."
    return CombinedKeys({f"{_ARGS}.lora_target": names}, f"{_ARGS}.lora_target: {names}, by lora_adapter_path.", near)


def _of_section(source: SourceLookup) -> CombinedKeys:
    modules = source(f"{SECTION}.target_modules", list(_ALL))
    names = [modules] if isinstance(modules, str) else list(modules)
    if unknown := [name for name in names if name not in _OURS]:
        raise ChangesRun(f"{SECTION}.target_modules: {unknown[0]} is none of {', '.join(_OURS)}. Set lora_target")
    ours: Any = list(dict.fromkeys(module for name in names for module in _OURS[name]))
    if set(_ALL) <= set(names):
        ours = "all-linear"
    made = _lora_keys(ours, source.number(f"{SECTION}.rank"), source(f"{SECTION}.alpha", 32))
    fused = source(f"{SECTION}.type", "lora") == "lora" and {"linear_qkv", "linear_fc1"} & set(names)
    return CombinedKeys(made.settings, made.text, differences={f"{SECTION}.rank": _SHARED} if fused else {})


def _lora_keys(names: Any, rank: int, alpha: Any) -> CombinedKeys:
    settings = {f"{_ARGS}.lora_target": names, f"{_ARGS}.lora_rank": rank, f"{_ARGS}.lora_alpha": alpha}
    return CombinedKeys(settings, f"{_ARGS}: lora_target {names}, lora_rank {rank}, lora_alpha {alpha} (docs/lora.md).")


# verl's keys of MTP heads (multi-token prediction).

AT = f"{MODEL}.mtp"
_KEYS = ("enable", "enable_train", "detach_encoder", "mtp_loss_scaling_factor")
_ENGINES = "engines load models without their MTP heads"

MTP_ROWS: tuple[Row, ...] = (
    *(summed(f"{AT}.{key}", "mtp") for key in _KEYS),
    needless(f"{AT}._target_", "the class of a section"),
    Row(f"{AT}.**", note=_ENGINES, idle=(None, False), outcome="not available", needs="drafts"),
)


def head_training(source: SourceLookup) -> CombinedKeys:
    """Converts MTP training of a policy on Megatron, the one trainer that supports it in both systems."""
    if not (source(f"{AT}.enable") and source(f"{AT}.enable_train")):
        return CombinedKeys({}, "no MTP head is trained: those of the files are saved as they were.")
    if reason := _missing(source):
        return CombinedKeys({}, "MTP heads are saved as they were.", lost={f"{AT}.enable_train": reason})
    mode, factor = (
        "standalone" if source(f"{AT}.detach_encoder") else "joint",
        source.amount(f"{AT}.mtp_loss_scaling_factor", 0.1),
    )
    near = "" if mode == "joint" else "Embedding and output matrix are kept from the head's loss as well."
    settings = {f"{TRAIN}.mtp_training_mode": mode, f"{TRAIN}.mtp_loss_scaling_factor": factor}
    return CombinedKeys(settings, f"mtp_training_mode: {mode}, weight {factor:g}.", near)


def _missing(source: SourceLookup) -> str:
    """Why the head cannot be trained here."""
    if reason := runs_on(ACTOR, megatron=True)(source):
        return f"{reason}: megatron_train alone trains heads"
    if source(f"{MODEL}.lora_rank") or source(f"{MODEL}.lora.rank"):
        return "adapters leave heads as they are"
    return ""


_TURNS = "turns and tools are those of an environment: start_agentic_pipeline.py, custom_envs (docs/adding_an_env.md)"

_LOADS = ("torch_dtype", "device_map", "low_cpu_mem_usage", "trust_remote_code")
_OF_LOADING = "an argument of loading a model; in its configuration, where verl puts it, nothing reads it"
_SHUFFLED = "rows of a step are always shuffled over its updates; with one update a step it is the same"
MODEL_ROWS: tuple[Row, ...] = (
    to(f"{MODEL}.path", "pretrain", via=model_path, default=RELEASE),
    to(f"{MODEL}.tokenizer_path", f"{TRAIN}.model_args.tokenizer_path"),
    to(f"{MODEL}.external_lib", "external_lib", idle=(None,)),
    to(
        f"{MODEL}.override_config.attn_implementation",
        f"{TRAIN}.model_args.attn_implementation",
        via=attention,
    ),
    changes(f"{MODEL}.override_config", "model_args.model_config_kwargs takes entries of config.json", {}),
    changes(
        f"{MODEL}.override_config.model_config.**", "model_args.model_config_kwargs takes entries of config.json", {}
    ),
    changes(f"{MODEL}.override_config.model_config", "model_args.model_config_kwargs takes entries of config.json", {}),
    changes(
        f"{MODEL}.override_config.moe_config.freeze_moe_router", "freeze_module_prefix freezes by beginnings", False
    ),
    to(
        f"{MODEL}.enable_gradient_checkpointing",
        f"{TRAIN}.model_args.disable_gradient_checkpointing",
        via=words.opposite,
        default=RELEASE,
    ),
    to(
        f"{MODEL}.enable_activation_offload",
        f"{TRAIN}.model_args.enable_activation_offload",
        needs="actor fsdp",
        idle=(False,),
    ),
    to(
        f"{MODEL}.use_remove_padding",
        f"{TRAIN}.use_sequence_packing",
        note="rows without padding: of a reference, set reference.use_sequence_packing",
    ),
    to(f"{MODEL}.use_rmpad", f"{TRAIN}.use_sequence_packing", note="of older versions"),
    *ADAPTER_ROWS,
    lacks(f"{MODEL}.use_liger", "model_args.use_torch_compile fuses what is beside the matrices", False),
    needless(f"{MODEL}.use_fused_kernels", "log-probs never come from whole logits"),
    to(
        f"{MODEL}.fused_kernel_options.impl_backend",
        f"{TRAIN}.model_args.fused_kernel_options.impl_backend",
        via=words.kernel,
    ),
    needless(f"{MODEL}.use_shm", FILES_ONCE),
    lacks(f"{MODEL}.tiled_mlp.enabled", "recomputation bounds what a layer keeps", False),
    needless(f"{MODEL}.tiled_mlp.*", "tiled_mlp.enabled is off"),
    *MTP_ROWS,
    lacks(f"{MODEL}.override_config.chat_template", TEMPLATE_OF_MODEL),
    changes(f"{MODEL}.override_config.hidden_noise_*", HIDDEN_NOISE),
    *(needless(f"{MODEL}.override_config.{name}", _OF_LOADING) for name in _LOADS),
    to(f"{MODEL}.override_config.*", f"{TRAIN}.model_args.model_config_kwargs.*", note=OF_MODEL),
    lacks(f"{MODEL}.trust_remote_code", OWN_CODE, False),
    to(f"{MODEL}.custom_chat_template", "global_template", via=words.chat_template),
    changes(f"{MODEL}.hf_config_path", "the configuration is read beside the weights"),
    needless(f"{MODEL}._target_", "classes of verl's"),
    lacks("actor_rollout_ref.hybrid_engine", "roles that share devices take turns, others do not", True),
    needless("actor_rollout_ref.nccl_timeout", "backend_timeout (minutes) and rpc_timeout (seconds) are the limits"),
)

ACTOR_ROWS: tuple[Row, ...] = (
    to(f"{ACTOR}.strategy", f"{TRAIN}.strategy_args.strategy_name", via=words.trainer, default=RELEASE),
    summed(f"{ACTOR}.ppo_mini_batch_size", "actor batches"),
    summed(f"{ACTOR}.ppo_micro_batch_size", "actor batches"),
    summed(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "actor batches"),
    summed(f"{ACTOR}.use_dynamic_bsz", "actor tokens"),
    summed(f"{ACTOR}.ppo_max_token_len_per_gpu", "actor tokens"),
    summed(f"{ACTOR}.clip_ratio", "policy"),
    summed(f"{ACTOR}.clip_ratio_low", "policy"),
    summed(f"{ACTOR}.clip_ratio_high", "policy"),
    summed(f"{ACTOR}.clip_ratio_c", "policy"),
    summed(f"{ACTOR}.policy_loss.loss_mode", "policy"),
    summed(f"{ACTOR}.use_gpg_loss", "policy"),
    summed(f"{ACTOR}.tau_pos", "policy"),
    summed(f"{ACTOR}.tau_neg", "policy"),
    *(
        to(f"{ACTOR}.policy_loss.{name}", name, via=words.number, default=RELEASE, needs=needs)
        for name, needs in (
            ("clip_cov_ratio", "clip cov"),
            ("clip_cov_lb", "clip cov"),
            ("clip_cov_ub", "clip cov"),
            ("kl_cov_ratio", "kl cov"),
            ("ppo_kl_coef", "kl cov"),
        )
    ),
    *(
        to(f"{ACTOR}.policy_loss.{section}{name}", target, via=words.number, needs="cppo")
        for section in ("cppo.", "")
        for name, target in (
            ("cppo_w_min", "cppo_weight_floor"),
            ("cppo_delta_b", "cppo_budget"),
            ("cppo_delta_b_q", "cppo_budget_quantile"),
            ("cppo_delta_b_k", "cppo_budget_scale"),
        )
    ),
    needless(f"{ACTOR}.policy_loss.cppo._target_", "classes of verl's"),
    summed(f"{ACTOR}.use_m2po_loss", "policy"),
    to(f"{ACTOR}.M2_budget", "m2po_threshold", via=words.number, needs="m2po"),
    *(
        Row(f"{ACTOR}.{name}", note=note, outcome=CHANGES, needs="m2po", idle=(None, False))
        for name, note in (
            ("miniclip_low", "no ratio near 1 is sure to stay: m2po_threshold alone decides"),
            ("miniclip_high", "no ratio near 1 is sure to stay: m2po_threshold alone decides"),
            ("use_m2po_loss_symmetric", "tokens that return to the old policy always learn"),
        )
    ),
    summed(f"{ACTOR}.tis_imp_ratio_cap", "correction"),
    to(
        f"{ACTOR}.loss_agg_mode",
        "loss_agg_mode",
        via=words.aggregation,
        default=RELEASE,
        needs="own aggregation",
    ),
    to(
        f"{ACTOR}.use_token_level_loss",
        "loss_agg_mode",
        via=lambda value: "token-mean" if value else "seq-mean-token-mean",
    ),
    to(f"{ACTOR}.loss_scale_factor", "loss_scale_factor", via=words.loss_scale, needs="norm"),
    to(f"{ACTOR}.entropy_coeff", "entropy_loss_coef", via=words.number, default=RELEASE),
    lacks(f"{ACTOR}.calculate_entropy", "actor/entropy is always recorded", False, True),
    to(f"{ACTOR}.use_kl_loss", "use_kl_loss", default=RELEASE),
    to(f"{ACTOR}.kl_loss_coef", "kl_loss_coef", via=words.number, default=RELEASE, needs="kl loss"),
    to(f"{ACTOR}.kl_loss_type", "kl_loss_type", via=words.kl_loss, default=RELEASE, needs="kl loss"),
    to(f"{ACTOR}.ppo_epochs", "ppo_epochs", default=RELEASE),
    Row(f"{ACTOR}.shuffle", idle=(None, True), outcome="approximated", note=_SHUFFLED),
    to(f"{ACTOR}.grad_clip", "max_grad_norm", via=words.number, default=RELEASE),
    to(f"{ACTOR}.optim.clip_grad", "max_grad_norm", via=words.number, default=RELEASE),
    to(f"{ACTOR}.use_torch_compile", f"{TRAIN}.use_torch_compile", idle=(False,)),
    to(f"{ACTOR}.use_remove_padding", f"{TRAIN}.use_sequence_packing"),
    to(f"{ACTOR}.use_rollout_log_probs", "force_disable_old_logprobs_recompute", idle=(None, False)),
    to(f"{ACTOR}.router_replay.mode", f"{TRAIN}.router_replay.mode", via=words.router_replay, default=RELEASE),
    needless(f"{ACTOR}.router_replay._target_", "classes of verl's"),
    changes(f"{ACTOR}.router_replay.**", "experts are neither recorded to a file nor read from one"),
    needless(f"{ACTOR}.**sum_pi_squared**", "of a baseline for tokens, which algorithm.adv_estimator asks for"),
    changes(f"{ACTOR}.qat.**", "training with quantised weights is not here", False),
    *optimizer(ACTOR, TRAIN),
    *fsdp(ACTOR, TRAIN, "actor fsdp", learns=True),
    *megatron(ACTOR, TRAIN, "actor megatron", learns=True),
    *checkpoint(ACTOR),
)

REF_ROWS: tuple[Row, ...] = (
    to(f"{REF}.strategy", "reference.strategy_args.strategy_name", via=words.scorer, needs="reference"),
    summed(f"{REF}.log_prob_micro_batch_size", "ref scoring", needs="reference"),
    summed(f"{REF}.log_prob_micro_batch_size_per_gpu", "ref scoring", needs="reference"),
    summed(f"{REF}.log_prob_use_dynamic_bsz", "ref tokens", needs="reference"),
    summed(f"{REF}.log_prob_max_token_len_per_gpu", "ref tokens", needs="reference"),
    to(f"{REF}.use_torch_compile", "reference.use_torch_compile", needs="reference", idle=(False, True)),
    to(f"{REF}.ulysses_sequence_parallel_size", "reference.model_args.ulysses_size", needs="ref fsdp", idle=(1,)),
    to(f"{REF}.model.path", "reference.model_args.model_name_or_path", needs="reference"),
    needless(f"{REF}.param_offload", TURNS),
    needless(f"{REF}.router_replay.**", "actor.router_replay counts"),
    changes(f"{REF}.model", "the reference is the starting policy"),
    *fsdp(REF, "reference", "ref fsdp", learns=False),
    *megatron(REF, "reference", "ref megatron", learns=False),
    *checkpoint(REF),
)

ROLLOUT_ROWS: tuple[Row, ...] = (
    to(f"{ROLLOUT}.name", f"{INFER}.strategy_args.strategy_name", via=words.rollout_engine, default=RELEASE),
    needless(f"{ROLLOUT}.max_batch_size", "of TensorRT-LLM; rollout.max_num_seqs counts"),
    lacks(f"{ROLLOUT}.mode", "requests are always in flight one by one", "async", "sync"),
    summed(f"{ROLLOUT}.temperature", "sampling"),
    to(f"{ROLLOUT}.top_k", f"{INFER}.generating_args.top_k", default=RELEASE),
    to(f"{ROLLOUT}.top_p", f"{INFER}.generating_args.top_p", via=words.number, default=RELEASE),
    to(f"{ROLLOUT}.repetition_penalty", f"{INFER}.generating_args.repetition_penalty", via=words.number),
    summed(f"{ROLLOUT}.do_sample", "sampling"),
    to(f"{ROLLOUT}.ignore_eos", f"{INFER}.generating_args.ignore_eos", idle=(False,)),
    summed(f"{ROLLOUT}.n", "actor batches"),
    needless(f"{ROLLOUT}.prompt_length", "room for prompts, of which data.max_prompt_length says how long they are"),
    needless(f"{ROLLOUT}.response_length", "data.max_response_length counts"),
    to(f"{ROLLOUT}.dtype", f"{INFER}.model_args.dtype", via=words.dtype),
    to(f"{ROLLOUT}.max_num_seqs", "max_running_requests", default=RELEASE, note="answers in flight per engine"),
    changes(f"{ROLLOUT}.n_agent", "answers of a prompt in forks of verl's: rollout.n says how many here"),
    summed(f"{ROLLOUT}.tensor_model_parallel_size", "engine"),
    summed(f"{ROLLOUT}.gpu_memory_utilization", "engine"),
    *(
        summed(f"{ROLLOUT}.{name}", "engine")
        for name in (
            "enforce_eager",
            "max_num_batched_tokens",
            "max_model_len",
            "enable_chunked_prefill",
            "limit_images",
        )
    ),
    *(lacks(f"{ROLLOUT}.limit_{what}", NO_VIDEOS, 0) for what in ("videos", "audios")),
    summed(f"{ROLLOUT}.enable_prefix_caching", "engine"),
    summed(f"{ROLLOUT}.engine_kwargs.*.**", "engine"),
    lacks(f"{ROLLOUT}.engine_kwargs.*", "arguments of an engine stand under its name: engine_kwargs.vllm.x", {}),
    lacks(f"{ROLLOUT}.pipeline_model_parallel_size", "engines share layers by tensor parallel", 1),
    lacks(f"{ROLLOUT}.data_parallel_size", "several engines are what device_mapping makes", 1),
    lacks(f"{ROLLOUT}.expert_parallel_size", "strategy_config.enable_expert_parallel of vLLM", 1),
    summed(f"{ROLLOUT}.log_prob_micro_batch_size", "actor scoring"),
    summed(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "actor scoring"),
    summed(f"{ROLLOUT}.log_prob_use_dynamic_bsz", "actor scoring tokens"),
    summed(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "actor scoring tokens"),
    *(
        summed(f"{ROLLOUT}.val_kwargs.{name}", "validation", needs="validation")
        for name in ("do_sample", "temperature", "top_p", "top_k", "n")
    ),
    to(f"{ROLLOUT}.update_weights_bucket_megabytes", "model_update_buffer_size_mb"),
    needless(f"{ROLLOUT}.free_cache_engine", TURNS),
    needless(f"{ROLLOUT}.load_format", "engines get the trainer's weights before they sample"),
    needless(f"{ROLLOUT}.layered_summon", "weights travel in buckets"),
    needless(f"{ROLLOUT}.disable_log_stats", "rollout/ metrics are always recorded"),
    needless(f"{ROLLOUT}.calculate_log_probs", "the engine's log-probs are always kept"),
    needless(f"{ROLLOUT}.multi_stage_wake_up", TURNS),
    needless(f"{ROLLOUT}.skip_tokenizer_init", ITSELF),
    lacks(
        f"{ROLLOUT}.over_sample_rate", "group_size_redundancy, or unfinished_groups: drop (docs/rollouts.md)", 0, 0.0
    ),
    lacks(f"{ROLLOUT}.skip_rollout", "rollout_mock records and replays rollouts", False),
    *(
        needless(f"{ROLLOUT}.{name}", "rollout_mock records and replays rollouts")
        for name in ("skip_dump_dir", "skip.dump_dir", "skip.dump_step", "skip.max_dump_step", "skip.action")
    ),
    changes(f"{ROLLOUT}.skip.enable", "rollout_mock records and replays rollouts", False),
    changes(f"{ROLLOUT}.multi_turn.enable", _TURNS, False),
    *(changes(f"{ROLLOUT}.multi_turn.{name}", _TURNS) for name in ("tool_config_path", "interaction_config_path")),
    lacks(f"{ROLLOUT}.multi_turn.traj_save_dir", "rollout_dump_dir has the answers"),
    Row(f"{ROLLOUT}.multi_turn.*", note=_TURNS, outcome=CHANGES, needs="turns", idle=(None,)),
    changes(f"{ROLLOUT}.chat_scheduler", _TURNS, ""),
    changes(f"{ROLLOUT}.agent.agent_loop_config_path", f"user_defined_rollout_loop_cls names a loop; {_TURNS}"),
    changes(f"{ROLLOUT}.agent.default_agent_loop", _TURNS, "single_turn_agent"),
    changes(f"{ROLLOUT}.agent.agent_loop_manager_class", _TURNS),
    changes(f"{ROLLOUT}.agent.custom_async_server.**", "engines are those of the run, without a server of one's own"),
    needless(f"{ROLLOUT}.agent.custom_async_server", "empty"),
    needless(f"{ROLLOUT}.agent.custom_async_server._target_", "classes of verl's"),
    needless(f"{ROLLOUT}.agent.num_workers", "groups are made by one loop of coroutines"),
    lacks(f"{ROLLOUT}.trace.backend", "rollout_dump_dir and save_logging_board_dir hold the answers"),
    *(
        needless(f"{ROLLOUT}.trace.{name}", "trace.backend says whether there is a trace")
        for name in ("token2text", "project_name", "experiment_name", "max_samples_per_step_per_worker")
    ),
    lacks(f"{ROLLOUT}.prometheus.enable", "metrics go to the trackers", False),
    needless(f"{ROLLOUT}.prometheus.*", "metrics go to the trackers"),
    changes(f"{ROLLOUT}.use_fire_sampling", "every token has the temperature of the run", False),
    changes(f"{ROLLOUT}.logprobs_mode", "log-probs are those of the sampling temperature", "processed_logprobs"),
    lacks(f"{ROLLOUT}.scheduling_policy", "requests are answered oldest group first", "fcfs"),
    lacks(f"{ROLLOUT}.nnodes", "actor_infer.device_mapping gives engines devices of their own", 0),
    lacks(f"{ROLLOUT}.n_gpus_per_node", "actor_infer.device_mapping gives engines devices of their own", 0),
    needless(f"{ROLLOUT}.checkpoint_engine.**", "weights go by memory, collectives or a file: weight_sync_route"),
    needless(f"{ROLLOUT}.enable_sleep_mode", TURNS),
    changes(f"{ROLLOUT}.enable_rollout_routing_replay", "expert choices are not reused in training", False),
    summed(f"{ROLLOUT}.quantization", "engine"),
    changes(f"{ROLLOUT}.quantization**", "of numbers of eight bits there is rollout.quantization: fp8 with vLLM"),
    needless(f"{ROLLOUT}.use_block_quant_rollout", "rollout.quantization counts"),
    needless(f"{ROLLOUT}.layer_name_map.*", "weights have the names of Hugging Face"),
    lacks(f"{ROLLOUT}.cudagraph_capture_sizes", "strategy_config.cudagraph_capture_sizes of vLLM"),
    *checkpoint(ROLLOUT),
)

CRITIC_ROWS: tuple[Row, ...] = (
    to(f"{CRITIC}.strategy", "critic.strategy_args.strategy_name", via=words.trainer, needs="critic"),
    Row(f"{CRITIC}.enable", outcome="asks for nothing", note="the critic runs where adv_estimator needs one"),
    to(f"{CRITIC}.model.path", "critic.model_args.model_name_or_path", needs="critic"),
    to(f"{CRITIC}.model.tokenizer_path", "critic.model_args.tokenizer_path", needs="critic"),
    to(f"{CRITIC}.model.external_lib", "external_lib", needs="critic", idle=(None,)),
    to(
        f"{CRITIC}.model.enable_gradient_checkpointing",
        "critic.model_args.disable_gradient_checkpointing",
        via=words.opposite,
        default=RELEASE,
        needs="critic",
    ),
    to(f"{CRITIC}.model.use_remove_padding", "critic.use_sequence_packing", needs="critic"),
    to(f"{CRITIC}.model.use_rmpad", "critic.use_sequence_packing", needs="critic", note="of older versions"),
    lacks(f"{CRITIC}.model.lora_rank", "the critic is trained in full", 0),
    needless(f"{CRITIC}.model.lora_alpha", "the critic is trained in full"),
    needless(f"{CRITIC}.model.target_modules", "the critic is trained in full"),
    lacks(
        f"{CRITIC}.model.override_config**", "critic.model_args.model_config_kwargs takes entries of config.json", {}
    ),
    lacks(f"{CRITIC}.model.trust_remote_code", OWN_CODE, False),
    to(
        f"{CRITIC}.model.enable_activation_offload",
        "critic.model_args.enable_activation_offload",
        needs="critic fsdp",
        idle=(False,),
    ),
    needless(f"{CRITIC}.model.use_shm", FILES_ONCE),
    changes(f"{CRITIC}.model.lora.rank", "adapters of a critic are critic.model_args.lora_target", 0),
    needless(f"{CRITIC}.model.lora.*", "lora.rank is 0: no adapters"),
    needless(f"{CRITIC}.kl_ctrl.*", "algorithm.kl_ctrl counts"),
    lacks(f"{CRITIC}.model.tiled_mlp.enabled", "recomputation bounds what a layer keeps", False),
    needless(f"{CRITIC}.model.tiled_mlp.*", "tiled_mlp.enabled is off"),
    needless(f"{CRITIC}.model._target_", "classes of verl's"),
    summed(f"{CRITIC}.ppo_mini_batch_size", "critic batches", needs="critic"),
    summed(f"{CRITIC}.ppo_micro_batch_size", "critic batches", needs="critic"),
    summed(f"{CRITIC}.ppo_micro_batch_size_per_gpu", "critic batches", needs="critic"),
    summed(f"{CRITIC}.forward_micro_batch_size", "critic scoring", needs="critic"),
    summed(f"{CRITIC}.forward_micro_batch_size_per_gpu", "critic scoring", needs="critic"),
    summed(f"{CRITIC}.use_dynamic_bsz", "critic tokens", needs="critic"),
    summed(f"{CRITIC}.ppo_max_token_len_per_gpu", "critic tokens", needs="critic"),
    summed(f"{CRITIC}.forward_max_token_len_per_gpu", "critic scoring tokens", needs="critic"),
    to(f"{CRITIC}.ppo_epochs", "critic.ppo_epochs", needs="critic"),
    Row(f"{CRITIC}.shuffle", idle=(None, True), outcome="approximated", note=_SHUFFLED, needs="critic"),
    to(f"{CRITIC}.cliprange_value", "value_clip", via=words.number, default=RELEASE, needs="critic"),
    needless(f"{CRITIC}.loss_agg_mode", "the value loss is a mean over the tokens"),
    to(f"{CRITIC}.grad_clip", "critic.max_grad_norm", via=words.number, default=RELEASE, needs="critic"),
    to(f"{CRITIC}.optim.clip_grad", "critic.max_grad_norm", via=words.number, default=RELEASE, needs="critic"),
    *optimizer(CRITIC, "critic"),
    *(
        row
        for section in (f"{CRITIC}.model", CRITIC)
        for row in fsdp(section, "critic", "critic fsdp", learns=section == CRITIC)
    ),
    *megatron(CRITIC, "critic", "critic megatron", learns=True),
    *checkpoint(CRITIC),
)

ROLE_ROWS: tuple[Row, ...] = (*MODULE_ROWS, *MODEL_ROWS, *ACTOR_ROWS, *REF_ROWS, *ROLLOUT_ROWS, *CRITIC_ROWS)


# verl's keys of rewards: functions, managers, the sandbox, a model that scores.

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
    summed("reward_model.enable", "rewards"),
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
    summed("reward_model.reward_manager", "reward manager"),
    *(summed(f"{section}.{name}", "rewards") for section in OVERLONG for name in ("enable", "len", "penalty_factor")),
    *(needless(f"{section}.log", "rollout/reward_overlong_mean is always recorded") for section in OVERLONG),
    summed(MOST_TOKENS, "rewards", needs="overlong"),
    changes("reward_model.reward_kwargs.**", "reward_args has the arguments of a reward"),
    changes("reward_manager.source", "rewards run in worker processes of their own", "register"),
    summed("reward_manager.name", "reward manager"),
    needless("reward_manager.module.**", "reward_manager.source is register"),
    *(
        changes(f"reward_model.{name}", "a loop of one's own is none here: rewards.<domain> (docs/rewards.md)")
        for name in ("reward_loop_source", "reward_loop_module_path", "reward_loop_class_name")
    ),
    *(needless(f"reward_model.{name}", _SCORES) for name in _OF_WORKERS),
    summed("custom_reward_function.path", "rewards"),
    summed("custom_reward_function.name", "rewards"),
    summed("custom_reward_function.reward_kwargs.**", "rewards"),
    needless("custom_reward_function.reward_kwargs", "empty"),
)
