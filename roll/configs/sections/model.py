"""`model_args` of a role: which model, in which numbers."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.sections.data import Names, Place
from roll.utils.files import is_hub_id

DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}
Head = Literal["lm", "value", "sequence", "reward"]  # what stands on a model
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


ALL_LINEAR = "all-linear"  # of lora_target: every linear layer but the head
Recomputed = Literal["nothing", "full", "selective"]
LOGITS_PER_CHUNK = 2**23  # of some columns of the vocabulary: a small tile is as fast, and stays in a CPU's cache
LOGITS_PER_CHUNK_ON_GPUS = 2**26  # the same on a GPU: each tile costs about 20 launches, whatever its size
LOGITS_PER_CHUNK_OF_SHARES = 2**26  # of some tokens: each costs a pass over the head's gradient


class FusedKernelOptions(Settings):
    """`fused_kernel_options`: how log-probs come from hidden states. The logits of all tokens never exist at once."""

    logits_per_chunk: int | None = setting(
        None,
        "Logits that exist at once, of 4 bytes each and up to four times over. Fewer: less memory, and smaller matrix "
        "products; the same numbers. Default: 8,388,608 (2^23); on GPUs and with the megatron strategies 2^26.",
        ge=1,
    )
    impl_backend: Literal["torch", "cut_cross_entropy", "liger"] = setting(
        "torch",
        "Who computes log-probs where nothing else is asked for and the temperature is 1: torch, or on GPUs the "
        "kernels of the package cut-cross-entropy. liger is refused, since its gradients are wrong for this.",
    )


class ModelArgs(Settings):
    """`model_args` of a role."""

    model_name_or_path: Place | None = setting(
        None,
        "Directory, GGUF file or hub id of the model. Default: `pretrain`; for the critic `reward_pretrain`, then "
        "`pretrain`.",
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
    recompute_granularity: Literal["full", "selective"] = setting(
        "full",
        "With deepspeed_train and fsdp2_train: what gradient checkpointing computes again. full: whole blocks, from "
        "their inputs. selective: all but matrix products and attention, whose results are kept; faster, and about "
        "half the memory of keeping everything. With use_torch_compile the compiler chooses, by the same rule. "
        "megatron_train has strategy_config.recompute_granularity. See docs/memory.md.",
    )
    enable_activation_offload: bool = setting(
        False,
        "With deepspeed_train and fsdp2_train: what the forward pass keeps for the backward pass waits in host memory, "
        "pinned on a GPU; with gradient checkpointing the inputs of the blocks. See docs/trainers.md.",
    )
    ulysses_size: int = setting(
        1,
        "With deepspeed and fsdp2: so many neighbouring ranks take the same rows, each a part of every sequence, in "
        "attention a part of the heads (DeepSpeed Ulysses). Rows are packed, and batches are counted by ranks / "
        "ulysses_size. See docs/trainers.md.",
        ge=1,
    )
    model_config_kwargs: dict[str, Any] = setting({}, "Entries that overwrite the model's own config.json.")

    fused_kernel_options: FusedKernelOptions = setting({}, "How log-probs come from hidden states.")

    moe_aux_loss_coef: float | None = setting(
        None,
        "Weight of the load-balancing loss of a mixture model in training. For every layer with experts, E x the sum "
        "over its E experts of (share of the choices that fell on it) x (mean probability of it), 1 where tokens are "
        "spread evenly; summed over the layers, taken within a micro batch, mean over the tokens of the update. One "
        "definition for all trainers, that of Megatron's moe_aux_loss_coeff. Hugging Face's router_aux_loss_coef "
        "weighs a loss that multiplies shares and probabilities after it has averaged them over all layers, and that "
        "is num_experts_per_tok where tokens are spread evenly: with one layer of experts, its coefficient x "
        "num_experts_per_tok is this one. Default: none.",
        ge=0,
    )

    freeze_module_prefix: str | None = setting(
        None,
        "Parameters whose name begins with this are not trained, and get no adapters; several, separated by commas.",
    )

    lora_target: Names = setting(
        (),
        "Linear layers that get LoRA adapters, which are trained instead of the weights: last parts of their names "
        "(q_proj, v_proj), longer ones (layers.0.mlp.up_proj), or all-linear for every one but the head. See "
        "docs/lora.md.",
    )
    lora_rank: int = setting(8, "With lora_target: rank of the adapters.", ge=1)
    lora_alpha: int | None = setting(
        None,
        "With lora_target: what the adapters add is multiplied by lora_alpha / lora_rank. Default: 2 x lora_rank.",
        ge=1,
    )
    use_rslora: bool = setting(False, "With lora_target: it is multiplied by lora_alpha / sqrt(lora_rank) instead.")
    lora_dropout: float = setting(
        0.0,
        "With lora_target: share of the adapters' inputs that is left out in training, never in scoring.",
        ge=0,
        lt=1,
    )
    additional_target: Names = setting(
        (), "With lora_target: modules that are trained in full beside the adapters, such as lm_head or embed_tokens."
    )
    adapter_name_or_path: Place | None = setting(
        None,
        "With lora_target: directory (as peft writes it) or hub id of the adapters to start from. Default: new ones, "
        "which add 0. The keys above must be those it was made with.",
    )

    @property
    def recomputed(self) -> Recomputed:
        """Return what a trainer on transformers computes again in its backward pass."""
        return "nothing" if self.disable_gradient_checkpointing else self.recompute_granularity

    @property
    def is_on_modelscope(self) -> bool:
        return self.is_of_modelscope(self.model_name_or_path)

    def is_of_modelscope(self, name: str | None) -> bool:
        """True for an id of ModelScope."""
        return self.download_type == MODELSCOPE and name is not None and is_hub_id(name)

    @property
    def has_lora(self) -> bool:
        """True if adapters are trained instead of the weights."""
        return bool(self.lora_target)

    @property
    def adapter_alpha(self) -> int:
        return 2 * self.lora_rank if self.lora_alpha is None else self.lora_alpha

    @property
    def adapter_text(self) -> str | None:
        """Text with everything that decides the shapes of the adapters and how much they add; None without LoRA.

        Example: "q_proj, v_proj of rank 8 and alpha 16"
        """
        if not self.has_lora:
            return None
        text = f"{', '.join(sorted(self.lora_target))} of rank {self.lora_rank} and alpha {self.adapter_alpha}"
        text += " with rslora" if self.use_rslora else ""
        return text + (f" beside {', '.join(sorted(self.additional_target))}" if self.additional_target else "")

    def with_adapters_of(self, trainer: Self) -> Self:
        """Return the settings of an engine that computes a trainer's adapters as the trainer does. Sent are A and s B,
        which add the same where s is a power of two: there alpha / r is 1. Its own settings of adapters count as little
        as they do where merged weights are sent."""
        own = ("use_rslora", "lora_dropout", "additional_target", "adapter_name_or_path")
        adapters = {name: getattr(trainer, name) for name in ("lora_target", "lora_rank", "freeze_module_prefix")}
        adapters |= {"lora_alpha": trainer.lora_rank} | {name: type(self).model_fields[name].default for name in own}
        return self.model_copy(update=adapters)

    @property
    def frozen_prefixes(self) -> tuple[str, ...]:
        """The parts of freeze_module_prefix."""
        return tuple(filter(None, (part.strip() for part in (self.freeze_module_prefix or "").split(","))))

    @property
    def tokenizer_name(self) -> str:
        """Path or name of the role's tokenizer."""
        return str(self.tokenizer_path or self.model_name_or_path)
