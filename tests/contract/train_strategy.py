"""What every TrainStrategy promises, as functions that one rank runs. A new strategy adds a Case; the rest stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from roll.algorithms.loss import SupervisedLoss
from roll.algorithms.objectives import PolicyGradient
from roll.algorithms.policy_loss import PolicyLoss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import Head
from roll.distributed.strategy.base import ALL_STATES, TrainStrategy
from roll.errors import StrategyError
from roll.types.batch import MicroBatch
from roll.utils.imports import add_folder, resolve
from tests.parity.strategies.reference import (
    LEARNING_RATE,
    TEMPERATURE,
    BentLoss,
    SquaredValueLoss,
    join,
    naive_log_probs,
    rows,
    scale_of,
)
from tests.parity.strategies.runs import context, exported


@dataclass(frozen=True)
class Case:
    """A strategy in one of its forms."""

    strategy_name: str
    class_path: str
    world_size: int
    strategy_config: dict[str, Any] = field(default_factory=dict)
    folder: str = ""  # where its modules are, if they are not on the path
    packs: bool = False
    shares: bool = False  # use_prefix_sharing

    def __str__(self) -> str:
        stage = self.strategy_config.get("zero_optimization", {}).get("stage")
        form = "-packs" * self.packs + "-trees" * self.shares
        return f"{self.strategy_name}{'' if stage is None else stage}-x{self.world_size}{form}"


@contextmanager
def built(
    case: Case,
    model_dir: Path,
    role: str = "actor_train",
    max_norm: float = 1.0,
    head: Head | None = None,
    shows: bool = False,
    **training: Any,
) -> Iterator[TrainStrategy]:
    config = WorkerConfig.model_validate(
        {
            "strategy_args": {"strategy_name": case.strategy_name, "strategy_config": case.strategy_config},
            "model_args": {"model_name_or_path": str(model_dir), "dtype": "fp32"},
            "training_args": {"learning_rate": LEARNING_RATE, "lr_scheduler_type": "cosine"} | training,
            "use_sequence_packing": case.packs,
            "use_prefix_sharing": case.shares,
        }
    )
    plan = TrainPlan(
        role,
        8,
        8 // case.world_size,
        1,
        case.world_size,
        1,
        steps=20,
        warmup_updates=0,
        infer_batch_size=4,
        max_grad_norm=max_norm,
    )
    if case.folder:
        add_folder(Path(case.folder))
    cls = resolve(case.class_path)
    where = context(role, shows) if head is None else replace(context(role, shows), head=head)
    strategy: TrainStrategy = cls(config, where, plan)  # type: ignore[operator]
    strategy.setup()
    try:
        yield strategy
    finally:
        strategy.shutdown()


def mine(strategy: TrainStrategy) -> list[MicroBatch]:
    """This data-parallel rank's rows, one by one."""
    return rows()[strategy.dp_rank :: strategy.dp_size]


def update(strategy: TrainStrategy, micro_batches: list[MicroBatch] | None = None) -> tuple[float, dict[str, float]]:
    """One update; the loss of all ranks' rows and the metrics."""
    batches = micro_batches or [join(mine(strategy))]
    sums, metrics = strategy.train_step(batches, BentLoss(), scale_of(rows()), TEMPERATURE)
    return strategy.all_reduce_sum([float(sums.means["loss"][0])])[0] / scale_of(rows()).num_tokens, metrics


def losses_and_metrics(case: Case, model_dir: Path) -> list[tuple[float, dict[str, float]]]:
    with built(case, model_dir) as strategy:
        return [update(strategy) for _ in range(4)]


def losses_between_passes(case: Case, model_dir: Path) -> list[float]:
    """The losses of the same updates, before each of which log-probs are computed."""
    with built(case, model_dir) as strategy:
        losses = []
        for _ in range(4):
            strategy.log_probs([join(mine(strategy))], TEMPERATURE)
            losses.append(update(strategy)[0])
        return losses


def weights_after_splits(case: Case, model_dir: Path) -> list[dict[str, np.ndarray]]:
    """Weights after one update, from one micro batch and from one micro batch per row."""
    after = []
    for split in (False, True):
        with built(case, model_dir) as strategy:
            update(strategy, mine(strategy) if split else None)
            after.append(exported(strategy))
    return after


def gradients_without_idle_rows(case: Case, model_dir: Path) -> list[dict[str, float]]:
    """Metrics of an update of which every second row has no advantage, and of one that leaves these rows out."""
    after, loss = [], PolicyLoss(PolicyGradient())
    for leaves_out in (False, True):
        with built(case, model_dir) as strategy:
            own = [
                replace(row, advantages=torch.zeros_like(row.input_ids, dtype=torch.float32)) if i % 2 else row
                for i, row in enumerate(mine(strategy))
            ]
            _, metrics = strategy.train_step([join(own[:: 1 + leaves_out])], loss, scale_of(rows()), TEMPERATURE)
            after.append(metrics)
    return after


def masked_update(case: Case, model_dir: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float]:
    """Weights before and after an update on rows with nothing to train on, and its gradient norm."""
    with built(case, model_dir) as strategy:
        before = exported(strategy)
        _, metrics = update(strategy, [rows()[1]])
        return before, exported(strategy), metrics["grad_norm"]


Buckets = list[list[tuple[str, str, np.ndarray]]]


