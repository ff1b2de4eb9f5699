"""Types of the values that an engine takes, read from annotations as its own source has them, and what does not fit."""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.problems import Problem
from roll.utils.text import show

LARGEST_INT = 2**63 - 1
KIND_NAMES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
}
_NAMES = {"List": "list", "tuple": "list", "Tuple": "list", "set": "list", "Dict": "dict", "Path": "str"} | {
    name: name for name in KIND_NAMES
}
_ANNOTATED = ("Annotated", "A")  # SGLang's short name


@dataclass(frozen=True)
class Kinds:
    """Kinds of value that a setting may have: types by name, and single texts. A range holds for its numbers."""

    names: frozenset[str]
    choices: tuple[Any, ...] = ()
    least: float = -LARGEST_INT
    most: float = LARGEST_INT

    def __or__(self, other: "Kinds") -> "Kinds":
        return Kinds(self.names | other.names, self.choices + other.choices)

    def takes(self, value: Any, integral: bool) -> bool:
        """`integral`: 5e8, which YAML reads as a fraction, is as good as 500000000."""
        if isinstance(value, bool):
            return "bool" in self.names
        if isinstance(value, int) or (integral and isinstance(value, float) and value.is_integer()):
            return bool(self.names & {"int", "float"}) or value in self.choices
        if isinstance(value, float):
            return "float" in self.names and math.isfinite(value)
        if isinstance(value, str):
            return "str" in self.names or value in self.choices
        return ("dict" if isinstance(value, Mapping) else "list") in self.names

    @property
    def text(self) -> str:
        names = [KIND_NAMES[name] for name in KIND_NAMES if name in self.names]
        return " or ".join([*names, *([f"one of {', '.join(map(str, self.choices))}"] if self.choices else [])])


def kinds_of(annotation: ast.expr | str) -> Kinds | None:
    """The kinds of an annotation; None where it names a type that only the engine knows.

    Example: `int | None` is a whole number; `Literal["a", "b"]` one of a, b; `CacheDType` None.
    """
    match ast.parse(annotation, mode="eval").body if isinstance(annotation, str) else annotation:
        case ast.Name(id=name) if name in _NAMES:
            return Kinds(frozenset({_NAMES[name]}))
        case ast.Constant(value=None):
            return Kinds(frozenset())
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right])
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return kinds_of(inner)
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=members)):
            return _union(members)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[inner, *_])) if name in _ANNOTATED:
            return kinds_of(inner)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return Kinds(frozenset(), tuple(item.value for item in members if isinstance(item, ast.Constant)))
        case ast.Subscript(value=ast.Name(id=name)) if name in _NAMES:
            return Kinds(frozenset({_NAMES[name]}))
    return None


def _union(members: list[ast.expr]) -> Kinds | None:
    union = Kinds(frozenset())
    for member in members:
        kinds = kinds_of(member)
        if kinds is None:
            return None
        union = union | kinds
    return union


def class_annotations(tree: ast.Module, names: tuple[str, ...] = ()) -> dict[str, ast.expr]:
    """Annotated names of the classes of a module (all, or the named ones), without importing it."""
    return {
        statement.target.id: statement.annotation
        for node in tree.body
        if isinstance(node, ast.ClassDef) and (not names or node.name in names)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def misfits(
    at: str, config: Mapping[str, Any], kinds: Mapping[str, Kinds], integral: bool = False
) -> Iterator[Problem]:
    """Values of another type or range than their key takes. null, and keys without kinds, are left to the engine."""
    for key, value in config.items():
        allowed = kinds.get(key)
        if value is None or allowed is None or not (allowed.names or allowed.choices):
            continue
        path = f"{at}.{key}"
        if not allowed.takes(value, integral):
            yield Problem(f"{path}: {show(value)} must be {allowed.text}.", (path,))
        elif isinstance(value, int | float) and not allowed.least <= value <= allowed.most:
            yield Problem(f"{path}: {show(value)} must be between {allowed.least:g} and {allowed.most:g}.", (path,))


# What the settings of DeepSpeed and Megatron that are handed on may be. Their own classes, which a dry run does not
# import, say the same: a test holds this against the installed ones.

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


def _table(keys_by_kind: Mapping[str, str]) -> dict[str, Kinds]:
    return {key: _kinds(annotation, key) for annotation, keys in keys_by_kind.items() for key in keys.split()}


def _kinds(annotation: str, key: str) -> Kinds:
    kinds = kinds_of(annotation)
    assert kinds is not None
    return Kinds(kinds.names, kinds.choices, least=0, most=1 if key in _SHARES else kinds.most)


DEEPSPEED_KINDS = {section: _table(words) for section, words in _DEEPSPEED.items()}
MEGATRON_KINDS = _table(_MEGATRON)


def deepspeed_misfits(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Values of another type than DeepSpeed's; `auto` is filled in later."""
    for section, kinds in DEEPSPEED_KINDS.items():
        node: Any = config
        for key in filter(None, section.split(".")):
            node = node.get(key) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            values = {key: value for key, value in node.items() if value != "auto"}
            yield from misfits(".".join(filter(None, (at, section))), values, kinds, integral=True)


def megatron_misfits(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Values of another type than TransformerConfig's."""
    yield from misfits(at, config, MEGATRON_KINDS)
