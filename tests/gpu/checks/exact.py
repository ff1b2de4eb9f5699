"""Exact passes on a device: small models of many types, whose tokens have the same bits in every pass; and what the
products cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from tests.gpu.check import Figures
from tests.gpu.checks.families import _save, words_of
from tests.gpu.place import Place, seconds_of

_KINDS = (
    *("qwen2", "qwen3", "gemma3_text", "gemma3n_text", "gpt2", "phi", "cohere", "olmo2", "starcoder2"),
    *("deepseek_v3", "glm4_moe", "mixtral", "olmoe", "qwen3_moe"),
)
"""Norms, biases, windows, products of each token's matrices, latent attention, routers, experts."""
_NUM_ROWS, _STEPS, _TEMPERATURE = 48, 4, 0.7
_LONGEST = 150
_SHAPES = {"cuda": (8192, 896, 4864), "cpu": (64, 64, 128)}


def same_bits(place: Place, kinds: tuple[str, ...] = _KINDS) -> Figures:
    """48 rows of 2 to 150 tokens in one pass, against three parts of them and some rows alone, and against tokens that
    a sampler computes beside cached ones, in fp32 and bf16: tokens with other log-probs. Then the time of a large
    linear layer by that of torch's own. A type that fails stops no other one; all are named at the end."""
    from tests.parity.families.page import exact_problems

    differing, lacking, checked, failures = 0, 0, 0, []
    for kind in kinds:
        started, directory = time.monotonic(), _save(kind, place.directory / kind)
        if problems := exact_problems(directory):
            failures.append(f"{kind}: {problems[0]}")
            continue
        for dtype in ("fp32", "bf16"):
            try:
                without, *numbers = _differing(directory, dtype, place.device)
            except Exception as error:
                failures.append(f"{kind}, {dtype}: {words_of(error)}")
                continue
            number = sum(numbers)
            differing, lacking = differing + number, lacking + without
            print(f"{kind}, {dtype} ({time.monotonic() - started:.1f} s): {number} tokens differ", flush=True)
        checked += 1
    if failures:
        raise AssertionError("; ".join(failures))
    slower = {f"{dtype}_to_torch": _slower(dtype, place.device) for dtype in ("fp32", "bf16")}
    return {"differing_tokens": differing, "lacking_tokens": lacking, "num_types": checked} | slower


def _differing(directory: Path, dtype: str, device: str) -> Iterator[int]:
    """Yields the number of tokens that have no log-prob in the pass of all rows, then of those with other ones than
    there. StrategyError by the checks that a trainer and an engine make."""
    from roll.configs.sections.model import ModelArgs
    from roll.distributed.strategy.hf.exact_decoder import ExactDecoder
    from roll.models.exact.check import check_exact
    from roll.models.exact.rows import ExactRows
    from roll.models.loading import load_policy
    from roll.models.sequences.pack import Pack
    from tests.parity.families.models import VOCAB_SIZE

    args = {"model_name_or_path": str(directory), "dtype": dtype, "disable_gradient_checkpointing": True}
    loaded = load_policy(ModelArgs.model_validate(args))
    loaded.module.to(device)
    loaded.pretrained.eval().requires_grad_(False)
    decoder = ExactDecoder(loaded)
    generator = np.random.default_rng(0)
    lengths = np.append([2, _LONGEST, 130], generator.integers(8, _LONGEST, _NUM_ROWS - 3))
    ids = generator.integers(3, VOCAB_SIZE - 2, (_NUM_ROWS, _LONGEST))

    def scores(chosen: list[int]) -> np.ndarray:
        of_chosen = torch.from_numpy(lengths[chosen]).to(device)
        rows = torch.from_numpy(ids[chosen]).to(device)
        mask = torch.arange(_LONGEST, device=device) < of_chosen[:, None]
        layout = ExactRows.of(Pack.scored(rows, of_chosen))
        return loaded.module(rows, mask, _TEMPERATURE, layout=layout)[0].cpu().numpy()

    with torch.no_grad():
        check_exact(loaded, torch.device(device))
        decoder.check()
        whole = scores(list(range(_NUM_ROWS)))
        yield int((lengths - 1).sum() - (whole < 0).sum())
        parts = (list(range(at, _NUM_ROWS, 3)) for at in range(3))
        for chosen in chain(parts, ([0], [1], [9])):
            yield int((scores(chosen) != whole[chosen]).sum())
        counts = np.maximum(lengths - _STEPS, 1)
        cache, logits = decoder.prefill([row[:count] for row, count in zip(ids, counts, strict=True)])
        for step in range(_STEPS):
            at = np.minimum(counts + step, lengths - 1)
            tokens = decoder.tensor(ids[range(_NUM_ROWS), at])
            found = decoder.log_probs(logits, tokens, np.full(_NUM_ROWS, _TEMPERATURE)).cpu().numpy()
            is_new = counts + step == at
            yield int(((found != whole[range(_NUM_ROWS), at]) & is_new).sum())
            places = decoder.tensor(counts + step)
            logits = decoder.decode(tokens[:, None], places[:, None], cache, np.zeros(_NUM_ROWS, np.int64), None)


def _slower(dtype: str, device: str) -> float:
    """Time of an exact linear layer by that of torch's."""
    from roll.models.exact.products import exact_linear

    rows, inner, columns = _SHAPES[device]
    of = torch.bfloat16 if dtype == "bf16" else torch.float32
    states, weight = (
        torch.randn(rows, inner, device=device, dtype=of),
        torch.randn(columns, inner, device=device, dtype=of),
    )
    works = [partial(linear, states, weight) for linear in (exact_linear, functional.linear)]
    ours, theirs = (min(seconds_of(work, 5) for _ in range(6)) for work in works)  # the first ones compile
    return ours / theirs
