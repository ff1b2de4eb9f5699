"""Interface of every backend. A strategy knows torch.distributed and its engine, but no Ray and no rewards."""

from __future__ import annotations

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
from roll.configs.tables.roles import Head
from roll.distributed.weights.bucket import BucketSource, GroupSpec, WeightBucket
from roll.errors import StrategyError
from roll.models.teacher_targets import TeacherHead
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.forest import SharedWork
from roll.types.metrics import MetricSums
from roll.types.rollout import Answered, Generation, GenerationRequest

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
        numbers of each], on the CPU (roll/models/teacher_targets.py)."""
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

    def begin_schedule(self) -> None:
        """Puts the schedule before its first update, behind `load_checkpoint`; weights and moments stay. For
        strategies that support `Feature.OPTIMIZER_FROM`."""
        raise StrategyError(f"{type(self).__name__} cannot begin with the optimizer of another run")

    @abstractmethod
    def save_hf_model(self, directory: Path) -> None:
        """Writes a directory that `AutoModel...from_pretrained` loads. Collective."""


class GenerateStrategy(Strategy):
    """A rollout engine. All methods are called from one event loop; many `generate` calls are in flight at once. But
    `offload_states` and `load_states` block: they are called from another thread.

    Between the two nothing is sampled, on a CPU either, and requests in flight are kept: they go on when all states are
    back, with keys and values computed anew by the weights of then."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """Version of the weights in use; 0 before the first update."""

    @abstractmethod
    async def start(self) -> None:
        """Finishes what needs a running event loop. Called once after `setup`."""

    @abstractmethod
    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        """`request.num_samples` answers; `answered` is told of each on the event loop, before this returns.
        `request.on_tokens`, if there is one, is told of the tokens of answers that go on. Raises StrategyError when the
        request cannot be served (over-long prompt), EngineDied when no request can."""

    @abstractmethod
    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Ends these requests (None: all); their `generate` calls return what was sampled, with finish reason
        "abort"."""

    async def check_health(self) -> None:
        """Raises EngineDied if the engine can serve no more requests."""

    async def heartbeat(self) -> None:
        """Returns as soon as the engine comes by, between two of its steps: a sign that it does not hang."""

    @property
    def num_weight_receivers(self) -> int:
        """How many processes of this engine read weights (its tensor-parallel ranks)."""
        return 1

    @property
    def takes_parts(self) -> bool:
        """True if weight updates may leave out what did not change; asked for once it is started."""
        return True

    @abstractmethod
    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        """Joins a broadcast group with `num_weight_receivers` ranks from `first_rank` on. Returns when all members are
        in."""

    @abstractmethod
    async def begin_weight_update(self, whole: bool = True) -> None:
        """Prepares for the first bucket of weights. Nothing is sampled until `finish_weight_update`; requests in flight
        are kept, and new ones wait. Called again after an interrupted update. Unless the update is `whole`, weights
        that are not sent keep their values: there was a whole update before."""

    @abstractmethod
    async def import_weights(self, source: BucketSource) -> None:
        """One bucket of new weights, from where `source` says. When it returns, the source may be overwritten."""

    @abstractmethod
    async def finish_weight_update(self, version: int) -> None:
        """Finishes the update after the last bucket. `policy_version` becomes `version`, and no new request uses keys
        and values of older weights. Those of requests in flight are recomputed, unless the engine `keeps_kv`."""