def buckets(case: Case, model_dir: Path, bucket_bytes: int) -> tuple[Buckets, Buckets]:
    """As they come for nobody else, and for the last rank, too."""
    exports: list[Buckets] = []
    with built(case, model_dir) as strategy:
        for to in ((), (case.world_size - 1,)):
            exports.append(
                [
                    [(name, str(tensor.dtype), tensor.numpy().copy()) for name, tensor in bucket]
                    for bucket in strategy.export_weights(bucket_bytes, to)
                ]
            )
            assert any(exports[-1]) == (strategy.exports_weights or context().rank in to)
    return exports[0], exports[1]


def scores_against_hf(case: Case, model_dir: Path) -> list[float]:
    """Largest differences of log-probs and entropy to a Hugging Face forward pass. Every rank brings another number of
    micro batches, the first none."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with built(case, model_dir) as strategy:
        batches = [join(rows()[i : i + 3]) for i in range(strategy.dp_rank * 2 if strategy.dp_size > 1 else 2)]
        outputs = strategy.log_probs(batches, TEMPERATURE, entropy=True)
        assert len(outputs) == len(batches)
        differences = [0.0]
        for start, output in enumerate(outputs):
            assert output.log_probs is not None and output.entropy is not None and not output.log_probs.requires_grad
            for i, row in enumerate(rows()[start : start + 3]):
                with torch.no_grad():
                    log_probs, entropy = naive_log_probs(model, row, TEMPERATURE)
                width = row.input_ids.shape[1]
                for got, want in ((output.log_probs, log_probs), (output.entropy, entropy)):
                    assert not got[i, width:].any()
                    differences.append(float((got[i, :width] - want[0]).abs().max()))
        try:
            strategy.values([])
        except StrategyError:
            return differences
        raise AssertionError("a policy gave values")


def resumed(case: Case, model_dir: Path, directory: Path) -> tuple[list[Any], list[Any]]:
    """What the third update of an unbroken run gives, and of one that was saved after two and loaded by a new
    strategy."""

    def third(strategy: TrainStrategy) -> list[Any]:
        return [update(strategy), torch.rand(3).tolist(), exported(strategy)]

    with built(case, model_dir) as strategy:
        for _ in range(2):
            update(strategy)
        strategy.save_checkpoint(directory)
        unbroken = third(strategy)
    with built(case, model_dir) as strategy:
        torch.rand(5)
        strategy.load_checkpoint(directory)
        return unbroken, third(strategy)


def saved_model(case: Case, model_dir: Path, directory: Path, role: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Exported weights after an update, and the state dict of the saved directory as Hugging Face loads it."""
    with built(case, model_dir, role) as strategy:
        loss = SquaredValueLoss() if role == "critic" else BentLoss()
        strategy.train_step([join(mine(strategy))], loss, scale_of(rows()), TEMPERATURE)  # type: ignore[arg-type]
        strategy.save_hf_model(directory)
        weights = exported(strategy)
    kind = AutoModelForTokenClassification if role == "critic" else AutoModelForCausalLM
    loaded = kind.from_pretrained(directory, dtype=torch.float32)
    return weights, {name: parameter.detach().numpy() for name, parameter in loaded.named_parameters()}


def critic_values(case: Case, model_dir: Path) -> tuple[float, float]:
    """Largest value of a fresh critic, and largest difference to a plain token classifier with the weights after an
    update."""
    with built(case, model_dir, "critic", learning_rate=0.01) as strategy:
        batch = join(rows())
        fresh = strategy.values([batch])[0].values
        assert fresh is not None
        loss = SquaredValueLoss()
        for _ in range(3):
            strategy.train_step([join(mine(strategy))], loss, scale_of(rows()), 1.0)  # type: ignore[arg-type]
        got = strategy.values([batch])[0].values
        weights = exported(strategy)
        differences = [0.0]
        if weights:
            plain = AutoModelForTokenClassification.from_pretrained(model_dir, dtype=torch.float32, num_labels=1).eval()
            plain.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
            assert got is not None and got.abs().max() > 0.01
            for i, row in enumerate(rows()):
                states = plain(input_ids=row.input_ids).logits[0, :, 0].detach()
                want = torch.cat([torch.zeros(1), states[:-1]]) * row.response_mask[0]
                differences.append(float((got[i, : len(want)] - want).abs().max()))
        return float(fresh.abs().max()), max(differences)


def moved_and_back(case: Case, model_dir: Path) -> tuple[list[float], list[float]]:
    """Log-probs before and after all states were moved away and brought back, and an update still works."""
    with built(case, model_dir) as strategy:
        batch = [join(rows())]
        before = strategy.log_probs(batch, 1.0)[0].log_probs
        strategy.offload_states(ALL_STATES)
        strategy.load_states(ALL_STATES)
        after = strategy.log_probs(batch, 1.0)[0].log_probs
        update(strategy)
        assert before is not None and after is not None
        return before.flatten().tolist(), after.flatten().tolist()


def supervised_update(case: Case, model_dir: Path) -> tuple[float, float]:
    """Mean negative log-likelihood and gradient norm of one supervised update on all ranks' rows."""
    with built(case, model_dir) as strategy:
        sums, metrics = strategy.train_step([join(mine(strategy))], SupervisedLoss(), scale_of(rows()), 1.0)
        total, count = strategy.all_reduce_sum([float(value) for value in sums.means["nll_mean"]])
        return total / count, metrics["grad_norm"]


def supervised_by_hf(model_dir: Path) -> tuple[float, float]:
    """The same by Hugging Face's own loss, row by row over the tokens of all."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    loss = 0.0
    for row in rows():
        labels = torch.where(row.response_mask, row.input_ids, -100)
        part = model(row.input_ids, labels=labels, num_items_in_batch=scale_of(rows()).num_tokens).loss
        part.backward()
        loss += float(part.detach())
    return loss, float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
