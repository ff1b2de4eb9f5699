"""The independent source of strategy parity: one Hugging Face model, one process, full float32 logits, torch's
AdamW."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
)

from roll.algorithms.loss import Need, SupervisedLoss
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums

TEMPERATURE = 0.8
BETAS, EPSILON, LEARNING_RATE = (0.9, 0.95), 1e-6, 1e-3


@dataclass(frozen=True)
class BentLoss:
    """-advantage x tanh(log-prob - rollout log-prob), and a share of the entropy: curved in the log-probs, so that a
    wrong temperature or alignment shows, and bounded, so that three large updates do not blow rounding errors up."""

    entropy_coef: float = 0.0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset[Need]({"log_probs", "entropy"} if self.entropy_coef else {"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        assert outputs.log_probs is not None and batch.advantages is not None
        assert batch.rollout_log_probs is not None
        bent = torch.tanh(outputs.log_probs - batch.rollout_log_probs)
        terms = -batch.advantages * bent
        if self.entropy_coef:
            assert outputs.entropy is not None
            terms = terms - self.entropy_coef * outputs.entropy
        total = (terms * batch.response_mask).sum()
        sums = MetricSums()
        sums.add("loss", total.detach(), batch.response_mask.sum())
        sums.maximum("bent_max", bent.detach().max())
        return total / scale.num_tokens, sums


@dataclass(frozen=True)
class SquaredValueLoss:
    """Half the squared distance of values to returns."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"values"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        assert outputs.values is not None and batch.returns is not None
        total = (0.5 * (outputs.values - batch.returns) ** 2 * batch.response_mask).sum()
        sums = MetricSums()
        sums.add("loss", total.detach(), batch.response_mask.sum())
        return total / scale.num_tokens, sums


def rows(num_rows: int = 8, vocab_size: int = 296, seed: int = 0) -> list[MicroBatch]:
    """Single rows of different lengths; the second has nothing to train on."""
    generator = np.random.default_rng(seed)
    made = []
    for row in range(num_rows):
        num_prompt, num_response = int(generator.integers(2, 6)), int(generator.integers(1, 9))
        length = num_prompt + num_response
        mask = np.arange(length) >= num_prompt
        if row == 1:
            mask[:] = False
        if row == 2:
            mask[num_prompt] = False  # a token in the middle that the policy did not sample

        def per_token(low: float, high: float, mask: np.ndarray = mask) -> torch.Tensor:
            values = generator.uniform(low, high, len(mask)) * mask
            return torch.from_numpy(values.astype(np.float32))[None]

        made.append(
            MicroBatch(
                input_ids=torch.from_numpy(generator.integers(3, vocab_size, length))[None],
                lengths=torch.tensor([length]),
                response_mask=torch.from_numpy(mask)[None],
                loss_weights=torch.ones(1),
                rollout_log_probs=per_token(-6, -5),
                advantages=per_token(-2, 2),
                returns=per_token(-1, 1),
            )
        )
    return made


def join(parts: list[MicroBatch]) -> MicroBatch:
    """One right-padded micro batch of single rows."""
    width = max(part.input_ids.shape[1] for part in parts)

    def joined(name: str) -> Any:
        tensors = [getattr(part, name) for part in parts]
        if name in ("lengths", "loss_weights"):
            return torch.cat(tensors)
        if name == "routes":
            return torch.cat(
                [torch.nn.functional.pad(t, (0, 0, 0, 0, 0, width - t.shape[1]), value=-1) for t in tensors]
            )
        return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])

    names = (
        "input_ids", "lengths", "response_mask", "loss_weights", "rollout_log_probs", "old_log_probs", "advantages",
        "returns", "routes",
    )  # fmt: skip
    media = None if parts[0].media is None else tuple(shown for part in parts for shown in part.media or ())
    return MicroBatch(**{name: joined(name) for name in names if getattr(parts[0], name) is not None}, media=media)


def scale_of(parts: list[MicroBatch]) -> LossScale:
    masks = [part.response_mask for part in parts]
    return LossScale(sum(int(m.sum()) for m in masks), sum(int(m.any(1).sum()) for m in masks))


