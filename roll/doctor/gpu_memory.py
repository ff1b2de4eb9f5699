"""Memory of a GPU, by what was going on; the row without `near` is the last."""

from roll.doctor.row import ENGINE, TRAINER, KnownError

_OOM = r"CUDA out of memory|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError"

ROWS = (
    KnownError(
        "out of GPU memory at the first update",
        _OOM,
        "The optimizer's states are allocated at the first step (twice the weights in fp32), and do not fit.",
        f"{TRAINER}.zero_optimization",
        "A higher stage, offload_optimizer (FSDP2: optimizer_offload), more devices, or LoRA (docs/lora.md)",
        near=r"_init_group|exp_avg|optimizer\.step\(|_take_model_step",
    ),
    KnownError(
        "out of GPU memory while a role starts",
        _OOM,
        "Its weights do not fit beside those of other roles, or another run, on the GPU.",
        "<role>.device_mapping",
        "`nvidia-smi` shows the processes; more devices for the role, or a strategy that divides weights",
        near=r"failed in setup|\bin setup\b",
    ),
    KnownError(
        "out of GPU memory while weights are sent",
        _OOM,
        "Two buckets of weights have to fit beside what trainer and engine hold.",
        "model_update_buffer_size_mb",
        f"Halve it, or give the engine a smaller share: {ENGINE}.gpu_memory_utilization or mem_fraction_static",
        near=r"publish_weights|receive_weights",
    ),
    KnownError(
        "out of GPU memory when a role gets its GPU back",
        _OOM,
        "Another role left memory on a shared GPU that this role needs.",
        f"{ENGINE}.gpu_memory_utilization",
        "A smaller share for the engine (sglang: mem_fraction_static), or devices of its own in device_mapping",
        near=r"load_states|wake_up|resume_memory_occupation",
    ),
    KnownError(
        "out of GPU memory in training",
        _OOM,
        "Activations and logits of a micro batch do not fit beside weights, gradients and optimizer.",
        "actor_train.training_args.per_device_train_batch_size, max_tokens_per_microbatch_in_train",
        "Fewer rows or tokens in a micro batch, disable_gradient_checkpointing: false, ulysses_size above 1; `roll "
        "plan` shows what the rest takes",
        near=r"failed in train\b|\bin train\b|\.backward\(|forward_backward",
    ),
    KnownError(
        "out of GPU memory in scoring",
        _OOM,
        "A pass without gradient keeps the logits of all its rows.",
        "<role>.infer_batch_size, <role>.max_tokens_per_microbatch_in_infer",
        "A smaller one for the role that the line names",
        near=r"failed in (?:score|teach)|\bin (?:score|teach|score_rows)\b",
    ),
    KnownError(
        "out of GPU memory while sampling",
        _OOM,
        "The engine's share leaves too little for activations and graphs.",
        f"{ENGINE}.gpu_memory_utilization, max_running_requests",
        "Lower one of them (sglang: mem_fraction_static), or set enforce_eager: true",
        near=r"generate|vllm|sglang|actor_infer",
    ),
    KnownError(
        "out of GPU memory",
        _OOM,
        "The allocation was larger than the free memory; other processes on the GPU count too.",
        "roll plan CONFIG.yaml gpu_memory_gb=...",
        "It shows which role needs what, phase by phase, and what makes it smaller",
    ),
)
