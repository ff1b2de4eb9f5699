"""verl's keys of the sections engine, optim and model of its fine-tuning on engines (0.7 and later)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roll.importers import rows as words
from roll.importers.rows import Row, changes, lacks, needless, summed, to
from roll.importers.verl.common import FP32_STATES, MEGATRON, PADDED, TILED_HEAD, fsdp, megatron
from roll.importers.verl.pictures import left_out

ROLE = "sft_train"
_ARGS, _MODEL = f"{ROLE}.training_args", f"{ROLE}.model_args"
_OF_ANY_ENGINE = ("param_offload", "grad_offload", "optimizer_offload", "use_remove_padding", "dtype")
_ELSEWHERE = (*_OF_ANY_ENGINE, "fsdp_size", "strategy", "ulysses_sequence_parallel_size")
_ADAPTERS = "adapters of Megatron's are lora_target, lora_rank and lora_alpha of sft_train.model_args (docs/lora.md)"
_WSD = "there is no such schedule; cosine or linear are near"


def _engine_rows() -> Iterator[Row]:
    """Sizes and settings of Megatron's and FSDP's engines, which stand in the section itself here."""
    of_megatron = {
        row.key.removeprefix("engine.megatron."): row for row in megatron("engine", ROLE, MEGATRON, learns=True)
    }
    for name, row in of_megatron.items():
        if name not in _OF_ANY_ENGINE:
            yield replace(row, key=f"engine.{name}")
    for what in ("param", "grad", "optimizer"):
        yield lacks(f"engine.{what}_offload", "trained states stay on their devices", False)
    yield to("engine.dtype", f"{_MODEL}.dtype", via=words.dtype)
    yield to("engine.fsdp_size", f"{ROLE}.strategy_args.strategy_config.fsdp_size")
    for row in fsdp("engine", ROLE, "fsdp", learns=True):
        name = row.key.removeprefix("engine.fsdp_config.")
        if name not in (*_ELSEWHERE, *of_megatron) and row.key != name:
            yield replace(row, key=f"engine.{name}")
    for name in ("pad_to_length**", "pad_bshd_to_minibatch_max", "thd_format"):
        yield needless(f"engine.{name}", PADDED)
    yield needless("engine.entropy_from_logits_*", TILED_HEAD)
    yield needless("engine.use_no_sync_for_gradient_accumulation", "gradients are added up over ranks once per update")
    yield needless("engine.turbo_config.**", "of an engine that engine.strategy does not name")
    yield needless("engine.*_fully_reshardable**", "a checkpoint can be read by another number of ranks")
    yield lacks("engine.use_megatron_fsdp", "use_distributed_optimizer shares states over ranks", False)
    yield changes("engine.dynamic_context_parallel", "context_parallel_size is the same for all rows", False)
    yield needless("engine.max_seqlen_per_dp_cp_rank", "dynamic_context_parallel is off")
    yield changes("engine.router_replay.mode", "experts are those that routers choose", "disabled")
    yield needless("engine.router_replay.**", "engine.router_replay.mode says whether experts are replayed")
    yield changes("engine.qat.enable", "training with quantised weights is not here", False)
    yield needless("engine.qat.**", "engine.qat.enable says whether weights are quantised")


ENGINE_ROWS: tuple[Row, ...] = tuple(_engine_rows())

OPTIMIZER_ROWS: tuple[Row, ...] = (
    to("optim.optimizer", f"{_ARGS}.optim", via=words.adam),
    to("optim.eps", f"{_ARGS}.adam_epsilon", via=words.number),
    needless("optim.optimizer_impl", "one optimizer for all: AdamW of the strategy"),
    needless("optim.total_training_steps", "the program derives it, there as here"),
    needless("optim.zero_indexed_step", "warmup_steps says what the first update has"),
    changes("optim.num_cycles", "a cosine falls once, from its peak to its end", 0.5),
    Row("optim.lr_decay_steps", note="a schedule runs over the whole run", outcome="changes the run", idle=(None,)),
    changes("optim.weight_decay_incr_style", "weight decay is constant", "constant"),
    changes("optim.lr_wsd_**", _WSD, "exponential"),
    lacks("optim.use_checkpoint_opt_param_scheduler", "a resumed run continues its schedule", False),
    needless("optim.use_precision_aware_optimizer", "master weights are fp32"),
    needless("optim.use_layer_wise_distributed_optimizer", "states are shared as use_distributed_optimizer says"),
    needless("optim.muon_**", "of the optimizer muon, which optim.optimizer does not name"),
    *(
        lacks(f"optim.{name}", FP32_STATES, "fp32", "float32")
        for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    ),
)

MODEL_ROWS: tuple[Row, ...] = (
    to("model.tokenizer_path", f"{_MODEL}.tokenizer_path"),
    to("model.custom_chat_template", "global_template", via=words.chat_template),
    changes("model.hf_config_path", "the configuration is read beside the weights"),
    to("model.enable_activation_offload", f"{_MODEL}.enable_activation_offload", needs="fsdp", idle=(False,)),
    summed("model.lora_adapter_path", "lora"),
    to("model.exclude_modules", f"{_MODEL}.lora_target", via=left_out, needs="lora"),
    changes("model.lora.rank", _ADAPTERS, 0),
    needless("model.lora.**", "model.lora.rank says whether there are adapters"),
    needless("model.use_fused_kernels", "log-probs never come from whole logits"),
    to(
        "model.fused_kernel_options.impl_backend",
        f"{_MODEL}.fused_kernel_options.impl_backend",
        via=words.kernel,
    ),
    lacks("model.tiled_mlp.enabled", "recomputation bounds what a layer keeps", False),
    needless("model.tiled_mlp.*", "tiled_mlp.enabled is off"),
    changes("model.mtp.enable_train", "heads are saved as they were: sft_train.mtp_training_mode trains them", False),
    needless("model.mtp.**", "model.mtp.enable_train says whether heads are trained"),
)
