"""Trainers, the hub, packages."""

from roll.doctor.row import TRAINER, KnownError

ROWS = (
    # trainers
    KnownError(
        "DeepSpeed: batch sizes contradict each other",
        r"Check batch related parameters\. train_batch_size is not equal",
        "The sizes of a batch are set by the run from its own keys.",
        f"{TRAINER}.train_batch_size",
        "Remove it and similar keys; the rows of an update follow from training_args",
    ),
    KnownError(
        "DeepSpeed: fp16 overflows at every step",
        r"Current loss scale already at minimum",
        "Gradients are infinite or NaN in fp16, whatever the scale.",
        "actor_train.model_args.dtype",
        "Use bf16; else look at the loss and the data of the first steps",
    ),
    KnownError(
        "DeepSpeed cannot build an operator",
        r"CUDA_HOME does not exist, unable to compile|Error building extension|has no attribute 'ds_opt_adam'",
        "CPU Adam and others are compiled when first used, and the compiler of CUDA is missing or of another version.",
        "CUDA_HOME",
        "Install the CUDA toolkit of torch's version, and ninja; or do without offload_optimizer",
    ),
    KnownError(
        "Megatron: ranks do not divide among the parallel sizes",
        r"world_size \(\d+\) is not divisible by",
        "Tensor, pipeline, context and expert sizes together must divide the ranks of the role.",
        f"{TRAINER}.tensor_model_parallel_size",
        "Change the sizes, or the number of devices in device_mapping",
    ),
    KnownError(
        "Megatron: a size of the model does not divide",
        r"AssertionError: \d+ is not divisible by \d+|must be divisible by ?the (?:middle )?pipeline",
        "Heads, widths, vocabulary or layers do not divide by a parallel size.",
        f"{TRAINER}.tensor_model_parallel_size, pipeline_model_parallel_size",
        "Take divisors of the numbers in the model's config.json",
    ),
    # the hub
    KnownError(
        "the hub wants a login",
        r"401 Client Error|GatedRepoError|Cannot access gated repo|Invalid credentials in Authorization header",
        "The model or data set is gated or private, or the token is wrong.",
        "HF_TOKEN",
        "Accept its terms on the hub, then `hf auth login`, or system_envs.HF_TOKEN; a local directory needs neither",
    ),
    KnownError(
        "the hub cannot be reached",
        r"OfflineModeIsEnabled|outgoing traffic has been disabled|We couldn't connect to 'https?://",
        "This machine is offline, or set to be, and its cache lacks the files.",
        "pretrain",
        "Download it elsewhere (`hf download`) and name the directory; unset HF_HUB_OFFLINE where there is a network",
    ),
    KnownError(
        "a model's files are incomplete",
        r"does not appear to have a file named|SafetensorError|Error while deserializing header",
        "A download was interrupted, or the directory is not a model's.",
        "pretrain",
        "Compare with the hub's list of files; `hf download` again",
    ),
    # Python
    KnownError(
        "a package is missing",
        r"ModuleNotFoundError: No module named|FlashAttention\d? has been toggled on, but it cannot be used",
        "It belongs to an extra that is not installed, or is beside a YAML in another folder.",
        'pip install -e ".[...]"',
        "`roll doctor CONFIG.yaml` names the extra (deepspeed, megatron, vllm, sglang, flash-attn ...)",
    ),
    KnownError(
        "a compiled package does not fit torch",
        r"ImportError: .*undefined symbol|GLIBCXX_[\d.]+' not found",
        "It was built against another torch or C++ library than are installed.",
        "requirements/",
        "Install the lock's versions with --no-deps; build it anew where it is your own",
    ),
    KnownError(
        "Ray's token is missing or wrong",
        r"InvalidAuthToken|ray\.exceptions\.AuthenticationError",
        "The cluster at RAY_ADDRESS requires a token.",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_MODE=token and the cluster's token; docs/network.md",
    ),
)
