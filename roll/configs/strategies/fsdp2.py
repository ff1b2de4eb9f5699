"""`strategy_config` of fsdp2_train and fsdp2_infer, and what their specs are asked."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError, model_validator

from roll.configs.base import Settings, setting
from roll.configs.plan.layout import ParallelSizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import Names
from roll.configs.sections.model import DTYPES
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies import packing, sequence_parallel
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import text_part
from roll.configs.tables.families import EXPERTS

# `tensor_parallel_size` of the fsdp2 strategies: which models can be divided, and what does not go with it.

PLANNED: tuple[str, ...] = (
    *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite"),
    *("helium", "llama", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3", "starcoder2"),
)
"""Values of model_type whose plan in transformers was tried: tests/parity/strategies/test_tensor_parallel.py."""
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
_EIGHT_BIT_OR_MUON = (EIGHT_BIT, "muon")


def refused_model(model_type: object) -> str:
    """Why a model cannot be divided, and what to do."""
    return (
        f"models of type {model_type} are not divided. Set it to 1, or use megatron_train and megatron_infer where "
        f"they know the model. Known here: {', '.join(PLANNED)}."
    )


def tensor_problems(choice: Choice, size: int, on_host: bool) -> Iterator[Problem]:
    """Yield the other settings of the role that conflict with `tensor_parallel_size: size`. `on_host`:
    offload_policy."""
    if size == 1:
        return
    worker, name, key = choice.worker, choice.role.name, f"{choice.at}.tensor_parallel_size"
    args = worker.model_args
    reasons = {
        f"{name}.model_args.ulysses_size": args.ulysses_size > 1
        and "sequence parallel needs whole layers on every rank. Use one of the two",
        f"{name}.model_args.lora_target": args.has_lora and "adapters are not divided. Set it to 1",
        f"{name}.model_args.enable_activation_offload": args.enable_activation_offload
        and "activations that are divided among ranks cannot be moved to host memory. Use gradient checkpointing, or "
        "set it to 1",
        f"{name}.use_torch_compile": worker.use_torch_compile
        and "a divided model cannot be compiled. Use one of the two",
        f"{choice.at}.offload_policy": on_host
        and "ranks cannot exchange what is in host memory. Use param_offload and optimizer_offload",
    }
    yield from _refused_beside(choice, key, size, reasons, "which takes whole matrices")


def _refused_beside(
    choice: Choice, key: str, size: int, reasons: Mapping[str, str | bool], why_no_optimizer: str
) -> Iterator[Problem]:
    """The settings that do not go with a size, by their keys: why, or False where they are not so."""
    for other, why in reasons.items():
        if why:
            yield Problem(f"{key}: {size} with {other}: {why}.", (key, other))
    optim = choice.worker.training_args.optim
    if choice.role.learns and optim in _EIGHT_BIT_OR_MUON:
        other = f"{choice.role.name}.training_args.optim"
        text = f"{key}: {size} with {other}: {optim}, {why_no_optimizer}. Use adamw_torch."
        yield Problem(text, (key, other))


def tensor_model_problems(choice: Choice, model: Mapping[str, Any], size: int) -> Iterator[Problem]:
    """Checks tensor parallelism against the config.json of the model: its type must be known, and its sizes
    divisible."""
    if size == 1:
        return
    key, model_key = f"{choice.at}.tensor_parallel_size", f"{choice.role.name}.model_args.model_name_or_path"
    if model.get("model_type") not in PLANNED:
        yield Problem(f"{key}: {refused_model(model.get('model_type'))}", (key, model_key))
        return
    sizes = {name: model[name] for name in _DIVIDED if type(model.get(name)) is int}
    for name, number in sizes.items():
        if number % size:
            fitting = ", ".join(str(n) for n in range(1, number + 1) if all(each % n == 0 for each in sizes.values()))
            path = choice.worker.model_args.model_name_or_path
            text = f"{key}: {size} does not divide {name} {number} of {path}. Sizes that do: {fitting}."
            yield Problem(text, (key, model_key))
            return


# `ep_size` of the fsdp2 strategies: which mixtures can be divided, and what does not go with it.

DIVIDED_EXPERTS: tuple[str, ...] = (
    *("afmoe", "axk1", "axk2", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe"),
    *("exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granitemoe"),
    *("granitemoe_swa", "granitemoehybrid", "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "hy_v4", "jamba"),
    *("laguna", "lfm2_moe", "mellum", "mimo_v2_flash", "minimax", "minimax_m2", "mixtral", "nemotron_h", "olmoe"),
    *("phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "solar_open"),
)
"""Values of model_type whose divided experts were tried: tests/parity/strategies/test_expert_parallel.py."""


def refused_mixture(model_type: object) -> str:
    """Why the experts of a model cannot be divided, and what to do."""
    return (
        f"experts of models of type {model_type} are not divided. Set it to 1, or use megatron_train and "
        f"megatron_infer where they know the model. Known here: {', '.join(DIVIDED_EXPERTS)}."
    )


def expert_problems(choice: Choice, settings: "Fsdp2Settings") -> Iterator[Problem]:
    """Yield the settings of the role that conflict with `ep_size`."""
    size, worker, name = settings.ep_size, choice.worker, choice.role.name
    if size == 1:
        return
    key, ranks, together = f"{choice.at}.ep_size", worker.num_workers, shard_size(settings, worker.num_workers)
    is_right = settings.tensor_parallel_size == 1 and together > 0 and ranks % together == 0
    if is_right and together % size:
        fitting = [n for n in range(1, together + 1) if together % n == 0]
        yield Problem(
            f"{key}: {size} does not divide the {together} ranks (of {ranks}) that hold the model together. Use one of "
            f"{fitting}.",
            (key, f"{choice.at}.fsdp_size", f"{name}.device_mapping", f"{name}.world_size"),
        )
    reasons = {
        f"{choice.at}.tensor_parallel_size": settings.tensor_parallel_size > 1
        and "tensor parallel does not support mixtures. Use one of the two",
        f"{name}.use_torch_compile": worker.use_torch_compile
        and "the number of exchanged tokens is known only at run time. Use one of the two",
        f"{name}.model_args.additional_target": bool(worker.model_args.additional_target)
        and "copies of layers were never tried with divided experts. Remove one of the two",
    }
    yield from _refused_beside(choice, key, size, reasons, "which was not tried on divided experts")


def expert_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks expert parallelism against the config.json of the model: its type must be known, and its number of
    experts divisible."""
    size, text = _settings(choice.worker).ep_size, text_part(model)
    if size == 1:
        return
    key, model_key = f"{choice.at}.ep_size", f"{choice.role.name}.model_args.model_name_or_path"
    if text.get("model_type") not in DIVIDED_EXPERTS:
        yield Problem(f"{key}: {refused_mixture(text.get('model_type'))}", (key, model_key))
        return
    number = next((text[each] for each in EXPERTS if type(text.get(each)) is int), size)
    if number % size:
        fitting = ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
        path = choice.worker.model_args.model_name_or_path
        yield Problem(
            f"{key}: {size} does not divide the {number} experts of {path}. Sizes that do: {fitting}.", (key, model_key)
        )


