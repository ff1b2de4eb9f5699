"""Blueprint of a worker. Plain data: it is unpickled in the worker before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import Head


@dataclass(frozen=True)
class Blueprint:
    """One rank of a role. `device` as torch names it; `strategy_class`: a dotted path; `plan`: of a role that
    learns."""

    role: str
    rank: int
    world_size: int
    local_rank: int
    seed: int
    device: str
    strategy_class: str
    settings: WorkerConfig
    plan: TrainPlan | None = None
    shares_devices: bool = False
    head: Head = "lm"
    keeps_kv: bool = False
    adapter_rank: int | None = None  # of LoRA adapters that are sent by themselves
    reports_routes: bool = False
    most_answers: int | None = None  # in flight in an engine
    shows_pictures: bool = False
    exact: bool = False


@dataclass(frozen=True)
class WorkerInfo:
    """Facts that a train or score worker reports when it is ready."""

    dp_rank: int
    dp_size: int
    exports_weights: bool = False
    shares_prefixes: bool = False  # rows of a micro batch that begin alike are computed as a tree


@dataclass(frozen=True)
class BatchLimits:
    """How rows are grouped into micro batches: by count; by padded tokens when `max_tokens` is given (T rounded up to
    `round_to`); by their own tokens with `packs`, and then into `at_least` so many. `together`: so many neighbours are
    in one."""

    num_rows: int
    max_tokens: int | None = None
    round_to: int = 1
    packs: bool = False
    at_least: int = 1
    together: int = 1

    @classmethod
    def for_scoring(cls, settings: WorkerConfig) -> BatchLimits:
        if tokens := settings.packed_tokens_in_infer:
            packing = settings.sequence_packing_args
            at_least = packing.min_num_micro_batches_forward if packing.by_tokens else 1
            return cls(settings.infer_batch_size, tokens, packs=True, at_least=at_least)
        if settings.use_dynamic_batching_in_infer:
            tokens, round_to = settings.max_tokens_per_microbatch_in_infer, settings.sequence_length_round_in_infer
            return cls(settings.infer_batch_size, tokens, round_to)
        return cls(settings.infer_batch_size)

    @classmethod
    def for_training(cls, settings: WorkerConfig, plan: TrainPlan) -> BatchLimits:
        if tokens := settings.packed_tokens_in_train:
            packing = settings.sequence_packing_args
            at_least = packing.min_num_micro_batches_train if packing.by_tokens else 1
            return cls(plan.micro_batch_size, tokens, packs=True, at_least=at_least, together=plan.rows_together)
        if settings.use_dynamic_batching_in_train:
            tokens, round_to = settings.max_tokens_per_microbatch_in_train, settings.sequence_length_round_in_train
            return cls(plan.micro_batch_size, tokens, round_to, together=plan.rows_together)
        return cls(plan.micro_batch_size, together=plan.rows_together)
