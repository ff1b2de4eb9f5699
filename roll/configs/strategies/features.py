"""Features that a strategy may support: what each does, the key that asks for it, and what to do without it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Feature(StrEnum):
    """A feature of strategies. `StrategySpec.supports` holds those of one; its row of `FEATURES` describes it."""

    LORA = "lora"
    LORA_EXPERTS = "lora_experts"
    LORA_SYNC = "lora_sync"
    MOE_AUX_LOSS = "moe_aux_loss"
    ROUTER_REPLAY = "router_replay"
    ROUTE_REPORTS = "route_reports"
    MTP_TRAINING = "mtp_training"
    ACTIVATION_OFFLOAD = "activation_offload"
    SELECTIVE_RECOMPUTE = "selective_recompute"
    TORCH_COMPILE = "torch_compile"
    FUSED_HEAD = "fused_head"
    TEACHER_HIDDEN_STATES = "teacher_hidden_states"
    SEQUENCE_PACKING = "sequence_packing"
    PREFIX_SHARING = "prefix_sharing"
    SEQUENCE_PARALLEL = "sequence_parallel"
    MULTI_DEVICE_WORKER = "multi_device_worker"
    TRANSFORMERS_MODEL = "transformers_model"
    PICTURES = "pictures"
    TWO_WAY_ATTENTION_ON_CPU = "two_way_attention_on_cpu"


@dataclass(frozen=True)
class FeatureRow:
    """One feature, in the texts that a message about it is made of (`feature_problem` of `table.py`).

    - `does`: what a strategy with it does, as a verb in the infinitive.
    - `key`: the key of the role's section that asks for it; "" where no key does.
    - `remedy`: what to do with the key where the strategy lacks it, as an imperative.
    - `uses`: uses of the roles for which it counts.
    """

    does: str
    key: str = ""
    remedy: str = "remove it"
    uses: tuple[str, ...] = ("train", "score")


FEATURES: Mapping[Feature, FeatureRow] = {
    Feature.LORA: FeatureRow(
        "train LoRA adapters",
        "model_args.lora_target",
        "remove lora_target, and all weights are trained",
        uses=("train",),
    ),
    Feature.LORA_EXPERTS: FeatureRow(
        "train LoRA adapters of a mixture's experts", "model_args.lora_target", uses=("train",)
    ),
    Feature.LORA_SYNC: FeatureRow("send LoRA adapters apart from the weights", uses=("train",)),
    Feature.MOE_AUX_LOSS: FeatureRow("add a load-balancing loss", "model_args.moe_aux_loss_coef", uses=("train",)),
    Feature.ROUTER_REPLAY: FeatureRow(
        "train with experts that were chosen before", "router_replay.mode", "set it to disable", uses=("train",)
    ),
    Feature.ROUTE_REPORTS: FeatureRow("report which experts its tokens went to", uses=("generate",)),
    Feature.MTP_TRAINING: FeatureRow("train MTP heads", "mtp_training_mode", "set it to disabled", uses=("train",)),
    Feature.ACTIVATION_OFFLOAD: FeatureRow(
        "move activations to host memory", "model_args.enable_activation_offload", uses=("train",)
    ),
    Feature.SELECTIVE_RECOMPUTE: FeatureRow(
        "keep matrix products and compute the rest again",
        "model_args.recompute_granularity",
        "remove it (megatron_train has strategy_config.recompute_granularity)",
        uses=("train",),
    ),
    Feature.TORCH_COMPILE: FeatureRow("compile its model", "use_torch_compile"),
    Feature.FUSED_HEAD: FeatureRow(
        "compute log-probs by a kernel from hidden states",
        "model_args.fused_kernel_options.impl_backend",
        "set it to torch",
    ),
    Feature.TEACHER_HIDDEN_STATES: FeatureRow("hand over hidden states and its head", uses=("score",)),
    Feature.SEQUENCE_PACKING: FeatureRow("pack rows", "use_sequence_packing", "set it to false"),
    Feature.PREFIX_SHARING: FeatureRow(
        "compute rows that begin alike as a tree", "use_prefix_sharing", "set it to off"
    ),
    Feature.SEQUENCE_PARALLEL: FeatureRow("divide sequences by ulysses_size", "model_args.ulysses_size", "set it to 1"),
    Feature.MULTI_DEVICE_WORKER: FeatureRow(
        "use several devices for one worker", "num_gpus_per_worker", uses=("train", "score", "generate")
    ),
    Feature.TRANSFORMERS_MODEL: FeatureRow("run the model of transformers", uses=("train", "score", "generate")),
    Feature.PICTURES: FeatureRow(
        "show pictures to its model", remedy="leave such rows out", uses=("train", "score", "generate")
    ),
    Feature.TWO_WAY_ATTENTION_ON_CPU: FeatureRow(
        "let tokens of a picture attend to later ones on a CPU", uses=("train", "score", "generate")
    ),
}
"""A new feature is a member above, a row here, and the strategies that have it in `table.py`."""
