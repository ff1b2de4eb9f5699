"""`fsdp2_train`: weights, gradients and optimizer spread over data-parallel ranks by torch's fully_shard."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from roll.algorithms.loss import Loss
from roll.algorithms.moe_aux_loss import with_balance
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.training import TrainingArgs
from roll.distributed.strategy import data_parallel
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.data_parallel import RankGroups
from roll.distributed.strategy.fsdp2.rank import Fsdp2Rank, local
from roll.distributed.strategy.fsdp2.sharding import whole_weight
from roll.distributed.strategy.host_copies import HostCopies
from roll.distributed.strategy.model_score import ModelTrainStrategy
from roll.distributed.strategy.optimizer import OfShards, go_on_after, not_finite, optimizer_of, schedule
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.distributed.weights.bucket import WeightBucket, fill_buckets
from roll.models.loading import DTYPES
from roll.models.weight_files import OneByOne, PlainReader
from roll.types.batch import LossScale, MicroBatch
from roll.types.metrics import MetricSums

# One update after the other: the norm of the whole gradient, clipping, the optimizer on this rank's shards.

_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_


class Updater:
    """The optimizer and its schedule over the trained shards of a rank."""

    def __init__(self, rank: Fsdp2Rank, args: TrainingArgs, plan: TrainPlan):
        self._rank, self._max_norm = rank, plan.max_grad_norm
        shards = rank.shards()
        self.trained = {name: shard for name, shard in shards.items() if shard.requires_grad}
        self.optimizer = optimizer_of(rank.module, args, lambda shard: shard.dim())
        self.schedule = schedule(self.optimizer, args, plan.total_updates, plan.warmup_updates)
        self._copies = HostCopies()
        waits, settings = plan.optimizer_waits, rank.settings
        self._waits = (settings.optimizer_offload or waits) and not settings.offload_policy  # between two updates

    def step(self, role: str) -> dict[str, float]:
        """Clips, updates, and returns `grad_norm` (before clipping) and `learning_rate`. StrategyError on every rank,
        with the weights untouched, if the gradient is not finite."""
        learning_rate = float(self.schedule.get_last_lr()[0])
        gradients = [local(shard.grad) for shard in self.trained.values() if shard.grad is not None]
        norm = self._norm()
        if not math.isfinite(norm):
            raise not_finite(role, norm)
        if 0 < self._max_norm < norm + _EPSILON:
            torch.ops.aten._foreach_mul_.Scalar(gradients, self._max_norm / (norm + _EPSILON))
        with self.moments_at_work():
            self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return {"grad_norm": norm, "learning_rate": learning_rate}

    def _norm(self) -> float:
        """Norm of the gradients of all ranks' shards. The result is the same on all ranks."""
        gradients = [local(shard.grad) for shard in self.trained.values() if shard.grad is not None]
        square = float(get_total_norm(gradients)) ** 2
        return math.sqrt(data_parallel.all_reduce([square], self._rank.context, group=self._rank.mesh.shard_group)[0])

    @contextmanager
    def moments_at_work(self) -> Iterator[None]:
        """Inside, the optimizer's states are on the device; afterwards where settings want them."""
        if self._waits:
            self._copies.bring_back(self._moments())
        yield
        if self._waits:
            self._copies.take(self._moments())

    def offload(self) -> None:
        if not self._rank.settings.offload_policy:
            self._copies.take(self._moments())

    def load(self) -> None:
        if not self._waits:
            self._copies.bring_back(self._moments())

    def _moments(self) -> Iterator[torch.Tensor]:
        """Moments of the optimizer, without the step counts."""
        for state in self.optimizer.state.values():
            tensors = [value for value in state.values() if torch.is_tensor(value) and value.ndim]
            yield from (local(value) if isinstance(value, DTensor) else value for value in tensors)


# The state of a trainer in the files of torch.distributed.checkpoint: by the parameters' names, under any number of
# ranks.

_FOLDER = "shards"
_MOMENTS, _MOMENTUM, _STEPS, _UPDATES = ("exp_avg", "exp_avg_sq"), "momentum_buffer", "step", "updates_done"


