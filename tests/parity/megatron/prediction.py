"""A policy whose head for the token after the next one is trained: written out in one process with Hugging Face's own
layer, and as one rank of megatron_train runs it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from roll.distributed.strategy.megatron.train import MegatronTrainStrategy
from roll.types.batch import MicroBatch, TokenOutputs
from tests.parity.megatron import models, ranks
from tests.parity.megatron.ranks import HEAD_FACTOR, Run
from tests.parity.strategies.reference import (
    BETAS,
    EPSILON,
    LEARNING_RATE,
    TEMPERATURE,
    BentLoss,
    Trace,
    naive_log_probs,
    rows,
    scale_of,
)

AT = "model.layers.2."  # of the head in a model of two layers


class Head(nn.Module):
    """Names are those of the files, without the layer's number, which is in `at`; its layer's own parameters stand
    beside."""

    def __init__(self, model: Any):
        super().__init__()
        config = copy.deepcopy(model.config)
        if getattr(config, "mlp_layer_types", None):
            config.mlp_layer_types = [*config.mlp_layer_types, "sparse"]
        last, size, norm = config.num_hidden_layers, config.hidden_size, type(model.model.norm)
        self.at = f"model.layers.{last}."
        self.enorm, self.hnorm = norm(size, config.rms_norm_eps), norm(size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = type(model.model.layers[-1])(config, last)
        self.shared_head = nn.ModuleDict({"norm": norm(size, config.rms_norm_eps)})

    def forward(self, model: Any, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        merged = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        positions = torch.arange(merged.shape[1])[None]
        turned = model.model.rotary_emb(merged, position_ids=positions)
        output = self.layer(merged, attention_mask=None, position_ids=positions, position_embeddings=turned)
        return self.shared_head["norm"](output[0] if isinstance(output, tuple) else output)

    def stored(self, of: str = "weights") -> dict[str, np.ndarray]:
        """Weights, or gradients, by their names in the model's files."""
        found: dict[str, np.ndarray] = {}
        for name, parameter in self.named_parameters():
            tensor = parameter if of == "weights" else parameter.grad
            assert tensor is not None, name
            found[self.at + name.removeprefix("layer.")] = tensor.detach().numpy().copy()
        for name, buffer in self.named_buffers():
            if name.endswith("e_score_correction_bias"):
                found[self.at + name.removeprefix("layer.")] = buffer.numpy() * (of == "weights")
        return models.as_stored(found, "")

    def fill(self, stored: dict[str, torch.Tensor]) -> None:
        """From a model's files, by the names that `stored` gives."""
        with torch.no_grad():
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                key = self.at + name.removeprefix("layer.")
                if key.endswith("experts.gate_up_proj"):
                    prefix = key.removesuffix("gate_up_proj")
                    parts = [[stored[f"{prefix}{e}.{part}.weight"] for part in ("gate_proj", "up_proj")]
                             for e in range(len(tensor))]  # fmt: skip
                    tensor.copy_(torch.stack([torch.cat(pair) for pair in parts]))
                elif key.endswith("experts.down_proj"):
                    prefix = key.removesuffix("down_proj")
                    tensor.copy_(torch.stack([stored[f"{prefix}{e}.down_proj.weight"] for e in range(len(tensor))]))
                elif key in stored:
                    tensor.copy_(stored[key])


def make(directory: Path, family: str, **changes: object) -> Path:
    """A model directory whose files hold a head, and with it the embedding and the output matrix once more."""
    models.make(directory, family, **{"num_nextn_predict_layers": 1} | changes)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        head = Head(model)
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                noise = torch.randn(parameter.shape)
                parameter.copy_(1 + 0.1 * noise if "norm" in name else 0.1 * noise)
            for name, buffer in head.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.copy_(0.1 * torch.randn(buffer.shape))
    file = directory / "model.safetensors"
    trunk = load_file(file)
    shared = {f"{head.at}embed_tokens.weight": trunk["model.embed_tokens.weight"].clone()}
    shared[f"{head.at}shared_head.head.weight"] = trunk["lm_head.weight"].clone()
    own = {name: torch.from_numpy(values) for name, values in head.stored().items()}
    save_file(trunk | own | shared, file, metadata={"format": "pt"})
    return directory


