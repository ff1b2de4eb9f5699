"""`strategy_config` of fsdp2_train and fsdp2_infer, and what their specs are asked."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationError

from roll.configs.base import Settings, setting
from roll.configs.cluster import WorkerConfig
from roll.configs.data import Names
from roll.configs.model import DTYPES
from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice

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


class MixedPrecision(Settings):
    """`mixed_precision` of a model in bf16."""

    param_dtype: NumberFormat | None = setting(None, "Says the same as model_args.dtype, and must not contradict it.")
    reduce_dtype: NumberFormat = setting("fp32", "Number format in which ranks sum gradients.")


class Fsdp2Settings(Settings):
    """`strategy_config` of the fsdp2 strategies."""

    fsdp_size: int = setting(
        ALL, "Ranks that hold the model together; every so many hold a copy (hybrid sharding). -1: all ranks.", ge=ALL
    )
    reshard_after_forward: bool = setting(
        True,
        "Gathered weights of a block are dropped after its forward pass, and gathered again for its backward pass. "
        "False: less traffic, and the whole model in memory from one to the other.",
    )
    forward_prefetch: bool = setting(
        False, "The next block is gathered before this one computes; otherwise as the CPU comes by."
    )
    wrap_policy: WrapPolicy = setting({}, "Which modules are gathered as one.")
    mixed_precision: MixedPrecision = setting({}, "Number formats beside model_args.dtype.")
    param_offload: bool = setting(False, "Weights wait in host memory while the role does nothing.")
    optimizer_offload: bool = setting(False, "The optimizer's states wait in host memory but for its step.")
    offload_policy: bool = setting(
        False, "Weights, gradients and optimizer stay in host memory, where the step is computed; blocks visit the GPU."
    )


def shard_size(settings: Fsdp2Settings, num_ranks: int) -> int:
    """Ranks that hold the model together."""
    return num_ranks if settings.fsdp_size == ALL else settings.fsdp_size


def problems(choice: Choice) -> Iterator[Problem]:
    """What the class of its settings cannot know."""
    worker, name = choice.worker, choice.role.name
    if worker.model_args.dtype == "fp16":
        key = f"{name}.model_args.dtype"
        yield Problem(f"{key}: fp16 with {worker.strategy_name}, which scales no loss. Use bf16, or fp32.", (key,))
    try:
        settings = Fsdp2Settings.model_validate(worker.strategy_config)
    except ValidationError:
        return  # told with the settings
    size, ranks = settings.fsdp_size, worker.num_workers
    if size == 0 or ranks % shard_size(settings, ranks):
        fitting = [n for n in range(1, ranks + 1) if ranks % n == 0]
        key = f"{choice.at}.fsdp_size"
        text = f"{key}: {size} does not divide the role's {ranks} ranks. Use -1, or one of {fitting}."
        yield Problem(text, (key, f"{name}.device_mapping", f"{name}.world_size"))
    dtype = settings.mixed_precision.param_dtype
    if dtype not in (None, worker.model_args.dtype):
        key, other = f"{choice.at}.mixed_precision.param_dtype", f"{name}.model_args.dtype"
        yield Problem(f"{key}: {dtype} contradicts {other}: {worker.model_args.dtype}. Keep one.", (key, other))
    if worker.model_args.dtype == "fp32" and settings.mixed_precision.reduce_dtype != "fp32" and choice.role.learns:
        key, other = f"{choice.at}.mixed_precision.reduce_dtype", f"{name}.model_args.dtype"
        text = f"{key}: gradients of a model in fp32 are summed in fp32. Remove it, or set {other} to bf16."
        yield Problem(text, (key, other))
    for key in ("param_offload", "optimizer_offload"):
        if settings.offload_policy and getattr(settings, key):
            at = f"{choice.at}.{key}"
            text = f"{at}: with offload_policy all of it is in host memory for good. Remove one of them."
            yield Problem(text, (at, f"{choice.at}.offload_policy"))
    of_training = {
        "optimizer_offload": settings.optimizer_offload,
        "mixed_precision.reduce_dtype": settings.mixed_precision.reduce_dtype != "fp32",
    }
    for key, is_asked_for in of_training.items():
        if is_asked_for and not choice.role.learns:
            at = f"{choice.at}.{key}"
            yield Problem(f"{at}: {name} does not learn, and has no use for it. Remove it.", (at,))


def saved_facts(facts: dict[str, object], worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """Files hold fp32 weights and moments by the parameter's name: any number of ranks reads them, in any dtype."""
    return {key: value for key, value in facts.items() if key != "dtype"}
