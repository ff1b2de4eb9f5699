"""Seconds of the phases of a step, by bytes, FLOPs and tokens, on the devices of each role."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from roll.configs.memory.engine import cache_bytes_per_token
from roll.configs.memory.flops import Gpu, forward_flops, training_flops
from roll.configs.memory.layer_shape import ModelShape
from roll.configs.memory.parts import RoleFacts
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.engine_limits import given_share
from roll.configs.plan.layout import parallel_sizes
from roll.configs.plan.run_plan import RunPlan
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.deepspeed import zero_stage
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import spec_of
from roll.features.prefix_sharing.checks import obstacles
from roll.simulate.forecast.lengths import Lengths
from roll.simulate.forecast.machine import Cpus, Devices, Gpus

_PADDING = 1.1  # rows of like length in a micro batch
_OPTIMIZER_BYTES = 48  # read and written for each weight in an update: gradient, master weight, two moments, clipping
_STATE_BYTES = 16  # of each trained weight, which wait in host memory while an engine has the GPU
_SAVED_BYTES = 14  # of each weight in a checkpoint
_OF_SHARE = 0.92  # of an engine's share: what it computes with takes the rest
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Hardware:
    """Place in which a run computes: GPUs of one kind, or the cores of this machine (`probe`)."""

    name: str
    gpu: Gpu | None = None
    probe: Mapping[str, object] | None = None

    def devices(self, config: RunConfig, plan: RunPlan, role: str) -> Devices:
        """The devices of one worker of a role."""
        worker = config.model_roles[role]
        if self.gpu is not None:
            sizes = parallel_sizes(worker)
            is_engine = config.roles[role].use == "generate"
            return Gpus(self.gpu, worker.num_gpus_per_worker if is_engine else sizes.tensor * sizes.pipeline)
        assert self.probe is not None
        cores, count = int(str(self.probe["cores"])), len(plan.layout[role].workers)
        said = {**config.system_envs, **worker.system_envs}.get(_THREADS, "")
        threads = min(cores, int(said) if said.isdecimal() and int(said) else max(1, cores // count))
        return Cpus(self.probe, threads, cores, min(1.0, cores / (threads * count)))


@dataclass(frozen=True)
class Phases:
    """The arithmetic of a run. `facts`: roles whose model is known."""

    config: RunConfig
    plan: RunPlan
    facts: Mapping[str, RoleFacts]
    lengths: Lengths
    hardware: Hardware

    def devices(self, role: str) -> Devices:
        return self.hardware.devices(self.config, self.plan, role)

    def share(self, name: str) -> float:
        """A figure of shares.yaml; on CPUs, those of layers and tokens count small operations."""
        values = self.devices(next(iter(self.facts))).shares
        probe = self.hardware.probe
        return values[name] * (float(str(probe["operation_s"])) if probe and name in _OPERATIONS else 1)

    # The engine

    def decode_s(self, role: str, running: int) -> float:
        """Seconds in which so many responses of one engine advance by a token, without reading their cache."""
        facts, devices = self.facts[role], self.devices(role)
        shape = facts.shape
        flops = 2.0 * (shape.products + shape.head_products) * running
        seconds = devices.pass_s("decode", flops, _weight_bytes(shape, facts.dtype_bytes), running, facts.dtype_bytes)
        logits = shape.vocab_size * devices.shares.get("logit_s", 0.0)
        return seconds + shape.num_layers * self.share("decode_layer_s") + running * (self.share("token_s") + logits)

    def context_s(self, role: str) -> float:
        """Seconds that each token in the cache adds to a decode step."""
        facts = self.facts[role]
        tensor = facts.worker.num_gpus_per_worker
        return self.devices(role).read_s(cache_bytes_per_token(facts.shape, facts.dtype_bytes, tensor) * tensor)

    def prefill_s(self, role: str, tokens: float) -> float:
        facts, devices = self.facts[role], self.devices(role)
        flops = forward_flops(facts.shape, tokens, tokens * tokens / 2)
        weights = _weight_bytes(facts.shape, facts.dtype_bytes)
        launches = facts.shape.num_layers * self.share("layer_s")
        return devices.pass_s("decode", flops, weights, tokens, facts.dtype_bytes) + launches

    def kv_tokens(self, role: str) -> int | None:
        """Tokens of an engine's cache, by its share of the GPUs; None on CPUs."""
        gpu, facts = self.hardware.gpu, self.facts[role]
        if gpu is None:
            return None
        memory = (self.config.gpu_memory_gb or gpu.memory) * 1e9 * facts.worker.num_gpus_per_worker
        share = given_share(facts.worker)
        share = _OF_SHARE * share if share else 0.55 if facts.shares_devices else 0.85
        free = memory * share - _weight_bytes(facts.shape, facts.dtype_bytes)
        return max(1024, int(free / cache_bytes_per_token(facts.shape, facts.dtype_bytes)))

    # The trainer

    def train_s(self, role: str) -> tuple[float, float]:
        """Seconds of a step's updates: of the products, which grow with the tokens, and of all else."""
        facts, devices, train = self.facts[role], self.devices(role), self.plan.trains[role]
        shape, size, args = facts.shape, facts.dtype_bytes, facts.worker.model_args
        rows = train.samples_per_step * train.epochs * (1 - self.lengths.skipped) / train.dp_size
        most = self._rows_at_once(facts.worker, train)
        passes = math.ceil(max(rows / most, train.updates_per_step))
        tokens, pairs = self._computed(role, rows, min(most, rows / passes))
        flops = training_flops(shape, tokens, pairs)
        if args.recomputed == "full":
            flops += forward_flops(shape, tokens, pairs) - 2.0 * shape.head_products * tokens
        if args.has_lora:
            flops *= 2 / 3  # no gradients of the weights themselves
        weights = _weight_bytes(shape, size)
        flops, tokens = flops / train.sequence_size, tokens / train.sequence_size
        products = devices.pass_s("train", flops, 3 * weights * passes, max(1.0, tokens / passes), size)
        ranks = train.dp_size * train.sequence_size
        trained = shape.num_elements * (0.01 if args.has_lora else 1)
        if ranks > 1:
            times = 3 * passes * _is_sharded(facts.worker) + 2 * train.updates_per_step
            sent = weights / max(1, facts.worker.num_gpus_per_worker) * times
            products = max(products, devices.copy_s(sent))
        pipeline = parallel_sizes(facts.worker).pipeline
        products *= 1 + (pipeline - 1) / max(1, passes)
        launches = 3 * passes * shape.num_layers * self.share("layer_s")
        states = trained * _OPTIMIZER_BYTES / (ranks if _is_sharded(facts.worker) else 1)
        beside = launches + train.updates_per_step * (devices.read_s(states) + devices.shares["update_s"])
        share = self._trainer_share(facts.worker)
        return products * share, beside * share

    def _trainer_share(self, worker: WorkerConfig) -> float:
        """How long the updates of this trainer take beside those by which the other figures were measured."""
        shares: Mapping[str, float] = self.devices(next(iter(self.facts))).shares["trainers"]  # type: ignore[assignment]
        name, stage = worker.strategy_name or "", zero_stage(worker.strategy_config)
        return shares.get(f"{name} {stage}" if "zero_optimization" in worker.strategy_config else name, 1.0)

    def _rows_at_once(self, worker: WorkerConfig, train: TrainPlan) -> float:
        budget = worker.packed_tokens_in_train or (
            worker.max_tokens_per_microbatch_in_train if worker.use_dynamic_batching_in_train else 0
        )
        return max(1.0, budget / self.lengths.row) if budget else float(train.micro_batch_size)

    def _computed(self, role: str, rows: float, at_once: float) -> tuple[float, float]:
        """Tokens and pairs of tokens of so many rows, of which as many as `at_once` are computed together."""
        worker, lengths, plan = self.facts[role].worker, self.lengths, self.plan
        pairs = rows * lengths.row**2 / 2
        if isinstance(plan, BatchPlan) and self._shares_prompts(role) and at_once >= 2:
            together = min(plan.group_size, at_once)
            tokens = rows * (lengths.mean + lengths.prompt / together)
            return tokens, pairs - rows * (1 - 1 / together) * lengths.prompt**2 / 2
        padding = _PADDING if lengths.spread and at_once > 1 and not worker.packs_rows else 1.0
        return rows * lengths.row * padding, pairs * padding**2

    def _shares_prompts(self, role: str) -> bool:
        worker = self.facts[role].worker
        can = Feature.PREFIX_SHARING in spec_of(worker.strategy_name).supports
        return worker.shares_prefixes and can and not obstacles(worker, learns=True)

    def score_s(self, role: str) -> float:
        """Seconds of a pass over a step's rows without gradient."""
        facts, devices = self.facts[role], self.devices(role)
        sizes = parallel_sizes(facts.worker)
        ranks = sizes.data * sizes.sequence
        rows = next(iter(self.plan.trains.values())).samples_per_step / ranks
        passes = math.ceil(rows / max(1, facts.worker.infer_batch_size))
        tokens, pairs = self._computed(role, rows, facts.worker.infer_batch_size)
        flops, weights = forward_flops(facts.shape, tokens, pairs), _weight_bytes(facts.shape, facts.dtype_bytes)
        seconds = devices.pass_s("score", flops, weights * passes, tokens / passes, facts.dtype_bytes)
        return seconds + passes * facts.shape.num_layers * self.share("layer_s")

    # Weights, turns, files

    def publish_s(self, trainer: str, engine: str) -> float:
        facts, devices = self.facts[engine], self.devices(engine)
        sent = _weight_bytes(facts.shape, facts.dtype_bytes)
        if self.config.model_roles[trainer].model_args.has_lora and self.plan.adapter_rank is not None:
            sent *= 0.01
        if self.hardware.gpu is not None:
            return 0.02 + sent / 1e9 * devices.shares["publish_s_per_gb"]
        copies: Mapping[str, float] = devices.shares["publish_copies"]  # type: ignore[assignment]
        return 0.005 + copies.get(facts.worker.strategy_name or "", 5.0) * devices.copy_s(sent) / 2

    def turn_s(self, trainer: str) -> float:
        """Seconds in which the trainer's states leave shared GPUs, or return."""
        facts = self.facts[trainer]
        states = facts.shape.num_elements * _STATE_BYTES / max(1, facts.num_ranks)
        return self.devices(trainer).copy_s(states, to_host=True)

    def save_s(self, trainer: str) -> float:
        return self.facts[trainer].shape.num_elements * _SAVED_BYTES / (self.share("disk_gb_per_s") * 1e9)


_OPERATIONS = ("layer_s", "decode_layer_s", "token_s")


def _weight_bytes(shape: ModelShape, dtype_bytes: int) -> float:
    return float(shape.num_elements) * dtype_bytes


def _is_sharded(worker: WorkerConfig) -> bool:
    """Whether ranks gather weights for each pass: FSDP2, ZeRO-3."""
    return zero_stage(worker.strategy_config) == 3 or "fsdp" in (worker.strategy_name or "")
