"""Updates with an expert's rows, as one rank's worker makes them, and their gradient as Hugging Face and autograd have
it. Module-level, so that it travels to the ranks by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.loss import Aggregation
from roll.algorithms.objectives import PolicyGradient
from roll.algorithms.policy_loss import ExpertLoss, MixedLoss, PolicyLoss
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import TrainJob, TrainRequest, micro_batches
from roll.distributed.executor.worker import TrainWorker
from roll.types.batch import Rows, SampleBatch
from roll.types.packing import rows_by_rank
from tests.contract.train_strategy import Case, built
from tests.parity.strategies.pairs import LINEAR, Gradients, facts, gradients_of
from tests.parity.strategies.runs import exported
from tests.unit.algorithms.rows import random_samples

TEMPERATURE, WEIGHT = 0.8, 0.3
LOSS = MixedLoss(PolicyLoss(PolicyGradient(), aggregation=Aggregation("token-mean")), ExpertLoss("uncertain"), WEIGHT)
ADVANTAGES = np.array([0.7, -1.0, 0.0, 0.4, -0.3, 1.2, 0.0, -0.6])
VOCAB = 296


def policy_rows() -> SampleBatch:
    rng = np.random.default_rng(5)
    samples = random_samples(rng, [3, 8, 0, 5, 2, 7, 4, 6])
    samples.input_ids[:] = rng.integers(3, VOCAB, samples.num_tokens)
    samples.loss_weights[:] = 1
    return samples


def expert_rows() -> Rows:
    """Six rows, of other lengths; with four of them, what evens out ranks has nothing to learn."""
    rng = np.random.default_rng(6)
    masks = [[False] * 2 + [True] * count for count in (2, 6, 1, 9, 0, 0)]
    return Rows.of([rng.integers(3, VOCAB, len(mask)).tolist() for mask in masks], masks)


def update(case: Case, model_dir: Path, limits: BatchLimits) -> tuple[Gradients, float, dict[str, tuple[float, float]]]:
    """The gradient by Hugging Face names, its norm, and this rank's sums of what is told of the expert's rows."""
    with built(case, model_dir, max_norm=0.0, **LINEAR) as strategy:
        before, worker = exported(strategy), object.__new__(TrainWorker)
        worker.strategy = strategy
        samples, expert = policy_rows(), expert_rows()
        shares = [rows_by_rank(rows.lengths, np.arange(len(rows)), 1, strategy.dp_size) for rows in (samples, expert)]
        counts = [
            max(len(micro_batches(rows.lengths, part, limits)) for part in parts)
            for rows, parts in zip((samples, expert), shares, strict=True)
        ]
        mine, shown = (parts[strategy.dp_rank] for parts in shares)
        job = TrainJob(LOSS, TEMPERATURE, 1, credit=RowCredit(CreditSettings(), ADVANTAGES).of(mine))
        request = TrainRequest(job, mine, limits, (counts[0],), (counts[1],))
        report = worker.train(request, [], samples.select(mine), expert.select(shown))
        told = {name: value for name, value in report.sums.to_floats().means.items() if name.startswith("expert_")}
        norm = report.sums.result()["grad_norm"]
        changes = {name: before[name] - weight for name, weight in exported(strategy).items()}
        return {name: change / (1 - np.abs(change)) for name, change in changes.items()}, norm, told  # type: ignore[return-value]


def reference(model_dir: Path) -> tuple[Gradients, float, float]:
    """The same row by row, without padding, with the formula written out; and the expert's mean loss."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    sampled, shown = policy_rows(), expert_rows()
    policy = [-advantage * p for advantage, p in zip(ADVANTAGES.tolist(), _log_probs(model, sampled), strict=True)]
    expert = [-(p * (p.exp() * (1 - p.exp())).detach()) for p in _log_probs(model, shown)]
    of_policy = torch.cat(policy).sum() / int(sampled.response_mask.sum())
    of_expert = torch.cat(expert).sum() / int(shown.response_mask.sum())
    total = (1 - WEIGHT) * of_policy + WEIGHT * of_expert
    total.backward()
    return gradients_of(model), facts(model, total)[0], float(of_expert.detach())


def _log_probs(model: torch.nn.Module, rows: Rows) -> list[torch.Tensor]:
    found, ends = [], np.cumsum(rows.lengths)
    for end, length in zip(ends.tolist(), rows.lengths.tolist(), strict=True):
        ids = torch.from_numpy(rows.input_ids[end - length : end].astype(np.int64))[None]
        mask = torch.from_numpy(rows.response_mask[end - length : end])[1:]
        log_probs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float() / TEMPERATURE, -1)
        found.append(log_probs.gather(1, ids[0, 1:, None])[:, 0][mask])
    return found
