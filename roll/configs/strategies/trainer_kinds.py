"""What the settings of DeepSpeed and Megatron that are handed on may be. Their own classes, which a dry run does not
import, say the same: a test holds this against the installed ones."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.value_kinds import Kinds, kinds_of, misfits

_DEEPSPEED: Mapping[str, Mapping[str, str]] = {
    "": {
        "dict": "zero_optimization bf16 fp16 activation_checkpointing comms_logger flops_profiler aio tensor_parallel",
        "int": "steps_per_print",
        "float": "gradient_predivide_factor",
        "bool": """prescale_gradients disable_allgather dump_state wall_clock_breakdown
            memory_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer""",
        "str": "communication_data_type",
    },
    "zero_optimization": {
        "int": """reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size
            stage3_param_persistence_threshold stage3_model_persistence_threshold stage3_max_live_parameters
            stage3_max_reuse_distance zero_hpz_partition_size""",
        "bool": """contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm
            load_from_fp32_weights elastic_checkpoint stage3_gather_16bit_weights_on_model_save
            stage3_use_all_reduce_for_fetch_params ignore_unused_parameters legacy_stage1 round_robin_gradients
            zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear
            pipeline_loading_checkpoint override_module_apply""",
        "dict": "offload_param offload_optimizer",
    },
    "bf16": {"bool": "immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"},
    "zero_optimization.offload_param": {
        "int": "buffer_count buffer_size max_in_cpu",
        "bool": "pin_memory",
        "str": "device nvme_path",
    },
    "zero_optimization.offload_optimizer": {
        "int": "buffer_count",
        "bool": "pin_memory pipeline_read pipeline_write fast_init super_offload",
        "str": "device nvme_path",
        "float": "ratio cpuadam_cores_perc",
    },
}
_MEGATRON: Mapping[str, str] = {
    "float": "attention_dropout hidden_dropout",
    "bool": """attention_softmax_in_fp32 fp32_residual_connection apply_query_key_layer_scaling
        disable_bf16_reduced_precision_matmul deterministic_mode batch_invariant_mode persist_layer_norm
        memory_efficient_layer_norm use_fused_weighted_squared_relu distribute_saved_activations
        deallocate_pipeline_outputs moe_permute_fusion moe_router_fusion tp_comm_overlap tp_comm_overlap_ag
        tp_comm_overlap_rs tp_comm_overlap_rs_dgrad tp_comm_bulk_wgrad tp_comm_bulk_dgrad""",
    "int": "microbatch_group_size_per_vp_stage",
    "str | list[str]": "cp_comm_type",
    "Literal['fp32', 'fp64']": "moe_router_dtype",
}
_SHARES = ("ratio", "cpuadam_cores_perc", "attention_dropout", "hidden_dropout")


def _table(words: Mapping[str, str]) -> dict[str, Kinds]:
    return {key: _kinds(annotation, key) for annotation, keys in words.items() for key in keys.split()}


def _kinds(annotation: str, key: str) -> Kinds:
    kinds = kinds_of(annotation)
    assert kinds is not None
    return Kinds(kinds.names, kinds.choices, least=0, most=1 if key in _SHARES else kinds.most)


DEEPSPEED_KINDS = {section: _table(words) for section, words in _DEEPSPEED.items()}
MEGATRON_KINDS = _table(_MEGATRON)


def deepspeed_misfits(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Values of another type than DeepSpeed's; `auto` is filled in later."""
    for section, kinds in DEEPSPEED_KINDS.items():
        found: Any = config
        for key in filter(None, section.split(".")):
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            given = {key: value for key, value in found.items() if value != "auto"}
            yield from misfits(".".join(filter(None, (at, section))), given, kinds, integral=True)


def megatron_misfits(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Values of another type than TransformerConfig's."""
    yield from misfits(at, config, MEGATRON_KINDS)
