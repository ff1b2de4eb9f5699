"""What several tables of verl's keys share: reasons, and the rows that every role has."""

from __future__ import annotations

from collections.abc import Iterator

from roll.configs.strategies.megatron_config import IDLE, KNOWN, SET_ELSEWHERE
from roll.importers import words
from roll.importers.rows import AsksNothing, ChangesRun, Near, Row, changes, lacks, needless, same, to

TRAIN, INFER = "actor_train", "actor_infer"
PROFILES = "profiler_timeline and profiler_memory record a run here (docs/profiling.md)"
NO_PICTURES = "pictures, videos and sound are not read yet"
OWN_CODE = "models are loaded without code of their own; one that needs it is refused when it is loaded"
ITSELF = "roll does it by itself"
TURNS = "roles that share devices take turns: what waits is in host memory anyway"


def model_path(value: object) -> object:
    text = str(value)
    if text.startswith(("hdfs://", "viewfs://")):
        return Near(text, "files of HDFS are not fetched: copy it, and set pretrain to the folder")
    return value


def steps(value: object) -> object:
    if not isinstance(value, int) or value <= 0:
        raise AsksNothing("not given")
    return value


def optimizer(section: str, role: str, rate: float) -> Iterator[Row]:
    at, args = f"{section}.optim", f"{role}.training_args"
    need = "critic" if role == "critic" else ""
    yield to(f"{at}.lr", f"{args}.learning_rate", via=words.number, default=rate, needs=need)
    yield to(f"{at}.lr_warmup_steps_ratio", f"{args}.warmup_ratio", via=words.number, needs=need)
    yield to(f"{at}.lr_warmup_steps", f"{args}.warmup_steps", via=steps, needs=need)
    yield to(f"{at}.weight_decay", f"{args}.weight_decay", via=words.number, default=0.01, needs=need)
    yield to(f"{at}.lr_scheduler_type", f"{args}.lr_scheduler_type", via=words.schedule, needs=need)
    yield to(f"{at}.lr_decay_style", f"{args}.lr_scheduler_type", via=words.schedule, needs=need)
    yield to(f"{at}.warmup_style", f"{args}.lr_scheduler_type", via=words.schedule, default="constant", needs=need)
    ratio = "critic cosine" if role == "critic" else "actor cosine"
    yield to(
        f"{at}.min_lr_ratio", f"{args}.lr_scheduler_kwargs.min_lr_ratio", via=words.number, needs=ratio, idle=(None,)
    )
    yield to(f"{at}.betas", f"{args}.adam_beta1", f"{args}.adam_beta2", via=words.betas, needs=need)
    yield to(f"{at}.eps", f"{args}.adam_epsilon", via=words.number, needs=need)
    yield to(f"{at}.optimizer", f"{args}.optim", via=_adam, needs=need)
    yield changes(f"{at}.num_cycles", "a cosine falls once, from its peak to its end", 0.5)
    yield changes(
        f"{at}.min_lr", "the end of a schedule is a share of its peak: lr_scheduler_kwargs.min_lr_ratio", 0, 0.0
    )
    yield lacks(f"{at}.lr_warmup_init", "a warm-up begins at 1 / (n + 1) of its peak", 0, 0.0)
    yield needless(f"{at}.total_training_steps", "the program derives it, there as here")
    yield needless(f"{at}.zero_indexed_step", "warmup_steps says what the first update has")
    yield needless(f"{at}.optimizer_impl", "one optimizer for all: AdamW of the strategy")
    yield to(
        f"{at}.override_optimizer_config.optimizer_cpu_offload",
        "is_offload_optimizer_states_in_train_step",
        idle=(None, False),
        via=_offloaded,
    )
    for name in ("optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"):
        yield needless(f"{at}.override_optimizer_config.{name}", "states of the optimizer wait in host memory, or none")
    yield needless(f"{at}.override_optimizer_config.use_precision_aware_optimizer", "master weights are fp32")
    yield changes(f"{at}.override_optimizer_config.**", "the optimizer has the settings of training_args")
    yield lacks(f"{at}.override_optimizer_config", "the optimizer has the settings of training_args", {})
    yield changes(f"{at}.weight_decay_incr_style", "weight decay is constant", "constant")
    yield changes(f"{at}.lr_decay_steps", "a schedule runs over the whole run")
    yield changes(f"{at}.lr_wsd_**", "there is no such schedule; cosine or linear are near", "exponential")
    yield lacks(f"{at}.use_checkpoint_opt_param_scheduler", "a resumed run goes on with its schedule", False)


