"""`training_args` of a role that learns: batch, optimizer, schedule."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from roll.configs.base import Settings, setting

ADAMW: tuple[str, ...] = ("adamw", "adamw_torch_fused", "AdamW")  # of other systems
EIGHT_BIT = "adamw_bnb_8bit"
EIGHT_BIT_NAMES: tuple[str, ...] = ("adamw_8bit", "AdamW8bit")
Share = Annotated[float, Field(ge=0, le=1)]
_OTHERS: dict[str, str] = {**dict.fromkeys(ADAMW, "adamw_torch"), **dict.fromkeys(EIGHT_BIT_NAMES, EIGHT_BIT)}
Optimizer = Annotated[
    Literal["adamw_torch", "adamw_bnb_8bit", "muon"],
    BeforeValidator(lambda value: _OTHERS.get(value, value) if isinstance(value, str) else value),
]
Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine"]


class TrainingArgs(Settings):
    """`training_args` of a role."""

    per_device_train_batch_size: int = setting(
        8, "Samples in one forward-backward pass of one data-parallel rank.", ge=1
    )
    gradient_accumulation_steps: int = setting(
        1,
        "Forward-backward passes per optimizer update. Samples per update: this x per_device_train_batch_size "
        "x ranks. Reinforcement learning, where the YAML leaves it out: as many as make one update of a step.",
        ge=1,
    )
    optim: Optimizer = setting(
        "adamw_torch",
        "adamw_torch: AdamW. adamw_bnb_8bit (adamw_8bit): AdamW of bitsandbytes, with moments of 8 bits; fsdp2_train "
        "and deepspeed_train. muon: Muon for the matrices of the layers, AdamW for embedding, head and vectors, under "
        "one learning rate; fsdp2_train, and deepspeed_train without ZeRO (docs/trainers.md).",
    )
    muon_momentum: float = setting(0.95, "With optim: muon: decay of its gradient average.", ge=0, lt=1)
    learning_rate: float = setting(
        5e-5,
        "Peak learning rate. Reinforcement learning, where the YAML leaves it out: 1e-6 with all weights, "
        "1e-5 with LoRA and for a critic.",
        ge=0,
        le=10,
    )
    lr_scheduler_type: Schedule = setting(
        "linear",
        "Shape of the learning rate after the warm-up: flat, a line to 0, or a half cosine to 0. It runs over "
        "the steps of the run x updates per step.",
    )
    lr_scheduler_kwargs: dict[str, Share] = setting(
        {}, "Details of the schedule: `min_lr_ratio`, the share of the peak it ends at."
    )
    warmup_steps: int = setting(
        0, "Updates before the learning rate is at its peak: the k-th has k / (this + 1) of it.", ge=0
    )
    warmup_ratio: float = setting(
        0.0, "The same as a share of all updates; warmup_steps wins when both are given.", ge=0, le=1
    )
    weight_decay: float = setting(0.0, "AdamW's decoupled weight decay; not applied to norms and biases.", ge=0)
    adam_beta1: float = setting(0.9, "AdamW's decay of the gradient average.", ge=0, lt=1)
    adam_beta2: float = setting(0.999, "AdamW's decay of the squared-gradient average.", ge=0, lt=1)
    adam_epsilon: float = setting(1e-8, "AdamW's term against division by zero.", gt=0)
    bf16: bool = setting(False, "Says the same as model_args.dtype: bf16, and must not contradict it.")
    fp16: bool = setting(False, "Says the same as model_args.dtype: fp16, and must not contradict it.")
