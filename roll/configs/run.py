"""Top-level keys of every run: length, devices, output, checkpoints, tracking."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from roll.configs.base import Settings, setting
from roll.configs.cluster import Environment
from roll.configs.data import Place, split_text
from roll.configs.limits import LARGEST_SEED, MOST_DEVICES_PER_NODE, MOST_GROUPS, MOST_NODES
from roll.configs.problems import show

Tracker = Literal["tensorboard", "wandb", "mlflow", "swanlab", "jsonl", "stdout"]
LONGEST_NAME = 200
RESUME_WORDS = {"auto": True, "disable": False, "true": True, "false": False, "none": False}


def _trackers(value: object) -> object:
    return () if value == "none" else split_text(value)


def _resume(value: object) -> object:
    return RESUME_WORDS.get(value.lower(), value) if isinstance(value, str) else value


def _run_name(name: str) -> str:
    """A name that can stand as one folder or file, wherever it is written."""
    if name in (".", ".."):
        raise ValueError(f"{show(name)} must be a name, not a path")
    if any(character in "/\\" or not character.isprintable() for character in name):
        raise ValueError(
            f"{show(name)} must be a name, not a path: it has / or \\ in it, or characters without a shape"
        )
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"{show(name)} must be at most {LONGEST_NAME} bytes, as file names are")
    return name


class CheckpointConfig(Settings):
    """`checkpoint_config`: where checkpoints go."""

    type: Literal["file_system"] = setting("file_system", "Kind of storage; only directories are known.")
    output_dir: Place | None = setting(None, "Directory of the checkpoints. Default: <output_dir>/checkpoints.")


class RunConfig(Settings):
    """Keys of every pipeline."""

    exp_name: Annotated[str, AfterValidator(_run_name)] = setting(
        "roll", "Name of the run in logs and trackers. Default: the name of the YAML.", min_length=1
    )
    seed: int = setting(42, "Every random stream of the run derives from it.", ge=0, le=LARGEST_SEED)

    # length of the run
    max_steps: int = setting(500, "Steps of the run: rollout, score, credit, train, publish.", ge=1)
    rollout_batch_size: int = setting(
        128,
        "Prompts per step, each sampled num_return_sequences_in_group times (agentic: trajectories per step).",
        ge=1,
        le=MOST_GROUPS,
    )
    val_batch_size: int = setting(128, "Validation prompts in flight at once.", ge=1, le=MOST_GROUPS)
    eval_steps: int = setting(10, "Validate every so many steps, at the start and at the end; 0 or -1: never.", ge=-1)
    save_steps: int = setting(50, "Save a checkpoint every so many steps and at the end; 0 or -1: never.", ge=-1)
    logging_steps: int = setting(1, "Report every so many steps; validated steps and the last one always.", ge=1)
    max_ckpt_to_keep: int = setting(0, "Checkpoints kept, the newest ones; 0: all.", ge=0)
    resume_from_checkpoint: Annotated[bool | str, BeforeValidator(_resume)] = setting(
        False,
        "true or auto: go on from the newest checkpoint of this run, if any; a path: from that one; false or disable: "
        "afresh.",
    )
    verify_checkpoint: bool = setting(
        True,
        "Read a checkpoint whole before resuming from it and hold it against the digests it was saved with; a damaged "
        "one is named and the one before taken. false: sizes only.",
    )
    checkpoint_config: CheckpointConfig = setting({}, "Where checkpoints go.")

    # lengths in tokens
    prompt_length: int = setting(
        1024,
        "Longest prompt in tokens; see data_args.truncation. Agentic runs: the default is at most half of "
        "sequence_length.",
        ge=1,
    )
    response_length: int | None = setting(
        None,
        "Longest answer in tokens. Give this or sequence_length; sequence_length = prompt_length + response_length.",
        ge=1,
    )
    sequence_length: int | None = setting(None, "Longest prompt and answer together.", ge=2)
    val_prompt_length: int | None = setting(
        None, "The same as prompt_length in validation. Default: prompt_length.", ge=1
    )
    val_sequence_length: int | None = setting(
        None, "The same as sequence_length in validation. Default: sequence_length.", ge=2
    )

    # machines
    num_nodes: int = setting(
        1, "Machines of the run. Default: as many as the largest id of a device_mapping asks for.", ge=1, le=MOST_NODES
    )
    num_gpus_per_node: int = setting(
        8, "Devices per machine; on a machine without GPUs, slots.", ge=1, le=MOST_DEVICES_PER_NODE
    )
    gpu_memory_gb: float | None = setting(
        None,
        "Memory of each GPU in GB (1e9 bytes): a plan that cannot fit is refused. Default: that of this machine's "
        "GPUs, if it has any. docs/memory.md.",
        gt=0,
    )
    host_memory_gb: float | None = setting(
        None, "Memory of each machine in GB (1e9 bytes), likewise. Default: not checked.", gt=0
    )
    network_interface: str | None = setting(
        None,
        "Where processes of the run listen for each other (gloo, NCCL, their meeting points, Ray if the run starts "
        "it): a name that every node has, like eth0. Default: loopback on one node, the interface of Ray's address on "
        "several. docs/network.md.",
        min_length=1,
    )
    system_envs: Environment = setting({}, "Environment variables of all workers.")
    rpc_timeout: int = setting(
        3600, "Seconds a call to a worker may take; a set-up is one, and so is the training of a step.", ge=1
    )
    suspend_timeout: float = setting(
        60.0,
        "Seconds that a worker on the driver's host may be suspended (SIGSTOP); then it is killed, and replaced where "
        "a dead one would be. For others see rpc_timeout and backend_timeout.",
        gt=0,
    )
    interrupt_timeout: float = setting(
        20.0,
        "Seconds after SIGTERM or SIGHUP in which the step may be finished and saved; then the run ends with what was "
        "saved before. Have it some 10 s below the time your cluster grants before SIGKILL (often 30 s); 0: no limit.",
        ge=0,
    )
    model_update_buffer_size_mb: int = setting(
        1024, "Size of a bucket when weights go to the rollout engine, in MB.", ge=1
    )
    weight_sync_route: Literal["auto", "memory", "broadcast", "file"] = setting(
        "auto",
        "How weights go to the rollout engine. memory: shared memory of a host, or CUDA IPC where all of an engine's "
        "GPUs are the trainer's; every node with engines needs a rank of actor_train. broadcast: a collective. file: "
        "in output_dir. auto: memory where trainer and engine share GPUs or have none, else broadcast.",
    )
    max_failed_fraction: float = setting(
        0.1,
        "The run stops when more than this share of a step's trajectories failed (reward or environment).",
        ge=0,
        le=1,
    )

    # requests
    max_running_requests: int = setting(128, "Most answers in flight per rollout engine.", ge=1)
    is_use_additional_prompts: bool = setting(
        False,
        "When query_filter_config drops groups, start others in their place, at most as many as a step has. Off: the "
        "step trains on what is left, in as many fewer updates, and not at all if nothing is.",
    )

    # output
    output_dir: Place = setting("./output/roll", "Where the run writes. Default: ./output/<exp_name>.", min_length=1)
    logging_dir: Place = setting("./output/roll/logs", "Where log files go. Default: <output_dir>/logs.", min_length=1)
    rollout_dump_dir: Place | None = setting(None, "Where sample rollouts go. Default: <output_dir>/rollouts.")
    track_with: Annotated[tuple[Tracker, ...], BeforeValidator(_trackers)] = setting(
        ("tensorboard", "jsonl"),
        "One tracker or several: tensorboard, wandb, mlflow, swanlab, jsonl (metrics.jsonl and summary.json in "
        "logging_dir), stdout; none for no tracker.",
    )
    tracker_kwargs: dict[str, Any] = setting(
        {}, "Settings of the tracker; with several, one mapping per tracker name. Secrets in it are never written."
    )

    @property
    def lengths(self) -> tuple[int, int, int]:
        """(prompt, response, sequence) in tokens. The preflight has checked that they agree.

        Example: prompt_length 1024 with response_length 3072, or with sequence_length 4096: (1024, 3072, 4096).
        """
        response = self.response_length
        if response is None:
            response = max(1, (self.sequence_length or 0) - self.prompt_length)
        return self.prompt_length, response, self.prompt_length + response

    @property
    def val_lengths(self) -> tuple[int, int, int]:
        """(prompt, response, sequence) in tokens of validation."""
        prompt, response = self.val_prompt_length or self.prompt_length, self.lengths[1]
        if self.val_sequence_length is not None:
            response = max(1, self.val_sequence_length - prompt)
        return prompt, response, prompt + response

    @property
    def checkpoint_dir(self) -> Path:
        return Path(self.checkpoint_config.output_dir or Path(self.output_dir) / "checkpoints")

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.num_gpus_per_node
