"""`model_args` of a role: which model, in which numbers."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from roll.configs.base import Settings, ignored, planned, setting
from roll.configs.data import Place

LORA = "LoRA training is off (lora_target is not set)"
ROLE_DECIDES = "the role decides what stands on top of the model (the critic gets a value head)"

DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}
ATTENTION = {"flash_attention_2": "fa2", "flash_attn": "fa2"}


def _renamed(table: dict[str, str]) -> BeforeValidator:
    return BeforeValidator(lambda value: table.get(value, value) if isinstance(value, str) else value)


Dtype = Annotated[Literal["fp32", "bf16", "fp16"], _renamed(DTYPES)]
Attention = Annotated[Literal["auto", "sdpa", "eager", "fa2"] | None, _renamed(ATTENTION)]


class ModelArgs(Settings):
    """`model_args` of a role."""

    model_name_or_path: Place | None = setting(
        None,
        "Directory or hub id of the model. Default: `pretrain`; for the critic `reward_pretrain`, then `pretrain`.",
    )
    dtype: Dtype = setting("bf16", "Number format of weights and forward pass; training keeps fp32 master weights.")
    attn_implementation: Attention = setting(
        None, "Attention kernel. None or auto: torch's own (sdpa), which on a GPU takes its flash kernel."
    )
    disable_gradient_checkpointing: bool = setting(
        False, "True keeps all activations: faster, and more memory. False recomputes them in the backward pass."
    )
    gradient_checkpointing_use_reentrant: bool | None = setting(
        None, "Which of torch's two checkpointing forms to use. None: the non-reentrant one."
    )
    model_config_kwargs: dict[str, Any] = setting({}, "Entries that overwrite the model's own config.json.")
    model_type: str | None = ignored(None, "Kind of head on the model.", ROLE_DECIDES)
    num_labels: int = ignored(1, "Width of that head.", ROLE_DECIDES)
    device_map: str | None = ignored("balanced", "Placement of the layers.", "device_mapping places the role")

    lora_target: str | None = planned(None, "Modules that get LoRA adapters.")
    lora_rank: int | None = ignored(8, "Rank of the LoRA adapters.", LORA)
    lora_alpha: int | None = ignored(None, "Scale of the LoRA adapters.", LORA)
    lora_dropout: float | None = ignored(0.0, "Dropout in the LoRA adapters.", LORA)
    additional_target: str | None = ignored(None, "Modules trained in full beside the adapters.", LORA)
    autocast_adapter_dtype: bool = ignored(True, "Keep adapters in fp32.", LORA)
    adapter_name_or_path: str | None = planned(None, "Adapter to start from.")
    freeze_module_prefix: str | None = setting(
        None, "Parameters whose name begins with this are not trained; several, separated by commas."
    )
    moe_aux_loss_coef: float | None = planned(None, "Weight of the load-balancing loss of mixture models.")
    ulysses_size: int = planned(1, "Sequence parallel size of DeepSpeed Ulysses.")
