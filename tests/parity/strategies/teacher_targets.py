"""What teachers tell and an update of a student that learns from it, as one rank makes them, and the same as Hugging
Face and autograd have it. Module-level, so that it travels to the ranks by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from roll.algorithms.distillation import Distillation, DistillLoss, Divergence
from roll.algorithms.policy_loss import PolicyLoss
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import micro_batches
from roll.distributed.strategy.base import ScoreStrategy
from roll.models.head_scores import PLAIN, TeacherHead, pack_top_k_targets
from roll.types.batch import LossScale, Rows, SampleBatch, TaughtRows, TrainBatch
from roll.types.collate import pad
from roll.types.columns import token_indices
from roll.types.packing import neighbours_by_rank
from roll.utils.imports import resolve
from tests.contract.train_strategy import Case, built
from tests.helpers.log_probs import with_others
from tests.parity.strategies.pairs import LINEAR, PROMPT, Gradients, behind, facts, gradients_of
from tests.parity.strategies.runs import assert_shared, context, exported
from tests.parity.strategies.test_scoring import Scorer

LOSS = DistillLoss(weight=0.7)
VOCAB = 290  # of the 296 rows of both heads


def told(top_k: int) -> Distillation:
    return Distillation(Divergence("skewed_reverse_kl", temperature=1.5, teacher_temperature=0.8), VOCAB, top_k)


def taught(shares: bool = False, vocab_size: int = VOCAB) -> Rows:
    """Eight rows of different lengths, one of them without an answer. `shares`: they begin with one prompt, and the
    last two are equal."""
    rng = np.random.default_rng(13)
    lengths = rng.integers(4, 14, 8).astype(np.int32)
    starts = [int(rng.integers(1, length)) for length in lengths]
    starts[3] = int(lengths[3])
    mask = np.concatenate([np.arange(length) >= start for length, start in zip(lengths, starts, strict=True)])
    made = Rows(
        lengths=lengths,
        input_ids=rng.integers(3, vocab_size, len(mask)).astype(np.int32),
        response_mask=mask,
        loss_weights=np.ones(8, np.float32),
    )
    if not shares:
        return made
    prompts = np.tile(rng.integers(3, vocab_size, PROMPT), (8, 1))
    return behind(made.select(np.array([0, 1, 2, 3, 4, 5, 6, 6])), prompts)


def row_by_row(rows: Rows) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids [1, T], and which of them but the first are of the response."""
    ends = np.cumsum(rows.lengths)
    found = []
    for end, length in zip(ends.tolist(), rows.lengths.tolist(), strict=True):
        inside = slice(end - length, end)
        ids = torch.from_numpy(rows.input_ids[inside].astype(np.int64))[None]
        found.append((ids, torch.from_numpy(rows.response_mask[inside])[1:]))
    return found


@torch.no_grad()
def lesson_by_hugging_face(
    teacher_dir: Path, given: Distillation, shares: bool = False
) -> tuple[np.ndarray, TeacherHead | None]:
    """What the teacher tells of `taught`, and its head where that is hidden states."""
    model = AutoModelForCausalLM.from_pretrained(teacher_dir, dtype=torch.float32)
    parts = []
    for ids, mask in row_by_row(taught(shares)):
        if given.top_k:
            logits = model(input_ids=ids).logits[0, :-1, :VOCAB] / given.divergence.teacher_temperature
            log_q = torch.log_softmax(logits, -1)
            likeliest = log_q.topk(given.top_k).indices
            parts.append(pack_top_k_targets(with_others(log_q, likeliest), likeliest)[mask])
        else:
            parts.append(model.base_model(input_ids=ids).last_hidden_state[0, :-1][mask])
    head = TeacherHead(model.lm_head.weight[:VOCAB].numpy(), None, PLAIN, torch.float32)
    return torch.cat(parts).numpy(), None if given.top_k else head


def sampled(shares: bool = False) -> TrainBatch:
    """The rows of `taught` as if they were sampled, with advantages."""
    rows, rng = taught(shares), np.random.default_rng(17)
    count = len(rows)
    samples = SampleBatch(
        **vars(rows),
        rollout_log_probs=np.zeros(rows.num_tokens, np.float32),
        policy_versions=np.where(rows.response_mask, 0, -1).astype(np.int32),
        rewards=np.zeros(count, np.float32),
        group_ids=np.arange(count, dtype=np.int64),
        trajectory_ids=np.arange(count, dtype=np.int64),
        turns=np.zeros(count, np.int32),
        domains=np.full(count, "math"),
        finish_reasons=np.zeros(count, np.int8),
    )
    return TrainBatch(samples, (rng.normal(size=rows.num_tokens) * rows.response_mask).astype(np.float32))


def selected(batch: TrainBatch, lesson: np.ndarray, rows: np.ndarray) -> TrainBatch:
    """These rows with what the reference told of them."""
    samples, tokens = batch.samples, token_indices(batch.samples.lengths, rows)
    own = lesson[token_indices(samples.response_lengths, rows)]
    return TrainBatch(samples.select(rows), batch.advantages[tokens], teacher_targets=own)


