"""`model_args` of a role: which model, in which numbers."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.data import Place

DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}
HUGGINGFACE, MODELSCOPE = "HUGGINGFACE_HUB", "MODELSCOPE"
ATTENTION = {"flash_attention_2": "fa2", "flash_attn": "fa2"}


def _renamed(table: dict[str, str]) -> BeforeValidator:
    return BeforeValidator(lambda value: table.get(value, value) if isinstance(value, str) else value)


Dtype = Annotated[Literal["fp32", "bf16", "fp16"], _renamed(DTYPES)]
Attention = Annotated[Literal["auto", "sdpa", "eager", "fa2"] | None, _renamed(ATTENTION)]


Hub = Annotated[
    Literal["HUGGINGFACE_HUB", "MODELSCOPE"] | None,
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]


class ModelArgs(Settings):
    """`model_args` of a role."""

    model_name_or_path: Place | None = setting(
        None,
        "Directory or hub id of the model. Default: `pretrain`; for the critic `reward_pretrain`, then `pretrain`.",
    )
    tokenizer_path: Place | None = setting(
        None, "Directory or hub id of the tokenizer. Default: the model's; actor_infer's is actor_train's."
    )
    download_type: Hub = setting(None, "Hub of that id. Default: the run's model_download_type.")
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

    freeze_module_prefix: str | None = setting(
        None, "Parameters whose name begins with this are not trained; several, separated by commas."
    )

    @property
    def tokenizer_name(self) -> str:
        """Where the role's tokenizer is."""
        return str(self.tokenizer_path or self.model_name_or_path)
