"""An update on pairs, as one rank makes it, and its gradient as Hugging Face and autograd have it. Module-level, so
that it travels to the ranks by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from roll.algorithms.loss import Loss
from roll.algorithms.preference import BradleyTerryLoss, DPOLoss
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import micro_batches
from roll.distributed.strategy.base import TrainStrategy
from roll.pipeline.rm.rm_pipeline import read_at_the_end
from roll.types.batch import LossScale, PairRows, Rows
from roll.types.collate import pad
from roll.types.packing import neighbours_by_rank
from tests.contract.train_strategy import Case, built
from tests.parity.strategies.runs import assert_shared, exported

LOSS = DPOLoss(beta=0.5, label_smoothing=0.1, sft_loss_coef=0.2)
# AdamW's first update of a gradient g is then g / (|g| + 1), from which g can be told.
LINEAR: dict[str, Any] = {"learning_rate": 1.0, "adam_epsilon": 1.0}
Gradients = dict[str, np.ndarray]
PROMPT = 40  # tokens
AnyRows = TypeVar("AnyRows", bound=Rows)


def pairs(shares: bool = False, vocab_size: int = 296) -> PairRows:
    """Eight pairs of different lengths. `shares`: both rows of a pair begin with a prompt of its own."""
    rng = np.random.default_rng(11)
    lengths = rng.integers(4, 14, 16).astype(np.int32)
    mask = np.concatenate([np.arange(length) >= rng.integers(1, length) for length in lengths])
    made = PairRows(
        lengths=lengths,
        input_ids=rng.integers(3, vocab_size, len(mask)).astype(np.int32),
        response_mask=mask,
        loss_weights=np.ones(16, np.float32),
        margins=np.repeat(rng.uniform(0, 1, 8), 2).astype(np.float32),
        ref_log_probs=(-rng.uniform(4, 7, len(mask)) * mask).astype(np.float32),
    )
    return behind(made, rng.integers(3, vocab_size, (8, PROMPT)).repeat(2, 0)) if shares else made


def behind(rows: AnyRows, prompts: np.ndarray) -> AnyRows:
    """The rows, each behind its prompt of `prompts` [rows, tokens]."""
    at = np.repeat(np.cumsum(rows.lengths) - rows.lengths, prompts.shape[1])
    more = {"input_ids": np.insert(rows.input_ids, at, prompts.ravel())}
    more["response_mask"] = np.insert(rows.response_mask, at, False)
    if isinstance(rows, PairRows) and rows.ref_log_probs is not None:
        more["ref_log_probs"] = np.insert(rows.ref_log_probs, at, 0)
    return replace(rows, lengths=rows.lengths + np.int32(prompts.shape[1]), **more)  # type: ignore[arg-type]


def update(strategy: TrainStrategy, loss: Loss, rows: PairRows, limits: BatchLimits) -> tuple[Gradients, float, float]:
    """The gradient by Hugging Face names, its norm, and the loss of all ranks."""
    before = exported(strategy)
    mine = rows.select(neighbours_by_rank(rows.lengths, 2, strategy.dp_size)[strategy.dp_rank])
    batches = [pad(mine, group) for group in micro_batches(mine.lengths, np.arange(len(mine)), limits)]
    scale = LossScale(int(rows.response_mask.sum()), len(rows))
    sums, values = strategy.train_step(batches, loss, scale, 1.0)
    assert_shared(strategy)
    total = strategy.all_reduce_sum([float(sums.means["loss"][0])])[0]
    changes = {name: before[name] - weight for name, weight in exported(strategy).items()}
    gradients = {name: change / (1 - np.abs(change)) for name, change in changes.items()}
    return gradients, values["grad_norm"], total / (len(rows) / 2)


def dpo_update(case: Case, model_dir: Path, limits: BatchLimits) -> tuple[Gradients, float, float]:
    with built(case, model_dir, max_norm=0.0, **LINEAR) as strategy:
        return update(strategy, LOSS, pairs(case.shares), limits)


def save_reward_model(model_dir: Path, directory: Path) -> None:
    """A sequence classifier on the layers of this model, with a head that is not zero."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float32, num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.1)
    model.save_pretrained(directory)


def rm_update(case: Case, model_dir: Path, limits: BatchLimits) -> tuple[Gradients, float, float]:
    with built(case, model_dir, max_norm=0.0, head="reward", **LINEAR) as strategy:
        return update(strategy, BradleyTerryLoss(), read_at_the_end(pairs(case.shares), padding=0), limits)


def rm_reference(model_dir: Path, shares: bool = False) -> tuple[Gradients, float, float]:
    """The number is read where Hugging Face reads it."""
    model, rows = AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float32), pairs(shares)
    ends = np.cumsum(rows.lengths)
    rewards = []
    for end, length in zip(ends.tolist(), rows.lengths.tolist(), strict=True):
        ids = torch.from_numpy(rows.input_ids[end - length : end].astype(np.int64))[None]
        rewards.append(model(input_ids=ids).logits[0, 0])
    gaps = [rewards[i] - rewards[i + 1] - float(rows.margins[i]) for i in range(0, len(rows), 2)]
    total = -logsigmoid(torch.stack(gaps)).mean()
    total.backward()
    return gradients_of(model), *facts(model, total)


def dpo_reference(model_dir: Path, shares: bool = False) -> tuple[Gradients, float, float]:
    """The same pair by pair, without padding, with the formula written out."""
    model, rows, losses = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), pairs(shares), []
    assert rows.ref_log_probs is not None
    ends = np.cumsum(rows.lengths)
    for pair in range(len(rows) // 2):
        gaps, nll = [], torch.zeros(())
        for row in (2 * pair, 2 * pair + 1):
            inside = slice(int(ends[row] - rows.lengths[row]), int(ends[row]))
            ids = torch.from_numpy(rows.input_ids[inside].astype(np.int64))[None]
            mask = torch.from_numpy(rows.response_mask[inside])[1:]
            log_probs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
            picked = log_probs.gather(1, ids[0, 1:, None])[:, 0][mask]
            gaps.append((picked - torch.from_numpy(rows.ref_log_probs[inside])[1:][mask]).sum())
            nll = -picked.mean() if row % 2 == 0 else nll
        h = LOSS.beta * (gaps[0] - gaps[1])
        wrong = LOSS.label_smoothing
        one = -(1 - wrong) * logsigmoid(h) - wrong * logsigmoid(-h) + LOSS.sft_loss_coef * nll
        losses.append(one)
    total = torch.stack(losses).mean()
    total.backward()
    return gradients_of(model), *facts(model, total)


def gradients_of(model: torch.nn.Module) -> Gradients:
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


def facts(model: torch.nn.Module, total: torch.Tensor) -> tuple[float, float]:
    """The norm of the gradient, and the loss."""
    norm = float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients_of(model).values())))
    return norm, float(total.detach())
