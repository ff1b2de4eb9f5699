"""What a rank of the trainers' tests runs. The models are too large to travel: what was computed is compared there."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from roll.distributed.strategy.base import TrainStrategy
from roll.types.batch import MicroBatch
from tests.parity.megatron import ranks
from tests.parity.strategies import runs
from tests.parity.strategies.reference import LEARNING_RATE, BentLoss, train_reference

BUCKET_BYTES = 64 << 20


@dataclass(frozen=True)
class Differences:
    """From the reference: `gradients`: the norm of the difference as a share of the gradient's; `worst_gradient`: that
    of the tensor where it is largest; `weights`: of any element after one update, on average, as a share of the
    learning rate; `log_probs`: of any token before it."""

    gradients: float
    worst_gradient: float
    weights: float
    log_probs: float


def write_reference(
    model_dir: Path, given: list[MicroBatch], directory: Path, adapter: Path | None, frozen: tuple[str, ...]
) -> None:
    """One update by Hugging Face's model and torch.optim.AdamW in fp32, of whole rows one after the other."""
    torch.set_num_threads(1)
    trace = train_reference(model_dir, given, BentLoss(), [LEARNING_RATE], adapter=adapter, frozen=frozen)
    save_file(trace.gradients, directory / "gradients.safetensors")
    save_file(trace.parameters[0], directory / "weights.safetensors")
    save_file({str(row): scores for row, scores in trace.scores.items()}, directory / "scores.safetensors")


def differences(run: runs.Run | ranks.Run, reference: Path) -> Differences | None:
    """Of one update from the reference, on rank 0."""
    module = runs if isinstance(run, runs.Run) else ranks
    with module.trainer(run) as strategy:  # type: ignore[arg-type]
        scores = runs.first_scores(strategy, run.role, run.rows())
        with module.gradients_before_a_step(strategy, run) as gradients:  # type: ignore[arg-type, call-arg]
            module.one_update(strategy, run)  # type: ignore[arg-type]
        if strategy.context.rank:
            for _ in strategy.export_weights(BUCKET_BYTES):
                pass
            return None
        of_gradients = distances(gradients, reference)
        gradients.clear()
        total, count = 0.0, 0
        with safe_open(reference / "weights.safetensors", "np") as want:
            for bucket in strategy.export_weights(BUCKET_BYTES):
                for name, tensor in bucket:
                    total += np.abs(tensor.float().numpy() - want.get_tensor(name)).sum(dtype=np.float64)
                    count += tensor.numel()
        with safe_open(reference / "scores.safetensors", "np") as want:
            gaps = [np.abs(found - want.get_tensor(str(row))).max() for row, found in scores.items()]
    return Differences(*of_gradients, float(total / count / LEARNING_RATE), float(max(gaps)))


def distances(gradients: dict[str, np.ndarray], reference: Path) -> tuple[float, float]:
    """From the reference's gradients: by the norm of all, and of the tensor where it is largest, each as a share."""
    with safe_open(reference / "gradients.safetensors", "np") as want:
        names = {name.replace(".default", ""): name for name in want.keys()}  # noqa: SIM118
        got = {name.replace(".default", ""): gradient for name, gradient in gradients.items()}
        assert got.keys() == names.keys()
        errors, norms = np.transpose([squares(got[name], want.get_tensor(there)) for name, there in names.items()])
    return float(np.sqrt(errors.sum() / norms.sum())), float(np.sqrt((errors / norms).max()))


def squares(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """The squared norm of the difference, and of what is wanted."""
    return float(((got - want).astype(np.float64) ** 2).sum()), float((want.astype(np.float64) ** 2).sum())


def save_and_go_on(run: runs.Run, directory: Path) -> tuple[dict[int, np.ndarray], dict[str, str]]:
    """Saves a checkpoint and the model after an update, in `checkpoint` and `model`. Returns the log-probs that the
    trainer has then, and the digests of the weights after one more update."""
    with runs.trainer(run) as strategy:
        runs.one_update(strategy, run)
        strategy.save_checkpoint(directory / "checkpoint")
        strategy.save_hf_model(directory / "model")
        scores = runs.first_scores(strategy, run.role, run.rows())
        runs.one_update(strategy, run)
        return scores, digests(strategy)


def load_and_go_on(run: runs.Run, directory: Path) -> dict[str, str]:
    """The digests of the weights an update after the checkpoint."""
    with runs.trainer(run) as strategy:
        strategy.load_checkpoint(directory / "checkpoint")
        runs.one_update(strategy, run)
        return digests(strategy)


def digests(strategy: TrainStrategy) -> dict[str, str]:
    """A text for each weight, which changes with any of its bits."""
    buckets = strategy.export_weights(BUCKET_BYTES)
    return {name: sha256(tensor.numpy().tobytes()).hexdigest() for bucket in buckets for name, tensor in bucket}
