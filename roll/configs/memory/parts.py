"""Parts of a rank's memory, in bytes, and which of them are certain."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from roll.configs.memory.layer_shape import ModelShape
from roll.configs.plan.engine_limits import answers_at_once
from roll.configs.plan.run_plan import RunPlan
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.roles import Role, Use

GB = 1e9
State = Literal["weights", "gradients", "optimizer", "kv_cache"]
Phase = Literal["rollout", "scoring", "training", "publish"]
BYTES_OF = {"fp32": 4, "bf16": 2, "fp16": 2}

CONTEXT = 0.6 * GB  # of CUDA and its libraries, on the GPU, per process; driver and GPU decide: 0.4 to 0.8 are usual
COMMUNICATORS = 1.0 * GB  # of NCCL, on the GPU, per process that has any; 0.3 to 1.5, they grow with use
ROUNDING = "rounding of pinned blocks"
PROCESS = 3.0 * GB  # of Python, torch and CUDA in host memory, per process


@dataclass(frozen=True)
class Part:
    """`is_estimate`: a figure to plan with, not a promise; others are what the tensors take, to the byte."""

    name: str
    num_bytes: float
    is_estimate: bool = False


@dataclass(frozen=True)
class RoleFacts:
    """A role as the arithmetic sees it. `score_tokens` and `train_tokens` are those of its largest micro batch (0: it
    has none), a rank's part of it where ranks share sequences (ulysses_size). `gpu_bytes`: the memory of a GPU, if
    known."""

    worker: WorkerConfig
    shape: ModelShape
    use: Use
    num_ranks: int
    shares_devices: bool
    score_tokens: int = 0
    train_tokens: int = 0
    train: TrainPlan | None = None
    gpu_bytes: float | None = None
    bucket_bytes: int = 0  # of a weight update
    most_answers: int = 0  # in flight in one engine
    longest: int = 0  # sequence in tokens
    row: int = 0  # tokens of the longest row of a padded micro batch; 0: rows are packed

    @property
    def dtype_bytes(self) -> int:
        return BYTES_OF[self.worker.model_args.dtype]


@dataclass(frozen=True)
class RankMemory:
    """One process of a role with its GPUs; of ranks that differ, the one that holds most.

    On each of its GPUs: `states` while they are there, `stays` always, `passes` while it works. In host memory: `host`
    always, `copies` of the states from the first time that another role needs the GPU, `loading` while it starts.
    `room`: what weights and key-value cache of an engine may take together, and which key says so. `doubt`: why it may
    not start although it fits.
    """

    states: Mapping[State, tuple[Part, ...]]
    passes: Mapping[Phase, tuple[Part, ...]]
    stays: tuple[Part, ...] = (Part("context", CONTEXT, True), Part("communicators", COMMUNICATORS, True))
    host: tuple[Part, ...] = ()
    copies: tuple[Part, ...] = ()
    loading: tuple[Part, ...] = ()
    num_processes: int = 1
    room: tuple[float, str] | None = None
    doubt: str = ""


def total(parts: Iterable[Part], sure_only: bool = False) -> float:
    return sum(part.num_bytes for part in parts if not (sure_only and part.is_estimate))


def gigabytes(num_bytes: float) -> str:
    """Example: 3.8e9 is "3.8", 47.3e9 is "47", 2.4e6 is "0.0024"."""
    value = num_bytes / GB
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def pinned(name: str, blocks: Iterable[tuple[float, int]]) -> tuple[Part, ...]:
    """A copy in page-locked memory: what it holds, and what torch's allocator adds by rounding every block up to a
    power of two. `blocks`: sizes, and how many there are of each. Example: one of 3.8e9 bytes takes 4.3e9."""
    sizes = [(int(size), count) for size, count in blocks if size >= 1]
    if not sizes:
        return ()
    held = sum(size * count for size, count in sizes)
    rounded = sum(count << (size - 1).bit_length() for size, count in sizes)
    return Part(name, held), Part(ROUNDING, rounded - held, True)


# A role as the arithmetic sees it, from the plan of its run.


def role_facts(
    plan: RunPlan,
    role: Role,
    worker: WorkerConfig,
    shape: ModelShape,
    gpu_bytes: float | None,
) -> RoleFacts:
    """Facts about a role that the memory formulas read. Among training roles, only a policy publishes weights."""
    learns = plan.trains.get(role.name)
    publishes = (role.use == "generate" and not role.is_apart) or (role.learns and not shape.is_critic)
    return RoleFacts(
        worker=worker,
        shape=shape,
        use=role.use,
        num_ranks=worker.num_workers,
        shares_devices=plan.layout.shares_devices(role.name),
        score_tokens=_share(worker, _score_tokens(worker, plan.trained_length)) if role.name in plan.scoring else 0,
        train_tokens=_share(worker, _train_tokens(worker, learns, plan.trained_length)) if learns else 0,
        train=learns,
        gpu_bytes=gpu_bytes,
        bucket_bytes=plan.bucket_bytes if publishes else 0,
        most_answers=answers_at_once(plan.most_answers, worker, on_gpus=bool(plan.layout[role.name].device_ids)),
        longest=0 if role.is_apart else plan.longest_row,
        row=0 if worker.packs_rows else plan.trained_length,
    )


def _share(worker: WorkerConfig, tokens: int) -> int:
    """Tokens of one rank, if several ranks share every sequence."""
    return -(-tokens // worker.model_args.ulysses_size)


def _score_tokens(worker: WorkerConfig, longest: int) -> int:
    if tokens := worker.packed_tokens_in_infer:
        return tokens
    if worker.use_dynamic_batching_in_infer:
        return worker.max_tokens_per_microbatch_in_infer or longest
    return worker.infer_batch_size * longest


def _train_tokens(worker: WorkerConfig, train: TrainPlan, longest: int) -> int:
    if tokens := worker.packed_tokens_in_train:
        return tokens
    if worker.use_dynamic_batching_in_train:
        return worker.max_tokens_per_microbatch_in_train or longest
    return train.micro_batch_size * longest
