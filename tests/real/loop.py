"""PPO's clipped loss and its gradients by a plain loop in float64, of Hugging Face's model with eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from roll.algorithms.policy_loss import PolicyLoss
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums
from tests.parity.strategies import runs
from tests.parity.strategies.reference import TEMPERATURE
from tests.real import ranks

CLIP = 0.2
MOVED = 0.4  # old log-probs are at most this far from the policy's, so that the clip takes some tokens on both sides


class TimesLoss(PolicyLoss):
    """A loss that is wrong by one part in a thousand."""

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        loss, metrics = super().__call__(outputs, batch, scale)
        return 1.001 * loss, metrics


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Inside, transformers computes norms, softmax and rotations in float64, for which it takes float32 otherwise."""
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def write_gradients(model_dir: Path, given: list[MicroBatch], directory: Path) -> list[MicroBatch]:
    """Writes the gradients of one update and returns the rows with the old log-probs that it took."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64, attn_implementation="eager")
    num_tokens = sum(int(row.response_mask.sum()) for row in given)
    generator, rows = np.random.default_rng(0), []
    with all_in_float64():
        for row in given:
            ids, first = row.input_ids[0], int(row.response_mask[0].nonzero()[0])
            logits = model(input_ids=ids[None], logits_to_keep=len(ids) - first + 1).logits[0, :-1] / TEMPERATURE
            log_probs = torch.log_softmax(logits, -1).gather(-1, ids[first:, None])[:, 0]
            moved = torch.from_numpy(generator.uniform(-MOVED, MOVED, len(log_probs)))
            old = (log_probs.detach() + moved).to(row.advantages.dtype)  # type: ignore[union-attr]
            ratio, advantages = torch.exp(log_probs - old.double()), row.advantages[0, first:].double()  # type: ignore[index]
            objective = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
            (-objective.sum() / num_tokens).backward()
            rows.append(replace(row, old_log_probs=torch.cat([torch.zeros(first), old])[None]))
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    save_file(gradients, directory / "gradients.safetensors")
    return rows


def gradient_distances(run: runs.Run, reference: Path) -> tuple[float, float]:
    """Those of one update of the trainer from the loop's: of the whole gradient, and of its worst tensor."""
    with runs.trainer(run) as strategy, runs.gradients_before_a_step(strategy, run) as gradients:
        runs.one_update(strategy, run)
        return ranks.distances(gradients, reference)
