"""Adapters on every linear layer of a mixture, one for each expert's matrix, trained without peft: every weight of the
Hugging Face model is W + s B A in the forward pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from roll.types.batch import MicroBatch, TokenOutputs
from tests.parity.megatron import models
from tests.parity.strategies.reference import (
    BETAS,
    EPSILON,
    TEMPERATURE,
    BentLoss,
    Trace,
    naive_log_probs,
    rows,
    scale_of,
)

Factors = dict[str, torch.Tensor]  # by peft's names without its prefix
RANK, ALPHA = 3, 6
SETTINGS: dict[str, Any] = {"lora_rank": RANK, "lora_alpha": ALPHA, "use_rslora": False}


def some_factors(model_dir: Path, family: str) -> Factors:
    """For every matrix of the model's files but embedding, head and routers; B is not 0."""
    generator, factors = torch.Generator().manual_seed(1), {}
    for name, weight in sorted(load_file(model_dir / "model.safetensors").items()):
        if weight.dim() == 2 and name.startswith("model.layers.") and not name.endswith(".gate.weight"):
            layer = name.removesuffix(".weight")
            out, given = weight.shape
            factors[f"{layer}.lora_A.weight"] = torch.randn(RANK, given, generator=generator) * 0.1
            factors[f"{layer}.lora_B.weight"] = torch.randn(out, RANK, generator=generator) * 0.05
    return factors


def write(factors: Factors, model_dir: Path, directory: Path) -> Path:
    """As peft writes them."""
    save_file({f"base_model.model.{n}": t for n, t in factors.items()}, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "base_model_name_or_path": str(model_dir),
        "target_modules": sorted({name.split(".")[-3] for name in factors}),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


class Adapted(torch.nn.Module):
    """Called as the Hugging Face model is."""

    def __init__(self, model_dir: Path, factors: Factors):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).requires_grad_(False)
        self.stored = load_file(model_dir / "model.safetensors")
        self.names = list(factors)
        self.factors = torch.nn.ParameterList([torch.nn.Parameter(factor.clone()) for factor in factors.values()])

    def merged(self) -> dict[str, torch.Tensor]:
        """By the names of the model's files."""
        named, weights = dict(zip(self.names, self.factors, strict=True)), dict(self.stored)
        for name in self.names:
            layer, _, factor = name.removesuffix(".weight").rpartition(".")
            if factor == "lora_A":
                b, a = named[f"{layer}.lora_B.weight"], named[name]
                weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + ALPHA / RANK * b @ a
        return weights

    def forward(self, **given: Any) -> Any:
        return torch.func.functional_call(self.model, self._fused(self.merged()), (), given)

    def _fused(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By the names of the model in memory, experts together."""
        own = {}
        for name, parameter in self.model.named_parameters():
            prefix, _, last = name.rpartition(".")
            if not prefix.endswith(".experts"):
                own[name] = weights[_stored_name(name, weights)]
                continue
            parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
            experts = [
                torch.cat([weights[_stored_name(f"{prefix}.{expert}.{part}.weight", weights)] for part in parts])
                for expert in range(len(parameter))
            ]
            own[name] = torch.stack(experts)
        return own


def _stored_name(name: str, weights: dict[str, torch.Tensor]) -> str:
    """Mixtral's files call its mixtures otherwise."""
    if name in weights:
        return name
    for old, new in {"mlp.": "block_sparse_moe.", "gate_proj.": "w1.", "up_proj.": "w3.", "down_proj.": "w2."}.items():
        name = name.replace(old, new)
    return name


def train(
    model_dir: Path,
    family: str,
    factors: Factors,
    learning_rates: list[float],
    vocab_size: int = models.VOCAB_SIZE,
    given: list[MicroBatch] | None = None,
) -> Trace:
    model = Adapted(model_dir, factors)
    optimizer = torch.optim.AdamW(model.factors, lr=learning_rates[0], betas=BETAS, eps=EPSILON, weight_decay=0.0)
    given, loss, trace = given or rows(vocab_size=vocab_size), BentLoss(), Trace({}, [], [])
    for learning_rate in learning_rates:
        optimizer.zero_grad()
        for index, row in enumerate(given):
            log_probs, entropy = naive_log_probs(model, row, TEMPERATURE)
            trace.scores.setdefault(index, log_probs[0].detach().numpy())
            loss(TokenOutputs(log_probs=log_probs, entropy=entropy), row, scale_of(given))[0].backward()
        gradients = {
            name: np.zeros(factor.shape, np.float32) if factor.grad is None else factor.grad.numpy().copy()
            for name, factor in zip(model.names, model.factors, strict=True)
        }
        norm = float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values())))
        optimizer.step()
        trace.gradients = trace.gradients or gradients
        with torch.no_grad():
            trace.parameters.append({name: tensor.numpy().copy() for name, tensor in model.merged().items()})
        trace.metrics.append({"grad_norm": norm, "learning_rate": learning_rate})
    return trace
