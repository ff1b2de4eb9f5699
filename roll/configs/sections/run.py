"""Top-level keys of every run: length, devices, output, checkpoints, tracking."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from roll.configs.base import DEVICES_PER_NODE, LARGEST_SEED, MOST_DEVICES_PER_NODE, MOST_NODES, Settings, setting
from roll.configs.sections.cluster import Environment, WorkerConfig
from roll.configs.sections.data import DataArgs, Names, Place, split_text
from roll.configs.sections.model import Hub
from roll.configs.tables.roles import Role
from roll.utils.files import expanded
from roll.utils.text import show

Tracker = Literal["tensorboard", "wandb", "mlflow", "swanlab", "jsonl", "stdout"]
TRACKER_WORDS = {"console": "stdout", "tracking": "wandb"}  # verl's
LONGEST_NAME = 200
RESUME_WORDS = {"auto": True, "disable": False, "true": True, "false": False, "none": False}


def _trackers(value: object) -> object:
    if value == "none":
        return ()
    names = split_text(value)
    if not isinstance(names, list | tuple):
        return names
    return tuple(TRACKER_WORDS.get(name, name) if isinstance(name, str) else name for name in names)


def _resume(value: object) -> object:
    return RESUME_WORDS.get(value.lower(), value) if isinstance(value, str) else value


def _run_name(name: str) -> str:
    """A name that can stand as one folder or file, wherever it is written."""
    is_plain = name.isprintable() and not name.isspace() and name not in (".", "..")
    if not is_plain or any(character in "/\\" for character in name):
        raise ValueError(f"{show(name)} must be a name, not a path: it has / or \\ in it, or invisible characters")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"{show(name)} must be at most {LONGEST_NAME} bytes, as file names are")
    return name


def _modules(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{show(name)} is no name of a module, such as package.module")
    return names


Modules = Annotated[Names, AfterValidator(_modules)]


def _web_address(address: str) -> str:
    if address and not address.startswith(("http://", "https://")):
        raise ValueError("the address must begin with http:// or https://")  # without the address, which is a secret
    return address


class CheckpointConfig(Settings):
    """`checkpoint_config`: where checkpoints go."""

    type: Literal["file_system"] = setting("file_system", "Kind of storage; only directories are known.")
    output_dir: Place | None = setting(None, "Directory of the checkpoints. Default: <output_dir>/checkpoints.")


class RunConfig(Settings):
    """Keys of every run, whatever it does in a step: its name and length, machines, output. A kind of run adds the
    sections of its roles, and their rows in `role_table`."""

    role_table: ClassVar[Mapping[str, Role]]
    algorithms: ClassVar[str] = ""  # the kind of those by name that it takes (configs/tables/presets.py)
    rows_path: ClassVar[str] = ""  # package.module:function that gives the rows which operators may choose
    has_rows: ClassVar[bool] = True  # False: nothing is gone through that a number of epochs could count

    pipeline: str | None = setting(
        None,
        "Kind of run, such as rlvr, agentic, sft or dpo, or package.module:SPEC for one of your own. Default: what the "
        "script starts; `roll run` takes the kind whose keys these are.",
        min_length=1,
    )
    defaults_of: Literal["roll", "here"] | None = setting(
        None,
        "Whose defaults the YAML was written for, where those of ROLL differ in what is learned or measured: roll, the "
        "framework of that name, or here. Default: roll for a YAML with its section hydra or a worker_cls of its own.",
    )
    exp_name: Annotated[str, AfterValidator(_run_name)] = setting(
        "roll", "Name of the run in logs and trackers. Default: the name of the YAML.", min_length=1
    )
    seed: int = setting(42, "Seed of all random numbers of the run.", ge=0, le=LARGEST_SEED)

    # length of the run
    max_steps: int = setting(500, "Steps of the run. It wins over num_train_epochs.", ge=1)
    num_train_epochs: float | None = setting(
        None,
        "Without max_steps: the run has as many steps as so many passes over the rows of the training take, the last "
        "step whole. Of environments, roll_math and roll_qa alone have rows, the questions of their files.",
        gt=0,
    )
    eval_steps: int = setting(10, "Validate every N steps, before the first and at the end; 0 or -1: never.", ge=-1)
    val_before_train: bool | None = setting(
        None, "Validate before the first step of a run that starts afresh. Default: where eval_steps asks for any."
    )
    save_steps: int = setting(50, "Save a checkpoint every N steps and at the end; 0 or -1: never.", ge=-1)
    logging_steps: int = setting(1, "Report every N steps; validated steps and the last one always.", ge=1)
    max_ckpt_to_keep: int = setting(0, "Checkpoints kept, the newest ones; 0: all.", ge=0)
    resume_from_checkpoint: Annotated[bool | str, BeforeValidator(_resume)] = setting(
        False,
        "true or auto: go on from the newest checkpoint of this run, if any; a path: from that one; false or disable: "
        "afresh.",
    )
    overwrite_output_dir: bool = setting(
        False,
        "Start over in a folder of another run: its checkpoints are removed as new ones are saved, its metrics are put "
        "aside (metrics.1.jsonl). false: a folder with a finished run, with checkpoints, or with a run of another name "
        "is refused. A run that resumes does not ask for it.",
    )
    verify_checkpoint: bool = setting(
        True,
        "Read a checkpoint whole before resuming from it and hold it against the digests it was saved with; a damaged "
        "one is named and the one before taken. false: sizes only.",
    )
    checkpoint_config: CheckpointConfig = setting({}, "Where checkpoints go.")

    # what is trained
    pretrain: Place | None = setting(
        None, "Directory, GGUF file or hub id of the policy's starting weights, also of the reference."
    )
    model_download_type: Hub = setting(
        None,
        "Where ids of models are looked up: HUGGINGFACE_HUB (the default), or MODELSCOPE, which needs the package "
        "modelscope.",
    )
    max_grad_norm: float = setting(1.0, "Gradients are scaled down to this norm; 0 is off.", ge=0)

    is_offload_optimizer_states_in_train_step: bool = setting(
        False,
        "While a role computes gradients its optimizer's states wait in host memory, and return for the update: "
        "room for larger micro batches, for two transfers per update. Every train strategy.",
    )

    external_lib: Modules = setting(
        (),
        "Module or modules that every process of the run imports before it loads a model, as to register models and "
        "tokenizers; one beside the YAML counts as installed.",
    )

    # machines
    num_nodes: int = setting(
        1, "Machines of the run. Default: as many as the largest id of a device_mapping asks for.", ge=1, le=MOST_NODES
    )
    num_gpus_per_node: int = setting(
        DEVICES_PER_NODE,
        "Devices per machine; on a machine without GPUs, slots. Where a role's devices are chosen for it: the "
        "GPUs that this process sees.",
        ge=1,
        le=MOST_DEVICES_PER_NODE,
    )
    platform: Literal["auto", "cuda", "rocm", "npu", "cpu"] = setting(
        "auto",
        "Kind of device: cuda (NVIDIA), rocm (AMD), npu (Ascend) or cpu, which leaves devices of the machine alone. "
        "auto: the devices that the run sees. A plan for devices that are not here names them. docs/platforms.md.",
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
    gpu_peak_tflops: float | None = setting(
        None,
        "What one device can compute at most, in 1e12 operations per second, for `mfu/...`. Default: by the name of "
        "the GPUs, dense bf16; nothing where that is not known.",
        gt=0,
    )
    gpu_name: str | None = setting(
        None,
        "GPU that the forecast of the plan is for, such as H100 or A100 (roll/configs/memory/gpus.yaml). Default: this "
        "machine's. docs/forecast.md.",
    )
    gpu_hour_cost: float | None = setting(
        None, "Price of an hour of one GPU, in any currency: the plan says what the run costs.", ge=0
    )
    network_interface: str | None = setting(
        None,
        "Where processes of the run listen for each other (gloo, NCCL, their meeting points, Ray if the run starts "
        "it): a name that every node has, like eth0. Default: loopback on one node, the interface of Ray's address on "
        "several. docs/network.md.",
        min_length=1,
    )
    system_envs: Environment = setting(
        {}, "Environment variables of all workers. Those that change what is computed are refused: docs/checks.md."
    )
    rpc_timeout: int = setting(
        3600, "Seconds a call to a worker may take; a set-up is one, and so is the training of a step.", ge=1
    )
    interrupt_timeout: float = setting(
        20.0,
        "Seconds after SIGTERM or SIGHUP in which the step may be finished and saved; then the run ends with what was "
        "saved before. Have it some 10 s below the time your cluster grants before SIGKILL (often 30 s); 0: no limit.",
        ge=0,
    )
    # output
    output_dir: Place = setting("./output/roll", "Where the run writes. Default: ./output/<exp_name>.", min_length=1)
    logging_dir: Place = setting("./output/roll/logs", "Where log files go. Default: <output_dir>/logs.", min_length=1)
    track_with: Annotated[tuple[Tracker, ...], BeforeValidator(_trackers)] = setting(
        ("tensorboard", "jsonl"),
        "One tracker or several: tensorboard, wandb, mlflow, swanlab, jsonl (metrics.jsonl and summary.json in "
        "logging_dir), stdout (or console); none for no tracker.",
    )
    tracker_kwargs: dict[str, Any] = setting(
        {}, "Settings of the tracker; with several, one mapping per tracker name. Secrets in it are never written."
    )
    alert_url: Annotated[str, AfterValidator(_web_address)] | None = setting(
        None,
        "Address of a webhook, such as Slack's or Discord's. It gets a text when a rule of docs/health.md begins to "
        "apply, and when the run ends.",
    )

    # profiles
    profiler_timeline: bool = setting(
        False,
        "Record what driver, workers and engines do when, and write it to trace.json in profiler_output_dir, for "
        "ui.perfetto.dev. docs/profiling.md.",
    )
    profiler_memory: bool = setting(
        False,
        "Write memory.jsonl in profiler_output_dir: the largest resident set of every worker, and on CUDA the most "
        "that its tensors took; there also, after every step, <role>-<rank>.pickle for pytorch.org/memory_viz.",
    )
    profiler_output_dir: Place = setting(
        "./output/roll/profiler", "Where profiles go. Default: <output_dir>/profiler.", min_length=1
    )

    @property
    def checkpoint_dir(self) -> Path:
        return Path(self.checkpoint_config.output_dir or Path(self.output_dir) / "checkpoints")

    @property
    def profiles(self) -> bool:
        """True if there is something to write to profiler_output_dir."""
        return self.profiler_timeline or self.profiler_memory

    @property
    def counts_epochs(self) -> bool:
        """True while the length of the run follows from rows that nobody has counted: max_steps means nothing then."""
        return self.num_train_epochs is not None and "max_steps" not in self.model_fields_set

    @property
    def validates_first(self) -> bool:
        """True if the untrained model is validated."""
        return self.eval_steps > 0 if self.val_before_train is None else self.val_before_train

    @property
    def validates(self) -> bool:
        """True if any model is, where the YAML says on what."""
        return self.eval_steps > 0 or self.validates_first

    @property
    def begins_afresh(self) -> bool:
        """True if it begins with the first step, or from a checkpoint of another run."""
        place = self.resume_from_checkpoint
        directory = self.checkpoint_dir.absolute()
        return directory not in expanded(place).absolute().parents if isinstance(place, str) else not place

    def grad_norm_of(self, role: str, worker: WorkerConfig) -> float:
        """The norm that a role's gradients are scaled down to: its own, where it has one."""
        role_norm = worker.max_grad_norm if "max_grad_norm" in self.roles[role].reads else None
        return self.max_grad_norm if role_norm is None else role_norm

    @property
    def can_count_rows(self) -> bool:
        """False where num_train_epochs says nothing of the length of the run."""
        return self.has_rows

    @property
    def takes_steps(self) -> bool:
        """False of a process that only measures."""
        return True

    @property
    def other_schedule(self) -> Mapping[str, str]:
        """Rows of the plan for a process that does not validate or save as eval_steps and save_steps say."""
        return {}

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.num_gpus_per_node

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, tree: Any) -> Any:
        from roll.configs.load.defaults import fill_run  # workers get configurations that are built

        return fill_run(tree, cls.role_table) if isinstance(tree, Mapping) else tree

    @property
    def roles(self) -> Mapping[str, Role]:
        """The rows of all sections that have a role's keys, by the section's YAML path."""
        return self.role_table

    @property
    @abstractmethod
    def trained_length(self) -> int:
        """Tokens of the longest row that is trained on."""

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row of the run, validation included."""
        return self.trained_length

    @property
    def length_keys(self) -> tuple[str, ...]:
        """The keys that these two follow from."""
        return ("sequence_length",)

    @property
    def sections(self) -> Mapping[str, WorkerConfig]:
        """Sections of roles that the YAML has, whether their role is started or not."""
        return {name: section for name in self.role_table if (section := self.value(name)) is not None}

    @property
    def model_roles(self) -> Mapping[str, WorkerConfig]:
        """The roles of this run that hold a model, in the order they are shown."""
        return {name: section for name, section in self.sections.items() if self.roles[name].head is not None}

    @property
    def policy_is_reference(self) -> bool:
        """True if the reference is the policy with its adapters switched off, which takes no role of its own."""
        return False

    @property
    def learning_roles(self) -> Mapping[str, WorkerConfig]:
        """Sections of the roles that learn."""
        return {name: worker for name, worker in self.model_roles.items() if self.roles[name].learns}

    @property
    def data_args(self) -> Mapping[str, DataArgs]:
        """Arguments of the rows that are read, by their YAML path."""
        return {}

    @property
    def cpu_roles(self) -> Mapping[str, WorkerConfig]:
        """Roles of this pipeline that run beside the models, by name."""
        return {}

    @property
    def cpu_role_notes(self) -> Mapping[str, str]:
        """Description of each of the cpu_roles, in a few words."""
        return {}

    @property
    def directories(self) -> Mapping[str, str | None]:
        """The places that the run writes to, by key."""
        return {
            "output_dir": self.output_dir,
            "logging_dir": self.logging_dir,
            **({"profiler_output_dir": self.profiler_output_dir} if self.profiles else {}),
            "checkpoint_config.output_dir": self.checkpoint_config.output_dir,
        }

    @property
    def sources(self) -> Mapping[str, str]:
        """The directories that the run reads beside models and data, by key."""
        return {}

    @property
    def missing_validation(self) -> str:
        """The section without which nothing is validated, where the YAML lacks it; else empty."""
        return ""


# An entry of `stages`: what it says of itself, beside the keys that it changes.

STAGES = "stages"  # the key
AT_THE_START = "start"
"""Value in `models` that takes the model that the YAML names, not what an earlier stage learnt."""


def _stage_name(name: str) -> str:
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_-]{0,59}", name) or name == AT_THE_START:
        raise ValueError(f"{show(name)} must be a letter followed by up to 59 letters, digits, - and _, and not start")
    return name


class StageConfig(Settings):
    """Keys of an entry of `stages` beside those that it changes."""

    name: Annotated[str, AfterValidator(_stage_name)] = setting(
        ..., "Name of the stage, and of its folder: <output_dir>/<number>-<name>."
    )
    pipeline: str | None = setting(
        None,
        "Kind of run, such as rlvr, agentic, sft or dpo, or package.module:SPEC. Default: the YAML's `pipeline`, the "
        "kind that the script starts, or the one whose keys these are.",
        min_length=1,
    )
    models: dict[str, str] = setting(
        {},
        "By role, where another model is wanted than the last that was learnt: the name of an earlier stage, or start "
        "for the one that the YAML names. Example: {reference: start}.",
    )