def lessons(
    scorer: Scorer, teacher_dir: Path, given: Distillation
) -> tuple[list[int], list[np.ndarray], TeacherHead | None]:
    """Of this data-parallel rank's rows: their numbers, and what is told of each; and the head."""
    strategy: ScoreStrategy = resolve(scorer.class_path)(scorer.config(teacher_dir), context("reference"))  # type: ignore[operator]
    strategy.setup()
    rows = taught(scorer.shares)
    own = list(range(strategy.dp_rank, len(rows), strategy.dp_size))
    batches = [pad(rows, np.array(pair)) for pair in (own[:3], own[3:])]
    head = None if given.top_k else strategy.teacher_head(given)
    values = [found.numpy() for found in strategy.teacher_targets(batches, given)]
    strategy.shutdown()
    ends = np.cumsum(rows.response_lengths[own])[:-1]
    return own, np.split(np.concatenate(values), ends), head


def update(
    case: Case,
    model_dir: Path,
    given: Distillation,
    lesson: np.ndarray,
    head: TeacherHead | None,
    limits: BatchLimits,
    loss: DistillLoss | PolicyLoss = LOSS,
) -> tuple[Gradients, float, float]:
    """The gradient by Hugging Face names, its norm, and the loss of all ranks; of a policy loss what it says of the
    divergence."""
    rows = taught(case.shares)
    with built(case, model_dir, max_norm=0.0, **LINEAR) as strategy:
        strategy.set_teacher_head(given, head)
        before = exported(strategy)
        own = neighbours_by_rank(rows.lengths, 1, strategy.dp_size)[strategy.dp_rank]
        if isinstance(loss, PolicyLoss):
            mine: TrainBatch | TaughtRows = selected(sampled(case.shares), lesson, own)
            shown, temperature = "kl_loss", given.divergence.temperature
        else:
            mine = TaughtRows(
                **vars(rows.select(own)), teacher_targets=lesson[token_indices(rows.response_lengths, own)]
            )
            shown, temperature = "loss", 1.0
        groups = micro_batches(rows.lengths[own], np.arange(len(mine)), limits)
        batches = [pad(mine, group) for group in groups]
        scale = LossScale(int(rows.response_mask.sum()), len(rows) - 1)
        sums, values = strategy.train_step(batches, loss, scale, temperature)
        assert_shared(strategy)
        total = strategy.all_reduce_sum([float(sums.means[shown][0])])[0]
        changes = {name: before[name] - weight for name, weight in exported(strategy).items()}
    gradients = {name: change / (1 - np.abs(change)) for name, change in changes.items()}
    return gradients, values["grad_norm"], total / scale.num_tokens


def reference_of_policy(
    model_dir: Path,
    given: Distillation,
    lesson: np.ndarray,
    head: TeacherHead,
    kl_loss_coef: float,
    shares: bool = False,
) -> tuple[Gradients, float, float]:
    """The policy gradient and the KL to the reference row by row, without padding, from whole logits, by torch's own
    kl_div; the last number is the KL alone."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    batch, values, temperature = sampled(shares), torch.from_numpy(lesson), given.divergence.temperature
    losses, found = [], []
    advantages = torch.from_numpy(batch.advantages[batch.samples.response_mask])
    for ids, mask in row_by_row(taught(shares)):
        logits = model(input_ids=ids).logits[0, :-1].float()[mask] / temperature
        (own, values), (gains, advantages) = ((x[: len(logits)], x[len(logits) :]) for x in (values, advantages))
        log_probs = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None][mask])[:, 0]
        theirs = torch.log_softmax(own @ torch.from_numpy(head.weight).T / temperature, -1)
        ours = torch.log_softmax(logits[:, :VOCAB], -1)
        kl = functional.kl_div(theirs, ours, log_target=True, reduction="none").sum(-1)
        losses.append(-gains * log_probs + kl_loss_coef * kl)
        found.append(kl)
    total = torch.cat(losses).mean()
    total.backward()
    return gradients_of(model), facts(model, total)[0], torch.cat(found).mean().item()


def reference(
    model_dir: Path, given: Distillation, lesson: np.ndarray, head: TeacherHead | None, shares: bool = False
) -> tuple[Gradients, float, float]:
    """The same row by row, without padding, from whole logits."""
    model, kind = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), given.divergence
    losses, values = [], torch.from_numpy(lesson)
    for ids, mask in row_by_row(taught(shares)):
        logits = model(input_ids=ids).logits[0, :-1].float()[mask]
        own, values = values[: len(logits)], values[len(logits) :]
        nll = -torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None][mask])[:, 0]
        log_p = torch.log_softmax(logits[:, :VOCAB] / kind.temperature, -1)
        if head is None:
            log_q, chosen = own.split((given.top_k + 1, given.top_k), 1)
            apart = kind.of_likeliest(with_others(log_p, chosen.long()), log_q)
        else:
            theirs = own @ torch.from_numpy(head.weight).T / kind.teacher_temperature
            apart = kind.of_all(log_p, torch.log_softmax(theirs, -1))
        losses.append(LOSS.weight * apart + (1 - LOSS.weight) * nll)
    total = torch.cat(losses).mean()
    total.backward()
    return gradients_of(model), *facts(model, total)