def _adam(value: object) -> object:
    if str(value) == "AdamW8bit":
        return "adamw_bnb_8bit"
    if str(value).lower() not in ("adam", "adamw"):
        raise ChangesRun(f"there is no optimizer {value} here; there are adamw_torch, adamw_bnb_8bit and muon")
    return "adamw_torch"


def fsdp(section: str, role: str, need: str, learns: bool) -> Iterator[Row]:
    at, config = f"{section}.fsdp_config", f"{role}.strategy_args.strategy_config"
    names = ["fsdp_size", "reshard_after_forward", "forward_prefetch"]
    names += ["wrap_policy.min_num_params", "wrap_policy.transformer_layer_cls_to_wrap"]
    for name in names:
        yield to(f"{at}.{name}", f"{config}.{name}", needs=need)
    yield needless(f"{at}.param_offload", TURNS, needs=need)
    yield needless(f"{at}.optimizer_offload", TURNS, needs=need)
    yield needless(f"{at}.grad_offload", "gradients live in an update only", needs=need)
    yield to(f"{at}.offload_policy", f"{config}.offload_policy", needs=need, idle=(False,))
    yield to(f"{at}.mixed_precision.param_dtype", f"{role}.model_args.dtype", via=words.dtype, needs=need)
    yield to(f"{at}.mixed_precision.reduce_dtype", f"{config}.reduce_dtype", via=words.dtype, needs=need)
    yield lacks(f"{at}.mixed_precision.buffer_dtype", "buffers keep their format", "fp32")
    yield lacks(f"{at}.model_dtype", "master weights are fp32 in any case", "fp32", "float32", "bf16", "bfloat16")
    yield to(f"{at}.dtype", f"{role}.model_args.dtype", via=words.dtype, needs=need)
    yield to(f"{at}.ulysses_sequence_parallel_size", f"{role}.model_args.ulysses_size", needs=need)
    yield lacks(f"{at}.use_orig_params", "FSDP2 always has the original parameters", False, True)
    for name in ("from_logits_with_chunking", "checkpointing"):
        yield needless(f"{at}.entropy_{name}", "the head is computed in tiles, here always")
    for name in ("strategy", "use_torch_compile", "forward_only", "full_determinism", "seed"):
        yield needless(f"{at}.{name}", "set by the role and the run")
    if learns:
        yield to(f"{section}.ulysses_sequence_parallel_size", f"{role}.model_args.ulysses_size", needs=need, idle=(1,))


def _offloaded(value: object) -> object:
    return Near(value, "states wait in host memory while gradients are computed; the update itself is on the GPU")


_RECOMPUTED = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
SPLITS = (
    *(f"num_layers_in_{end}_pipeline_stage" for end in ("first", "last")),
    *(f"account_for_{what}_in_pipeline_split" for what in ("embedding", "loss")),
)
PLAIN = KNOWN - SET_ELSEWHERE.keys()
"""Keys of Megatron's own that have a place in strategy_config under the same name."""


_OF_ROUTERS = {
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0,
    "moe_z_loss_coeff": 0,
    "moe_router_bias_update_rate": 0,
}
"""What Megatron's routers learn by beside the loss, with the values of nothing."""


def _dispatcher(value: object) -> object:
    if value == "flex":
        return Near("alltoall", "flex sends as alltoall does, by DeepEP")
    return value


