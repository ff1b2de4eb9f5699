"""Small models of many types on a device: what each makes of its rows, and how it learns, against transformers on a
CPU."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from roll.errors import StrategyError
from tests.gpu.check import Figures, largest
from tests.gpu.place import Place

Form = Literal["padded", "packed"]
KINDS = (
    *("qwen3", "gemma3_text", "glm4", "gpt_oss", "deepseek_v3", "qwen3_moe", "qwen3_next", "lfm2", "falcon_h1"),
    *("granitemoehybrid", "mistral", "olmo3", "glm4_moe", "nemotron_h", "gemma2", "qwen3_5_moe_text"),
)
"""Norms, windows, sinks, soft caps, latent attention, experts, gated delta rules, convolutions, Mamba."""
REST = "rest"
"""In place of types: all others that were tried on CPUs, and that this transformers has."""
LENGTHS = (150, 23, 70)  # kernels for GPUs work on tiles of 64 or 128 tokens
_LONGEST = 512
_SPREAD = 0.12  # of the weights: larger ones lose digits over rows that long
_TEMPERATURE = 0.7
_PROMPTS, _NEW_TOKENS = (9, 70), 10
_OF_WHOLE = 1e-3  # gradients below this share of the whole one's norm are rounding


@dataclass(frozen=True)
class _Pass:
    """Log-probs of all tokens but the first of each row, one row after the other, and the gradients of their mean."""

    log_probs: torch.Tensor
    gradients: dict[str, torch.Tensor]


def computes(place: Place, kinds: Sequence[str] | Literal["rest"] = KINDS) -> Figures:
    """Log-probs and gradients of rows of 150, 23 and 70 tokens, padded and packed, in fp32 and in bf16, and samples of
    hf_infer. bf16 is held against what transformers loses by it on a CPU. A type that fails stops no other one; all
    are named at the end."""
    kinds = _rest() if kinds == REST else kinds
    found: list[dict[str, float]] = []
    failures: list[str] = []
    for kind in kinds:
        started, before = time.monotonic(), len(failures)
        figures: dict[str, float] = {}
        try:
            for name, seen in _parts(kind, _save(kind, place.directory / kind), place.device, failures):
                figures[name] = largest((seen, figures.get(name, 0.0)))
        except Exception as error:  # of transformers alone
            failures.append(f"{kind}: {words_of(error)}")
        found.append(figures)
        told = ", ".join(f"{name} {value:.2g}" for name, value in figures.items())
        print(f"{kind} ({time.monotonic() - started:.1f} s): {told}", *failures[before:], sep="\n  ", flush=True)
    if failures:
        raise AssertionError("; ".join(failures))
    names = {"num_refused", *(name for figures in found for name in figures)}
    seen = {name: [figures.get(name, 0.0) for figures in found] for name in names}
    figures = {name: sum(of) if name.startswith("num_") else largest(of) for name, of in seen.items()}
    return figures | {"num_types": len(found)}


def _rest() -> list[str]:
    from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

    from tests.parity.families.test_numbers import ALONE

    return [kind for kind in ALONE if kind not in KINDS and kind in CONFIG_MAPPING_NAMES]


def _save(kind: str, directory: Path) -> Path:
    from tests.parity.families.models import save_tiny, tiny_config

    known = tiny_config(kind)
    longer = {key: _LONGEST for key in ("max_position_embeddings", "n_positions") if hasattr(known, key)}
    return save_tiny(kind, directory, _SPREAD, **longer)


def _parts(kind: str, directory: Path, device: str, failures: list[str]) -> Iterator[tuple[str, float]]:
    """Yields figures by name; what fails is put among the failures."""
    from tests.parity.families.page import problems

    want = _by_transformers(kind, directory, torch.float32)
    lost = _gaps(_by_transformers(kind, directory, torch.bfloat16), want)
    forms: list[Form] = ["padded"] if problems(directory, "actor_train", packs=True) else ["padded", "packed"]
    for form in forms:
        for dtype in ("fp32", "bf16"):
            try:
                gaps = _gaps(_by_roll(directory, dtype, form, device), want)
            except Exception as error:
                if isinstance(error, StrategyError) and _is_refused_on_cpus(directory, dtype, form):
                    yield "num_refused", 1.0
                else:
                    traceback.print_exc()
                    failures.append(f"{kind}, {form}, {dtype}: {words_of(error)}")
                continue
            if dtype == "fp32":
                yield "log_prob_gap_max", gaps["log_prob_max"]
                yield "gradient_gap", gaps["gradient_max"]
            else:
                yield "bf16_gap_to_plain", gaps["log_prob_mean"] / lost["log_prob_mean"]
                yield "bf16_gradient_to_plain", gaps["gradient"] / lost["gradient"]
    yield "num_packed", float("packed" in forms)
    if problems(directory, "actor_infer"):
        return
    try:
        yield "sampled_gap_max", _sampled_gap(kind, directory, device)
        yield "num_sampled", 1.0
    except Exception as error:
        traceback.print_exc()
        failures.append(f"{kind}, sampled: {words_of(error)}")


def _is_refused_on_cpus(directory: Path, dtype: str, form: Form) -> bool:
    """Whether it has nothing to do with the device, but with the version of transformers."""
    try:
        _by_roll(directory, dtype, form, "cpu")
    except StrategyError:
        return True
    return False


def words_of(error: Exception) -> str:
    text = str(error).strip() or "it said nothing"
    return f"{type(error).__name__}: {text.splitlines()[0]}"


def _rows() -> list[torch.Tensor]:
    from tests.parity.families.models import VOCAB_SIZE

    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB_SIZE - 2, (length,), generator=generator) for length in LENGTHS]


def _by_transformers(kind: str, directory: Path, dtype: torch.dtype) -> _Pass:
    """Each row alone on a CPU, with nothing of the model left out."""
    from tests.parity.families.models import right_model
    from tests.parity.families.test_numbers import log_probs

    model = right_model(kind, directory, dtype)
    found = torch.cat([log_probs(model, row) for row in _rows()])
    found.mean().backward()
    return _Pass(found.detach(), _gradients(model))


def _by_roll(directory: Path, dtype: str, form: Form, device: str) -> _Pass:
    """All rows together on the device, as a trainer computes them: by the head that never makes all logits."""
    from roll.configs.sections.model import ModelArgs
    from roll.models.loading import load_policy
    from roll.models.sequences.check import check_packs
    from roll.models.sequences.pack import Pack
    from roll.models.sequences.packed_attention import use_packed_attention

    loaded = load_policy(ModelArgs.model_validate({"model_name_or_path": str(directory), "dtype": dtype}))
    loaded.module.to(device)
    lengths = torch.tensor(LENGTHS, device=device)
    ids = torch.nn.utils.rnn.pad_sequence(_rows(), batch_first=True).to(device)
    columns = torch.arange(ids.shape[1], device=device)
    mask = (columns > 0) & (columns < lengths[:, None])
    layout = None
    if form == "packed":
        use_packed_attention(loaded.pretrained)
        with torch.no_grad():
            check_packs(loaded, torch.device(device))
        layout = Pack.scored(ids, lengths)
    (found, *_) = loaded.module(ids, mask, _TEMPERATURE, layout=layout)
    assert found is not None
    found[mask].mean().backward()
    return _Pass(found[mask].detach().float().cpu(), _gradients(loaded.pretrained))


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.float().cpu() for name, p in model.named_parameters() if p.grad is not None}


def _gaps(found: _Pass, want: _Pass) -> dict[str, float]:
    """Gradients: norm of the difference by the norm, of all together and of the worst weight."""
    if lacking := [name for name, grad in want.gradients.items() if name not in found.gradients and grad.any()]:
        raise AssertionError(f"no gradient of {lacking[0]}")
    off = found.log_probs - want.log_probs
    norms = {name: float(gradient.norm()) for name, gradient in want.gradients.items()}
    whole = float(np.linalg.norm(list(norms.values())))
    wrong = {name: float((g - want.gradients[name]).norm()) for name, g in found.gradients.items() if name in norms}
    return {
        "log_prob_max": float(off.abs().max()),
        "log_prob_mean": float(off.abs().mean()),
        "gradient": float(np.linalg.norm(list(wrong.values()))) / whole,
        "gradient_max": largest(gap / max(norms[name], _OF_WHOLE * whole) for name, gap in wrong.items()),
    }


def _sampled_gap(kind: str, directory: Path, device: str) -> float:
    """Between the log-probs with which hf_infer samples in fp32, and those of the whole row alone on a CPU."""
    from roll.configs.sections.model import ModelArgs
    from roll.distributed.strategy.hf.sampler import BatchSampler
    from roll.models.loading import load_policy
    from roll.types.rollout import GenerationRequest, SamplingParams
    from tests.parity.families.models import right_model
    from tests.parity.families.test_numbers import log_probs

    args = ModelArgs(model_name_or_path=str(directory), dtype="fp32", disable_gradient_checkpointing=True)
    loaded: Any = load_policy(args).pretrained
    model = loaded.eval().requires_grad_(False).to(device)
    sampler = BatchSampler(model, [1], None, _LONGEST, 8)
    prompts = {str(n): row[:length].numpy() for n, (row, length) in enumerate(zip(_rows()[::2], _PROMPTS, strict=True))}
    for name, prompt in prompts.items():
        params = SamplingParams(max_new_tokens=_NEW_TOKENS, temperature=_TEMPERATURE, seed=5, ignore_eos=True)
        sampler.submit(GenerationRequest(name, prompt.astype(np.int32), params))
    answers = []
    while sampler.has_work:
        answers += sampler.step()
    right, gaps = right_model(kind, directory), []
    for answer in answers:
        prompt, told = prompts[answer.request_id], answer.generation
        whole = torch.from_numpy(np.concatenate([prompt, told.token_ids]).astype(np.int64))
        with torch.no_grad():
            wanted = log_probs(right, whole)[len(prompt) - 1 :].numpy()
        gaps.append(float(np.abs(told.log_probs - wanted).max()))
    return largest(gaps)