NumberFormat = Annotated[
    Literal["fp32", "bf16"],
    BeforeValidator(lambda value: DTYPES.get(value, value) if isinstance(value, str) else value),
]
ALL = -1


class WrapPolicy(Settings):
    """`wrap_policy`: which modules are gathered as one. The model's embedding and head are, too, unless they are one
    weight."""

    transformer_layer_cls_to_wrap: Names = setting(
        (), "Class names of modules. Default: the model's blocks, as transformers names them."
    )
    min_num_params: int = setting(
        0, "Besides, modules that have so many parameters outside of others that are gathered as one. 0: none.", ge=0
    )


class Fsdp2Settings(Settings):
    """`strategy_config` of the fsdp2 strategies."""

    @model_validator(mode="before")
    @classmethod
    def _number_formats(cls, tree: Any) -> Any:
        """verl has them in a section mixed_precision."""
        if not isinstance(tree, dict) or not isinstance(tree.get("mixed_precision"), dict):
            return tree
        return {key: value for key, value in tree.items() if key != "mixed_precision"} | tree["mixed_precision"]

    fsdp_size: int = setting(
        ALL,
        "Number of ranks that hold the model together; further ranks hold copies (hybrid sharding). -1, or at least "
        "the number of ranks: all of them. With tensor_parallel_size it counts groups of that many ranks.",
        ge=ALL,
    )
    tensor_parallel_size: int = setting(
        1,
        "Neighbouring ranks that take the same rows and divide every matrix of the model's blocks among them. They "
        "count as one data-parallel rank. For models of the types in docs/trainers.md.",
        ge=1,
    )
    ep_size: int = setting(
        1,
        "Neighbouring ranks that divide the experts of a mixture among them, whole ones each; tokens travel to their "
        "experts and back. They stay data-parallel ranks, with rows of their own. For models of the types in "
        "docs/trainers.md.",
        ge=1,
    )
    param_dtype: NumberFormat | None = setting(
        None,
        "Says the same as model_args.dtype, and must not contradict it. It may stand in a section mixed_precision, as "
        "reduce_dtype may.",
    )
    reduce_dtype: NumberFormat = setting("fp32", "Number format in which ranks sum gradients of a model in bf16.")
    reshard_after_forward: bool = setting(
        True,
        "Gathered weights of a block are dropped after its forward pass, and gathered again for its backward pass. "
        "False: less traffic, and the whole model in memory from one to the other.",
    )
    forward_prefetch: bool = setting(
        False, "Gather the next block before this one computes; false: when the CPU reaches it."
    )
    wrap_policy: WrapPolicy = setting({}, "Which modules are gathered as one.")
    param_offload: bool = setting(False, "Weights wait in host memory while the role does nothing.")
    optimizer_offload: bool = setting(False, "The optimizer's states wait in host memory, except during its step.")
    offload_policy: bool = setting(
        False, "Weights, gradients and optimizer stay in host memory, where the step is computed; blocks visit the GPU."
    )