def train_reference(
    model_dir: Path, mode: str, max_norm: float = 0.0, weight_decay: float = 0.0, updates: int = 3
) -> tuple[Trace, list[float]]:
    """Updates on all rows together, row by row without padding; and the mean cross-entropy of each."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    head, parts = Head(model), rows(vocab_size=models.VOCAB_SIZE)
    head.fill(load_file(model_dir / "model.safetensors"))
    everything = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in everything if p.dim() > 1], "weight_decay": weight_decay},
            {"params": [p for p in everything if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
    )  # fmt: skip
    kept = {name: values for name, values in models.corrections(model_dir).items() if not name.startswith(head.at)}
    counted = sum(int(part.response_mask[:, 2:].sum()) for part in parts)
    trace, losses = Trace({}, [], []), []
    for update in range(updates):
        optimizer.zero_grad()
        total = 0.0
        for index, row in enumerate(parts):
            scores, entropy = naive_log_probs(model, row, TEMPERATURE)
            if update == 0:
                trace.scores[index] = scores[0].detach().numpy()
            loss = BentLoss()(TokenOutputs(log_probs=scores, entropy=entropy), row, scale_of(parts))[0]
            further = _cross_entropy(model, head, row, mode)
            total += float(further.detach())
            (loss + HEAD_FACTOR * further / counted).backward()
        losses.append(total / counted)
        norm = _clip(model, head, mode, max_norm)
        own = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
        if update == 0:
            unmoved = {name: 0 * values for name, values in kept.items()}
            trace.gradients = models.as_stored(own, "") | unmoved | head.stored("gradients")
        if max_norm:
            _scale(model, head, mode, max_norm, norm)
        optimizer.step()
        weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
        trace.parameters.append(models.as_stored(weights, "") | kept | head.stored())
        trace.metrics.append({"grad_norm": norm[0], "learning_rate": LEARNING_RATE})
    return trace, losses


def _cross_entropy(model: Any, head: Head, row: MicroBatch, mode: str) -> torch.Tensor:
    """The sum over the tokens of a row that are trained, each two behind the position that predicts it."""
    hidden = model.model(input_ids=row.input_ids).last_hidden_state[:, :-1]
    embedded, matrix = model.model.embed_tokens(row.input_ids[:, 1:]), model.lm_head.weight
    if mode == "standalone":
        hidden, embedded, matrix = hidden.detach(), embedded.detach(), matrix.detach()
    logits = nn.functional.linear(head(model, hidden, embedded), matrix)[:, :-1]
    log_probs = torch.log_softmax(logits, -1).gather(-1, row.input_ids[:, 2:, None])[..., 0]
    return -(log_probs * row.response_mask[:, 2:]).sum()


def further_loss(model_dir: Path) -> Callable[[Any, MicroBatch], torch.Tensor]:
    """What the head of these files adds to the loss of a row, in mode joint."""
    head = Head(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32))
    head.fill(load_file(model_dir / "model.safetensors"))
    counted = sum(int(part.response_mask[:, 2:].sum()) for part in rows(vocab_size=models.VOCAB_SIZE))
    return lambda model, row: HEAD_FACTOR * _cross_entropy(model, head, row, "joint") / counted


def _groups(model: Any, head: Head, mode: str) -> list[list[nn.Parameter]]:
    """What is clipped together."""
    own, beside = list(model.parameters()), list(head.parameters())
    return [own, beside] if mode == "standalone" else [own + beside]


def _clip(model: Any, head: Head, mode: str, max_norm: float) -> list[float]:
    return [
        float(torch.sqrt(sum(((p.grad.double() ** 2).sum() for p in group), torch.zeros(())).double()))  # type: ignore[union-attr]
        for group in _groups(model, head, mode)
    ]


def _scale(model: Any, head: Head, mode: str, max_norm: float, norms: list[float]) -> None:
    for group in _groups(model, head, mode):
        nn.utils.clip_grad_norm_(group, max_norm)


@contextmanager
def _recorded(strategy: MegatronTrainStrategy) -> Iterator[dict[str, np.ndarray]]:
    """Gradients, as they are before the first step."""
    found: dict[str, np.ndarray] = {}
    step = strategy._updater.step

    def step_and_record(role: str) -> dict[str, float]:
        if strategy._updater.updates_done == 0:  # on all ranks, most of which have none of them afterwards
            found.update(ranks.gradients(strategy))
        return step(role)

    strategy._updater.step = step_and_record  # type: ignore[method-assign]
    yield found


def everything(strategy: MegatronTrainStrategy) -> dict[str, np.ndarray]:
    """What is sent to engines, and the head."""
    strategy._updater.finish_gather()
    tensors = strategy._exporter.tensors()
    return {name: t.float().cpu().numpy().copy() for name, t in tensors if t.device.type != "meta"}


def train(run: Run) -> tuple[Trace, list[float]]:
    """The updates of `run`, and the metric of each as all ranks have it."""
    given = rows(vocab_size=run.vocab_size)
    with ranks.trainer(run) as strategy, _recorded(strategy) as gradients:
        scores = ranks.first_scores(strategy, run.role, given)
        trace = Trace(gradients, [], [], scores)
        losses = []
        for _ in range(run.updates):
            batches = ranks.my_micro_batches(run, strategy.dp_rank, strategy.dp_size)
            sums, metrics = strategy.train_step(batches, run.loss, scale_of(given), TEMPERATURE)  # type: ignore[arg-type]
            trace.metrics.append(metrics)
            trace.parameters.append(everything(strategy))
            if run.head != "disabled":
                pair = [float(number) for number in sums.means["mtp_loss"]]
                total, count = strategy.all_reduce_sum(pair)
                losses.append(total / count)
        if run.megatron.get("use_distributed_optimizer"):
            trace.gradients = {}
        return trace, losses


def saved(run: Run, directory: Path, updates: int = 1) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What engines were sent, and everything, when the model was saved."""
    with ranks.trainer(run) as strategy:
        for _ in range(updates):
            ranks.one_update(strategy, run)
        strategy.save_hf_model(directory)
        partly = {n: t.numpy() for bucket in strategy.export_weights(1 << 16, whole=False) for n, t in bucket}
        sent = ranks.exported(strategy)
        assert partly.keys() <= sent.keys()
        return sent, everything(strategy)


def save_and_go_on(run: Run, directory: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Weights at a checkpoint after two updates, and after one more."""
    with ranks.trainer(run) as strategy:
        for _ in range(2):
            ranks.one_update(strategy, run)
        strategy.save_checkpoint(directory)
        then = everything(strategy)
        ranks.one_update(strategy, run)
        return then, everything(strategy)


def load_and_go_on(run: Run, directory: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Weights as loaded, and after one more update."""
    with ranks.trainer(run) as strategy:
        strategy.load_checkpoint(directory)
        loaded = everything(strategy)
        ranks.one_update(strategy, run)
        return loaded, everything(strategy)


def saved_twice(run: Run, checkpoint: Path, model: Path) -> None:
    """After an update, as a checkpoint and as a model."""
    with ranks.trainer(run) as strategy:
        ranks.one_update(strategy, run)
        checkpoint.mkdir(exist_ok=True)
        model.mkdir(exist_ok=True)
        strategy.save_checkpoint(checkpoint)
        strategy.save_hf_model(model)
