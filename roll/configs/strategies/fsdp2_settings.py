"""`strategy_config` of fsdp2_train and fsdp2_infer: what a rank reads of it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from roll.configs.base import Settings, setting
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import Names
from roll.configs.sections.model import DTYPES
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.model_facts import DIVIDED_EXPERTS


def refused_mixture(model_type: object) -> str:
    """Why the experts of a model cannot be divided, and what to do."""
    return (
        f"experts of models of type {model_type} are not divided. Set it to 1, or use megatron_train and "
        f"megatron_infer where they know the model. Known here: {', '.join(DIVIDED_EXPERTS)}."
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
        "the number of ranks: all of them.",
        ge=ALL,
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

    def shard_size(self, num_ranks: int) -> int:
        """Ranks that hold the model together."""
        return num_ranks if self.fsdp_size == ALL else min(self.fsdp_size, num_ranks)


def saved_facts(worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """Files hold fp32 weights and moments by the parameter's name: any number of ranks reads them, in any dtype.
    Moments of 8 bits are each rank's own."""
    saved = {key: value for key, value in worker.saved_facts.items() if key != "dtype"}
    if worker.training_args.optim != EIGHT_BIT:
        return saved
    ranks = dp_size * worker.model_args.ulysses_size
    size = Fsdp2Settings.model_validate(worker.strategy_config)
    return saved | {"dp_size": ranks, "fsdp_size": size.shard_size(ranks)}