def save(directory: Path, rank: Fsdp2Rank, updater: Updater, fixed: dict[str, object]) -> None:
    """Weights, optimizer, place in the schedule and random state. Collective; `directory` is seen by all ranks."""
    target, context, optimizer = directory / _FOLDER, rank.context, updater.optimizer
    if context.rank == 0:
        target.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with updater.moments_at_work():
        state: dict[str, torch.Tensor] = {f"model.{n}": shard.detach() for n, shard in _saved(rank, updater).items()}
        for name, shard in updater.trained.items():
            if not isinstance(optimizer, OfShards):
                state |= {f"{key}.{name}": value for key, value in optimizer.state.get(shard, {}).items()}
        state[_UPDATES] = torch.tensor(updater.schedule.last_epoch)
        state_dict_saver.save(state, storage_writer=OneByOne(target))
        if isinstance(optimizer, OfShards):
            moments = {name: optimizer.saved(shard) for name, shard in updater.trained.items()}
            torch.save(moments, _local_moments(directory, context.rank))
    torch.save(data_parallel.random_state(), data_parallel.random_state_file(directory, context.rank))
    if context.rank == 0:
        SavedFacts(fixed, _layout(rank)).write(directory)
    dist.barrier()


def load(directory: Path, rank: Fsdp2Rank, updater: Updater) -> None:
    """Restores what `save` wrote, under the optimizer settings that the updater was built with. Random states come back
    under the same number of ranks only; under another lora_dropout, which alone draws from them, begins anew.
    Collective."""
    reader = PlainReader(directory / _FOLDER)
    there = reader.read_metadata().state_dict_metadata
    state: dict[str, torch.Tensor] = {f"model.{n}": shard.detach() for n, shard in _saved(rank, updater).items()}
    loaded: dict[str, dict[str, torch.Tensor]] = {}
    of_muon = {id(p) for group in updater.optimizer.param_groups if group.get("muon") for p in group["params"]}
    for name, shard in updater.trained.items():
        if id(shard) in of_muon:
            loaded[name] = {_MOMENTUM: torch.zeros_like(shard.detach())}
        elif f"{_STEPS}.{name}" in there:  # a weight that no update has reached has none
            device = local(shard).device if updater.optimizer.param_groups[0]["fused"] else "cpu"
            loaded[name] = {key: torch.zeros_like(shard.detach()) for key in _MOMENTS}
            loaded[name][_STEPS] = torch.zeros((), dtype=torch.float32, device=device)
        state |= {f"{key}.{name}": value for key, value in loaded.get(name, {}).items()}
    state[_UPDATES] = torch.tensor(0)
    state_dict_loader.load(state, storage_reader=reader)
    updater.optimizer.state.clear()
    with updater.moments_at_work():
        for name, values in loaded.items():
            updater.optimizer.state[updater.trained[name]] = values
        if isinstance(optimizer := updater.optimizer, OfShards):
            moments = torch.load(_local_moments(directory, rank.context.rank), weights_only=True, map_location="cpu")
            known = {name: values for name, values in moments.items() if name in updater.trained}
            optimizer.restore({updater.trained[name]: values for name, values in known.items()})
    go_on_after(updater.schedule, int(state[_UPDATES]))
    if SavedFacts.read(directory).layout == _layout(rank):
        data_parallel.set_random_state(
            torch.load(data_parallel.random_state_file(directory, rank.context.rank), weights_only=True)
        )


def _local_moments(directory: Path, rank: int) -> Path:
    """Moments of 8 bits, whose blocks no other number of ranks could read."""
    return directory / f"moments_{rank}.pt"


def _saved(rank: Fsdp2Rank, updater: Updater) -> Mapping[str, torch.Tensor]:
    """The weights; with adapters only what is trained."""
    return updater.trained if rank.has_adapters else rank.shards()


def _layout(rank: Fsdp2Rank) -> dict[str, object]:
    return {"world_size": rank.context.world_size}