def naive_log_probs(
    model: torch.nn.Module, row: MicroBatch, temperature: float, more: dict[str, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropy of one unpadded row from the whole float32 logits, [1, T]. `more`: what the model is given
    beside the ids."""
    logits = model(input_ids=row.input_ids, **(more or {})).logits.float() / temperature
    everything = torch.log_softmax(logits[:, : row.input_ids.shape[1] - 1], -1)
    picked = everything.gather(-1, row.input_ids[:, 1:, None])[..., 0]
    entropy = -(everything.exp() * everything).sum(-1)
    first = torch.zeros(1, 1)
    return (
        torch.cat([first, picked], 1) * row.response_mask,
        torch.cat([first, entropy], 1) * row.response_mask,
    )


@dataclass
class Trace:
    """What a training run did: gradients of the first update, and parameters after every update; metrics of every
    update. `scores`: of the tokens of these rows before the first update, log-probs or a critic's values."""

    gradients: dict[str, np.ndarray]
    parameters: list[dict[str, np.ndarray]]
    metrics: list[dict[str, float]]
    scores: dict[int, np.ndarray] = field(default_factory=dict)


class SlowMuon:
    """Muon in float64 with the singular values themselves: f(s) = a s + b s^3 + c s^5, five times."""

    def __init__(self, matrices: list[torch.nn.Parameter], weight_decay: float, momentum: float = 0.95):
        self._matrices, self._decay, self._momentum = matrices, weight_decay, momentum
        self._averages = [np.zeros(tuple(matrix.shape)) for matrix in matrices]

    def step(self, rate: float) -> None:
        for matrix, average in zip(self._matrices, self._averages, strict=True):
            assert matrix.grad is not None
            gradient = matrix.grad.double().numpy()
            average *= self._momentum
            average += gradient
            left, values, right = np.linalg.svd(gradient + self._momentum * average, full_matrices=False)
            values /= np.sqrt((values**2).sum(-1, keepdims=True))
            for _ in range(5):
                values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
            update = left * values[..., None, :] @ right * 0.2 * np.sqrt(max(matrix.shape[-2:]))
            new = matrix.detach().double().numpy() * (1 - rate * self._decay) - rate * update
            matrix.data = torch.from_numpy(new).to(matrix.dtype)


@dataclass(frozen=True)
class Change:
    """Other settings of the optimizer, from an update on."""

    update: int
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    max_norm: float


def train_reference(
    model_dir: Path,
    parts: list[MicroBatch],
    loss: BentLoss | SquaredValueLoss | SupervisedLoss,
    learning_rates: list[float],
    max_norm: float = 0.0,
    weight_decay: float = 0.0,
    dtype: torch.dtype = torch.float32,
    change: Change | None = None,
    adapter: Path | None = None,
    given: Callable[[MicroBatch], dict[str, torch.Tensor]] | None = None,
    frozen: tuple[str, ...] = (),
    of_tokens: torch.nn.Module | None = None,
) -> Trace:
    """One update per learning rate on all rows together, row by row without padding. `adapter`: a directory of peft's,
    which is trained instead of the weights; recorded are its gradients, and the weights with it. `given`: of a model
    that sees, what it gets beside a row's ids. `frozen`:
    beginnings of the names of weights that stay. `of_tokens`: a model that gives each token its value, of
    a critic that sees."""
    critic = isinstance(loss, SquaredValueLoss)
    if of_tokens is not None:
        model: Any = of_tokens
    elif critic:
        model = AutoModelForTokenClassification.from_pretrained(model_dir, dtype=dtype, num_labels=1).eval()
    elif given is not None:
        model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager")
    else:
        capped = getattr(AutoConfig.from_pretrained(model_dir), "attn_logit_softcapping", None)
        options = {"attn_implementation": "eager"} if capped else {}  # sdpa leaves the cap out
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, **options)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    for name, parameter in model.named_parameters():
        if name.startswith(frozen):
            parameter.requires_grad_(False)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [p for n, p in trained if p.dim() > 1 and not n.endswith("_bias")]  # all experts' biases are one tensor
    others = [p for n, p in trained if p.dim() <= 1 or n.endswith("_bias")]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPSILON,
    )
    scale = scale_of(parts)
    trace = Trace({}, [], [])
    for update, learning_rate in enumerate(learning_rates):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
            if change is not None and update == change.update:
                group["betas"], group["eps"], max_norm = change.betas, change.epsilon, change.max_norm
                group["weight_decay"] = change.weight_decay if group is optimizer.param_groups[0] else 0.0
        optimizer.zero_grad()
        for index, row in enumerate(parts):
            if critic:
                found = model(input_ids=row.input_ids, **({} if given is None else given(row)))
                states = (found if of_tokens is not None else found.logits)[..., 0].float()
                scores = torch.cat([torch.zeros(1, 1), states[:, :-1]], 1) * row.response_mask
                outputs = TokenOutputs(values=scores)
            else:
                scores, entropy = naive_log_probs(model, row, TEMPERATURE, None if given is None else given(row))
                outputs = TokenOutputs(log_probs=scores, entropy=entropy)
            if update == 0:
                trace.scores[index] = scores[0].detach().numpy()
            loss(outputs, row, scale)[0].backward()
        with_gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        gradients = {n.removeprefix("base_model.model."): g.numpy().copy() for n, g in with_gradient.items()}
        norm = float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values())))
        if max_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        trace.gradients = trace.gradients or gradients
        whole = model if adapter is None else copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
        trace.parameters.append({n: p.detach().numpy().copy() for n, p in whole.named_parameters()})
        trace.metrics.append({"grad_norm": norm, "learning_rate": learning_rate})
    return trace