def megatron(section: str, role: str, need: str, learns: bool) -> Iterator[Row]:
    at, config = f"{section}.megatron", f"{role}.strategy_args.strategy_config"
    sizes = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"]
    sizes += ["context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"]
    for name in sizes:
        yield to(f"{at}.{name}", f"{config}.{name}", needs=need, idle=(None,))
    yield to(f"{at}.sequence_parallel", f"{config}.sequence_parallel", default=True, needs=need)
    yield to(f"{at}.use_remove_padding", f"{role}.use_sequence_packing", needs=need)
    if not learns:
        yield needless(f"{at}.use_distributed_optimizer", "nothing is learnt here")
    if learns:
        yield to(f"{at}.use_distributed_optimizer", f"{config}.use_distributed_optimizer", default=True, needs=need)
    for name in _RECOMPUTED:
        key = f"{at}.override_transformer_config.{name}"
        if learns:
            idle = (None, ["core_attn"]) if name == "recompute_modules" else (None,)
            yield to(key, f"{config}.{name}", needs=need, idle=idle)
        else:
            yield needless(key, "nothing is kept for a backward pass here", needs=need)
    for name in SPLITS:
        yield to(f"{at}.override_transformer_config.{name}", f"{config}.{name}", needs=need, idle=(None, False))
    for name, note in IDLE.items():
        yield needless(f"{at}.override_transformer_config.{name}", note, needs=need)
    for name in sorted(PLAIN - IDLE.keys() - {*SPLITS, *_RECOMPUTED}):
        via = _dispatcher if name == "moe_token_dispatcher_type" else same
        yield to(f"{at}.override_transformer_config.{name}", f"{config}.{name}", needs=need, idle=(None,), via=via)
    yield needless(f"{at}.param_offload", TURNS, needs=need)
    yield needless(f"{at}.grad_offload", "gradients live in an update only", needs=need)
    yield needless(f"{at}.optimizer_offload", TURNS, needs=need)
    for name in ("use_mbridge", "vanilla_mbridge", "use_dist_checkpointing", "dist_checkpointing_*", "forward_only"):
        yield needless(f"{at}.{name}", "weights of Hugging Face are read and written directly")
    yield needless(f"{at}.seed", "seed of the run counts")
    yield to(f"{at}.dtype", f"{role}.model_args.dtype", via=words.dtype, needs=need)
    yield lacks(f"{at}.override_transformer_config.attention_backend", "attention is the fused kernel", "flash", "auto")
    for name, nothing in _OF_ROUTERS.items():
        key = f"{at}.override_transformer_config.{name}"
        yield changes(key, "routers learn as the loss tells them: model_args.moe_aux_loss_coef of the policy", nothing)
    yield lacks(
        f"{at}.override_**",
        f"keys of Megatron's that have a place here go into {config} (docs/config_reference.md)",
        {},
    )


def checkpoint(section: str) -> Iterator[Row]:
    yield needless(f"{section}.profile.**", PROFILES)
    yield needless(f"{section}.checkpoint.**", "a checkpoint holds all that the run goes on with, and an HF model")
    yield lacks(f"{section}.load_weight", "weights are always read", True)
    yield lacks(f"{section}.data_loader_seed", "seed of the run counts for every stream")
    yield needless(f"{section}.nccl_timeout", "backend_timeout (minutes) and rpc_timeout (seconds) are the limits here")
    for name in ("from_logits_with_chunking", "checkpointing"):
        yield needless(f"{section}.entropy_{name}", "the head is computed in tiles, here always")
    yield needless(f"{section}.use_fused_kernels", "log-probs never come from whole logits")
    yield needless(f"{section}.rollout_n", "rollout.n counts")
    yield needless(f"{section}.global_batch_info", "counts of an update are known before it")
    yield needless(f"{section}.mtp.**", "model.mtp says what becomes of heads for further tokens")
    yield needless(f"{section}._target_", "classes of verl's")