def num_groups(settings: Fsdp2Settings, num_ranks: int) -> int:
    """Number of groups of ranks that divide matrices among them."""
    return max(1, num_ranks // settings.tensor_parallel_size)


def shard_size(settings: Fsdp2Settings, num_ranks: int) -> int:
    """Ranks, or groups that divide matrices, that hold the model together."""
    groups = num_groups(settings, num_ranks)
    return groups if settings.fsdp_size == ALL else min(settings.fsdp_size, groups)


def sizes(worker: WorkerConfig) -> ParallelSizes:
    tensor, sequence = _settings(worker).tensor_parallel_size, worker.model_args.ulysses_size
    data = max(1, worker.num_workers // (tensor * sequence))
    return ParallelSizes(data, tensor, sequence=sequence, whole_head=tensor > 1)


def _settings(worker: WorkerConfig) -> Fsdp2Settings:
    """The defaults where the settings are wrong, which is told with them."""
    try:
        return Fsdp2Settings.model_validate(worker.strategy_config)
    except ValidationError:
        return Fsdp2Settings()


def problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems that the class of the strategy's settings cannot see by itself."""
    worker, name = choice.worker, choice.role.name
    yield from sequence_parallel.ranks_problems(choice)
    if worker.model_args.dtype == "fp16":
        key = f"{name}.model_args.dtype"
        yield Problem(f"{key}: fp16 with {worker.strategy_name}, without loss scaling. Use bf16, or fp32.", (key,))
    try:
        settings = Fsdp2Settings.model_validate(worker.strategy_config)
    except ValidationError:
        return  # told with the settings
    size, ranks, tensor = settings.fsdp_size, worker.num_workers, settings.tensor_parallel_size
    groups = num_groups(settings, ranks)
    if ranks % tensor:
        fitting = [n for n in range(1, ranks + 1) if ranks % n == 0]
        key = f"{choice.at}.tensor_parallel_size"
        text = f"{key}: {tensor} does not divide the role's {ranks} ranks. Use one of {fitting}."
        yield Problem(text, (key, f"{name}.device_mapping", f"{name}.world_size"))
    elif size == 0 or groups % shard_size(settings, ranks):
        fitting = [n for n in range(1, groups + 1) if groups % n == 0]
        key, what = f"{choice.at}.fsdp_size", f"{groups} groups of {tensor} ranks" if tensor > 1 else f"{ranks} ranks"
        text = f"{key}: {size} does not divide the role's {what}. Use -1, or one of {fitting}."
        yield Problem(text, (key, f"{name}.device_mapping", f"{name}.world_size"))
    yield from tensor_problems(choice, tensor, settings.offload_policy)
    yield from expert_problems(choice, settings)
    dtype = settings.param_dtype
    if dtype not in (None, worker.model_args.dtype):
        key, other = f"{choice.at}.param_dtype", f"{name}.model_args.dtype"
        yield Problem(f"{key}: {dtype} contradicts {other}: {worker.model_args.dtype}. Keep one.", (key, other))
    if worker.model_args.dtype == "fp32" and settings.reduce_dtype != "fp32" and choice.role.learns:
        key, other = f"{choice.at}.reduce_dtype", f"{name}.model_args.dtype"
        text = f"{key}: gradients of an fp32 model are always summed in fp32. Remove it, or set {other} to bf16."
        yield Problem(text, (key, other))
    for key in ("param_offload", "optimizer_offload"):
        if settings.offload_policy and getattr(settings, key):
            at = f"{choice.at}.{key}"
            text = f"{at}: with offload_policy everything stays in host memory anyway. Remove one of them."
            yield Problem(text, (at, f"{choice.at}.offload_policy"))
    if choice.role.learns and worker.training_args.optim == "muon" and settings.offload_policy:
        key, at = f"{name}.training_args.optim", f"{choice.at}.offload_policy"
        text = f"{key}: muon gathers matrices between the ranks, and offload_policy keeps them in host memory."
        yield Problem(f"{text} Use param_offload and optimizer_offload, or adamw_torch.", (key, at))
    if choice.role.learns and worker.training_args.optim == EIGHT_BIT and settings.offload_policy:
        key, at = f"{name}.training_args.optim", f"{choice.at}.offload_policy"
        text = f"{key}: {EIGHT_BIT} computes where the weights are, and offload_policy keeps them in host memory."
        yield Problem(f"{text} Use param_offload and optimizer_offload, or adamw_torch.", (key, at))
    if settings.optimizer_offload and not choice.role.learns:
        at = f"{choice.at}.optimizer_offload"
        yield Problem(f"{at}: {name} does not learn and does not use it. Remove it.", (at,))


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks a role against the config.json of its model."""
    yield from packing.model_problems(choice, model)
    yield from tensor_model_problems(choice, model, _settings(choice.worker).tensor_parallel_size)
    yield from expert_model_problems(choice, model)


def warnings(choice: Choice) -> Iterator[str]:
    if "reduce_dtype" in choice.worker.strategy_config and not choice.role.learns:
        yield f"{choice.at}.reduce_dtype does nothing: {choice.role.name} does not learn."


def saved_facts(facts: dict[str, object], worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """Files hold fp32 weights and moments by the parameter's name: any number of ranks reads them, in any dtype.
    Moments of 8 bits are each rank's own."""
    saved = {key: value for key, value in facts.items() if key != "dtype"}
    if worker.training_args.optim != EIGHT_BIT:
        return saved
    ranks = dp_size * worker.model_args.ulysses_size
    size = Fsdp2Settings.model_validate(worker.strategy_config)
    return saved | {"dp_size": ranks, "fsdp_size": shard_size(size, ranks)}
