"""Engines that do not start."""

from roll.doctor.row import ENGINE, KnownError

ROWS = (
    KnownError(
        "vLLM has no room for a key-value cache",
        r"No available memory for the cache blocks",
        "Weights and activations fill the engine's share of the GPU.",
        f"{ENGINE}.gpu_memory_utilization",
        "Raise it, give the engine more GPUs (tensor_parallel_size), or end other processes on the GPU",
    ),
    KnownError(
        "vLLM's key-value cache holds no whole sequence",
        r"KV cache is needed, which is larger than the available KV cache|maximum number of tokens that can be stored",
        "One sequence of max_model_len tokens needs more cache than there is.",
        f"sequence_length, {ENGINE}.max_model_len",
        "Shorter sequences (prompt_length, response_length), a larger gpu_memory_utilization, more GPUs per engine",
    ),
    KnownError(
        "vLLM: sequences are longer than the model's positions",
        r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len",
        "config.json of the model says how many positions it was trained with.",
        f"sequence_length, {ENGINE}.max_model_len",
        "Lower prompt_length or response_length; rope_scaling in model_config_kwargs where the model is meant for it",
    ),
    KnownError(
        "vLLM's GPU is in use",
        r"Free memory on device .* on startup is less than|is less than desired GPU memory utilization",
        "Another role, another run or a process left behind holds memory on this GPU.",
        f"{ENGINE}.gpu_memory_utilization",
        "End the processes that `nvidia-smi` lists, lower the share, or give the engine devices of its own",
    ),
    KnownError(
        "heads do not divide among the GPUs of an engine",
        r"attention heads \(\d+\) must be divisible by tensor parallel size",
        "Tensor parallelism needs whole heads on each GPU.",
        f"{ENGINE}.tensor_parallel_size",
        "Take a divisor of the number of heads, also in num_gpus_per_worker",
    ),
    KnownError(
        "SGLang has no room for a key-value cache",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "Weights take all of the static share of the GPU.",
        f"{ENGINE}.mem_fraction_static",
        "Raise it, or more GPUs per engine (tp_size)",
    ),
    KnownError(
        "SGLang cannot capture its CUDA graphs",
        r"Capture cuda graph failed",
        "Graphs are captured after the cache is allocated, and the remaining memory is too small for them.",
        f"{ENGINE}.mem_fraction_static",
        "Lower it, set cuda_graph_max_bs_decode smaller, or disable_cuda_graph: true",
    ),
    KnownError(
        "an engine did not start",
        r"Engine core initialization failed|Rank \d+ scheduler died",
        "A process of the engine ended. The cause is above this line, or in the file of the engine's worker.",
        "<logging_dir>/workers",
        "Look for the first error of actor_infer there",
        follows=True,
    ),
)