class Fsdp2TrainStrategy(ModelTrainStrategy):
    """Policy, critic or reward model (context.head) under AdamW; fp32, or bf16 with fp32 master weights.

    The shards are the master weights: in bf16 they are cast on their way to the ranks that compute, and gradients are
    summed in fp32 (reduce_dtype). FSDP2 averages gradients over the ranks with different rows; the loss is multiplied
    by their number, so that the gradient of the update is the sum of what all micro batches of all ranks returned.
    """

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan):
        super().__init__(role, context, plan)
        self.rank = Fsdp2Rank(role, context)
        self._updater: Updater | None = None

    def setup(self) -> None:
        self.rank.start()
        self._groups = RankGroups.made(self.role, self.context)
        self._model = self.rank.load_model(torch.float32, with_adapters=True)
        self._check_balance()
        self._updater = Updater(self.rank, self.role.training_args, self.plan)
        with self.rank.unsharded_weights():
            pass  # they wait where they belong
        self._prepare()
        data_parallel.draw_apart(self.context.seed, self.context.rank)

    @property
    def updater(self) -> Updater:
        assert self._updater is not None, "setup() comes first"
        return self._updater

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        if not micro_batches:
            raise ValueError("an update needs at least one micro batch on every rank")
        module, sums, ranks = self.model.module, MetricSums(), self.rank.mesh.data.size()
        loss = with_balance(loss, self.role.model_args.moe_aux_loss_coef, micro_batches, self.all_reduce_sum)
        assert isinstance(module, FSDPModule)
        with self.rank.unsharded_weights():
            for i, micro_batch in enumerate(micro_batches):
                # Shards of gradients add up on each rank; replicas exchange them once.
                module.set_requires_all_reduce(i == len(micro_batches) - 1)
                batch = micro_batch.to(self.context.device)
                total, metrics = loss(self._outputs(module, batch, loss, temperature), batch, scale)
                (total * ranks if ranks > 1 else total).backward()
                sums.merge([metrics])
            self.rank.complete_gradients()
            facts = self.updater.step(self.context.role)
        return sums.to_floats(), facts

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return data_parallel.evened_out(micro_batches, self.context)

    def _ready_to_score(self) -> AbstractContextManager[None]:
        return self.rank.unsharded_weights()

    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        """Exports weights in model_args.dtype. Every rank gathers every weight that is sent, one at a time."""
        is_wanted = self.exports_weights or self.context.rank in to
        dtype = DTYPES[self.role.model_args.dtype]
        with self.rank.unsharded_weights():
            shards, exports = self.rank.shards(), self._exports(whole, merged)
            shapes = (
                (name, torch.empty(shards[e.weight].shape, dtype=dtype, device="meta")) for name, e in exports.items()
            )
            for bucket in fill_buckets(shapes, bucket_bytes, self.model.joined_in_files):
                weights = []
                for name, _ in bucket:
                    export = exports[name]
                    # Cast before it travels, unless an adapter is to be added in fp32.
                    tensors = {
                        n: whole_weight(shards[n], dtype if export.adapter is None else shards[n].dtype)
                        for n in export.parameters
                    }
                    value = export.value(tensors.__getitem__, dtype) if is_wanted else None
                    if (
                        self.rank.settings.param_offload
                        and self.rank.mesh.shard_group.size() == 1
                        and value is not None
                    ):
                        value = value.clone()  # the shard itself, which is about to leave
                    weights += [(name, value)] if value is not None else []
                yield self.model.in_checkpoint_form(weights)
        yield from self._beside_weights(exports, whole, is_wanted, bucket_bytes)

    def save_checkpoint(self, directory: Path) -> None:
        with self.rank.unsharded_weights():
            save(directory, self.rank, self.updater, self._facts)

    def load_checkpoint(self, directory: Path) -> None:
        SavedFacts.agreeing(directory, self._facts)
        with self.rank.unsharded_weights():
            load(directory, self.rank, self.updater)
            self.rank.forget_frozen()

    def _trained_on_host(self) -> dict[str, torch.Tensor]:
        names, trained = self.model.hf_names, self.updater.trained.items()
        with self.rank.unsharded_weights():
            return {names[n]: whole_weight(shard, shard.dtype).to("cpu", copy=True) for n, shard in trained}

    def offload_states(self, states: frozenset[State]) -> None:
        """Moves states to host memory. On a CPU everything is there already. Gradients do not exist between two
        updates."""
        if self.context.device.type == "cpu":
            return
        if State.WEIGHTS in states:
            self.rank.offload_weights()
        if State.OPTIMIZER in states:
            self.updater.offload()
        self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if self.context.device.type == "cpu":
            return
        if State.WEIGHTS in states:
            self.rank.load_weights()
        if State.OPTIMIZER in states:
            self.updater.load()

    def shutdown(self) -> None:
        self._updater = None
        self.rank.stop()
        self._model = None
