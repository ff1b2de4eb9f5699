"""Interface of every backend. A strategy knows torch.distributed and its engine, but no Ray and no rewards."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from roll.algorithms.distillation import Distillation
from roll.algorithms.loss import Loss
from roll.configs.sections.model import Head
from roll.distributed.weights.bucket import WeightBucket
from roll.errors import StrategyError
from roll.models.head_scores import TeacherHead
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums, SharedWork

_HOST_BUCKET_BYTES = 1 << 30  # on its way to host memory


class State(enum.Enum):
    """Kind of memory on a device that can be moved to host memory on its own."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    KV_CACHE = "kv_cache"


ALL_STATES = frozenset(State)


@dataclass(frozen=True)
class RankContext:
    """A worker's place in its role, and what depends on its model. For ranks of a training role, the torch.distributed
    environment variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) are set before the strategy is built.
    `role` is for messages."""

    role: str
    rank: int
    world_size: int
    local_rank: int
    seed: int
    device: torch.device  # "cpu", or the one visible GPU of this worker ("cuda:0")
    shares_devices: bool = False  # another role has states on them as well
    head: Head = "lm"
    keeps_kv: bool = False  # of an engine: weights change under the keys and values of requests in flight
    adapter_rank: int | None = None  # of an engine: it gets LoRA adapters of this rank beside weights that stay
    reports_routes: bool = False  # of an engine: answers come with the experts that their tokens went to
    most_answers: int | None = None  # of an engine: in flight at once
    shows_pictures: bool = False  # rows of the run may show some beside their tokens
    exact: bool = False  # log-probs of a token are the same bits in every pass, of trainer and engine


class Strategy(ABC):
    """A backend in one worker process. Built by `setup`; offload and load may be no-ops where there is nothing to
    move."""

    @abstractmethod
    def setup(self) -> None:
        """Builds the engine and loads the model. Collective over the role's ranks."""

    def offload_states(self, states: frozenset[State]) -> None:
        """Moves these states to host memory (or drops what can be rebuilt, such as the kv cache)."""

    def load_states(self, states: frozenset[State]) -> None:
        """Brings these states back to the device."""

    def shutdown(self) -> None:
        """Releases the engine and its processes. Called also after a failure; a second call does nothing."""


class ScoreStrategy(Strategy):
    """A backend that scores given tokens. Collective: every rank calls with as many micro batches as it likes (none,
    too); ranks of a sharded engine even out the number of forward passes among themselves."""

    takes_media: ClassVar[bool] = False  # True: rows may show images beside their tokens
    dp_rank: int
    dp_size: int

    @property
    def shares_prefixes(self) -> bool:
        """True where rows of a micro batch that begin alike are computed as a tree. From `setup` on."""
        return False

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        """Number of tokens that a micro batch of these rows computes (`token_keys` of each)."""
        return sum(map(len, keys))

    @abstractmethod
    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        """Log-probs (and entropy) without gradient, one output per micro batch, on the CPU."""

    def base_log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[TokenOutputs]:
        """`log_probs` of the model that adapters were put on. StrategyError if it has none."""
        raise StrategyError(f"{type(self).__name__} trains no adapters beside weights that stay as they were")

    @abstractmethod
    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        """Critic values without gradient, one output per micro batch, on the CPU. StrategyError if the model has no
        value head."""

    def teacher_targets(self, micro_batches: Sequence[MicroBatch], distillation: Distillation) -> list[torch.Tensor]:
        """Compute a teacher's targets for the response tokens of each micro batch, without gradient, float32 [tokens,
        numbers of each], on the CPU (roll/features/teachers/targets.py)."""
        raise StrategyError(f"{type(self).__name__} does not support students")

    def teacher_head(self, distillation: Distillation) -> TeacherHead | None:
        """Return the head that turns the hidden states of `teacher_targets` into distributions, on rank 0.
        Collective."""
        raise StrategyError(f"{type(self).__name__} hands over no head; logits_topk above 0 needs none")

    def take_shared_work(self) -> SharedWork:
        """Work on rows that begin alike since the last call, where prefixes are shared."""
        return SharedWork()

    def row_scores(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Numbers of whole rows without gradient, float32 [B, labels] per micro batch, on the CPU. StrategyError if the
        model has no sequence-classification head."""
        raise StrategyError(
            f"{type(self).__name__} does not score whole rows; hf_infer, deepspeed_infer and fsdp2_infer do"
        )


class TrainStrategy(ScoreStrategy):
    """A backend that learns."""

    def set_teacher_head(self, distillation: Distillation, head: TeacherHead | None) -> None:
        """Prepares for micro batches with a teacher's targets. `head`: the teacher's, if the targets are hidden
        states."""
        raise StrategyError(f"{type(self).__name__} does not learn from a teacher")

    @abstractmethod
    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        """One optimizer step over all micro batches of all ranks. The micro batches are given: equal in number on all
        ranks, their row count free. Returns this rank's metric sums, and what is global already: `grad_norm` (before
        clipping) and `learning_rate`."""

    @abstractmethod
    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        """Full tensors under Hugging Face names, streamed in buckets of at most `bucket_bytes` (a larger tensor stands
        alone). Collective: every rank iterates to the end; ranks that are neither in `to` nor `exports_weights` ones
        get empty buckets, equal in number. Unless `whole`, weights that training leaves as they are may be left out
        (`roll.distributed.weights.bucket`), and are gathered nowhere then. Unless `merged`, LoRA adapters are not
        added to the weights, but follow them, by peft's names without its prefix: A, and s B."""

    @property
    @abstractmethod
    def exports_weights(self) -> bool:
        """True on the rank whose exported buckets are always filled."""

    def weights_on_host(self) -> dict[str, torch.Tensor]:
        """All weights under Hugging Face names, as copies in host memory, on the rank that exports them; none on the
        others. Collective."""
        weights: dict[str, torch.Tensor] = {}
        for bucket in self.export_weights(_HOST_BUCKET_BYTES):
            weights |= {name: tensor.to("cpu", copy=True) for name, tensor in bucket}
        return weights

    @abstractmethod
    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the data-parallel ranks, for global counts and whitening."""

    @abstractmethod
    def save_checkpoint(self, directory: Path) -> None:
        """Weights, optimizer, schedule and random state. Collective; `directory` exists and is shared by the ranks of a
        node."""

    @abstractmethod
    def load_checkpoint(self, directory: Path) -> None:
        """Restores what `save_checkpoint` wrote, exactly. Collective."""

    @abstractmethod
    def save_hf_model(self, directory: Path) -> None:
        """Writes a directory that `AutoModel...from_pretrained` loads. Collective."""
