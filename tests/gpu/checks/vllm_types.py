"""Small models of many types in vLLM: log-probs of what it samples, before an update of all weights and after it."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.gpu.check import Figures, largest, smallest
from tests.gpu.checks.families import words_of
from tests.gpu.place import Place

_SETTINGS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 16,
    "gpu_memory_utilization": 0.05,
    "kv_cache_memory_bytes": 256 << 20,
    "enforce_eager": True,  # graphs and compilers are the business of other checks, and take a minute
}
_BUCKET_BYTES = 40_000
_PROMPTS, _NEW_TOKENS = (5, 17, 40, 90), 16


def samples(place: Place, kinds: Sequence[str], quantization: str | None = None) -> Figures:
    """In bf16, or quantised as weights arrive (in a rehearsal nothing is), against transformers in fp32 on a CPU with
    weights in bf16. `moved_mean` is what the weights of before the update would be off by. A type that fails
    stops no other one."""
    found, failures = [], list[str]()
    for kind in kinds:
        started = time.monotonic()
        try:
            figures = _of_type(place, kind, quantization)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{kind}: {words_of(error)}")
            print(failures[-1], flush=True)
            continue
        found.append(figures)
        told = ", ".join(f"{name} {value:.2g}" for name, value in figures.items())
        print(f"{kind} ({time.monotonic() - started:.1f} s): {told}", flush=True)
    if failures:
        raise AssertionError("; ".join(failures))
    least = {"moved_mean"}
    return {name: (smallest if name in least else largest)(figures[name] for figures in found) for name in found[0]}


def _of_type(place: Place, kind: str, quantization: str | None) -> dict[str, float]:
    from roll.configs.strategies.model_facts import STATES
    from roll.models.loading import load_policy
    from tests.helpers.engines import EngineHarness
    from tests.parity.families.test_numbers import args_of
    from tests.parity.families.test_vllm import save

    directory = place.directory / kind
    save(kind, directory)
    loaded = load_policy(args_of(directory).model_copy(update={"disable_gradient_checkpointing": True}))
    loaded.module.eval()
    _change(loaded.module, 0.0)
    settings: dict[str, Any] = (
        _SETTINGS if place.on_cuda else {"enable_prefix_caching": False} if kind in STATES else {}
    )
    if quantization and place.on_cuda:
        settings = settings | {"quantization": quantization}
    harness = EngineHarness("vllm", directory, device=place.device, dtype="bf16", **settings)
    try:
        (first,) = _gaps(harness, [loaded.pretrained])
        old = copy.deepcopy(loaded.pretrained)
        _change(loaded.module, 0.02)
        own = dict(loaded.module.named_parameters())
        named = [(name, own[mine].detach().bfloat16()) for mine, name in loaded.hf_names.items()]
        weights = loaded.in_checkpoint_form([*named, *loaded.kept_buffers])
        harness.run(harness.send(weights, "memory", Path(), bucket_bytes=_BUCKET_BYTES), timeout_s=100)
        after, moved = _gaps(harness, [loaded.pretrained, old])
    finally:
        harness.close()
    return {
        "log_prob_gap_before": first,
        "gap_of_fp8": first,
        "log_prob_gap_after": after,
        "moved_mean": moved,
        "gap_to_moved": after / moved,
    }


def _change(module: torch.nn.Module, by: float) -> None:
    """Adds noise of that size to all weights, and rounds them to bf16."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_((parameter + by * torch.randn(parameter.shape, generator=generator)).bfloat16())


def _gaps(harness: Any, models: Sequence[Any]) -> list[float]:
    """Means over sampled tokens, by each model."""
    from tests.helpers.engines import forward_log_probs, prompt

    asked = [harness.request(prompt(length), 2, max_new_tokens=_NEW_TOKENS) for length in _PROMPTS]
    found = zip(asked, harness.generate(*asked, timeout_s=120), strict=True)
    pairs = [(request.prompt_ids, answer) for request, answers in found for answer in answers]
    return [
        float(np.mean([np.abs(a.log_probs - forward_log_probs(model, ids, a.token_ids)).mean() for ids, a in pairs]))
        for model in models
    ]
