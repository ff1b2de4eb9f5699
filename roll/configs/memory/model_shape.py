"""The shape of a model by its config.json: by a closed form for common families, else asked of transformers in a
process of its own, whose answers are kept in the user's cache."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roll.configs.memory.closed_forms import closed_form
from roll.configs.memory.layer_shape import Eager, LayerShape, ModelShape, SavedElements, Weight
from roll.configs.sections.model import Head
from roll.configs.strategies.model_facts import SINKS
from roll.configs.strategies.model_numbers import attention_cap, text_part, type_of
from roll.configs.tables.families import NUM_HEADS, family_of
from roll.utils.files import write_whole
from roll.utils.imports import is_installed

CACHE = "~/.cache/roll/shapes"
KERNELS = ("fla", "mamba_ssm", "causal_conv1d")
"""Packages with kernels of recurrences. Engines have such kernels of their own."""
_MEASURE = "roll.run.start.measure"
_TIMEOUT_S = 300
_OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def model_shape(model: Mapping[str, Any], head: Head = "lm") -> tuple[ModelShape | None, str]:
    """The shape of the model of a config.json (with the role's overrides in it), or None and the reason."""
    shape, why_not = closed_form(model), ""
    if shape is None:
        shape, why_not = _measured(json.dumps(model, sort_keys=True, default=str))
    if shape is None:
        return None, why_not
    shape = replace(shape, eager=_eager(text_part(model), shape.eager), mtp=tuple(_mtp(shape, model)))
    return (shape if head == "lm" else _with_numbers(shape, model, head)), ""


@cache
def _measured(model: str) -> tuple[ModelShape | None, str]:
    try:
        of_transformers = version("transformers")
    except PackageNotFoundError:
        return None, "transformers is not installed"
    kernels = [name for name in KERNELS if is_installed(name)]
    spec = find_spec(_MEASURE)
    assert spec is not None and spec.origin is not None
    parts = (model, of_transformers, *kernels, Path(spec.origin).read_text(encoding="utf-8"))
    file = Path(CACHE).expanduser() / f"{sha256(repr(parts).encode()).hexdigest()[:24]}.json"
    try:
        answer = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        answer = _ask({"model": json.loads(model), "kernels": kernels})
        if answer.pop("is_final"):
            with suppress(OSError):  # then it is asked again
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, json.dumps(answer))
    if "why_not" in answer:
        return None, f"transformers {of_transformers} cannot build it: {answer['why_not']}"
    return _shape(answer), ""


def _ask(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a process. `is_final`: it would be the same another time."""
    command = [sys.executable, "-m", _MEASURE]
    try:
        done = subprocess.run(
            command,
            input=json.dumps([question]),
            capture_output=True,
            text=True,
            env={**os.environ, **_OFFLINE},
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"why_not": f"it took more than {_TIMEOUT_S} s", "is_final": False}
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return {"why_not": last, "is_final": False}
    (answer,) = json.loads(done.stdout)
    return {**answer, "is_final": True}


def _shape(answer: dict[str, Any]) -> ModelShape:
    weights = tuple(Weight(**{**each, "shape": tuple(each["shape"])}) for each in answer.pop("weights"))
    saved = ("inside", "between", "widest")
    layers = (each | {key: SavedElements(**each[key]) for key in saved} for each in answer.pop("layers"))
    vocab_size, hidden_size = next(weight.shape for weight in weights if weight.block == "embedding")
    return ModelShape(
        weights=weights,
        layers=tuple(LayerShape(**each) for each in layers),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        eager="plain" if answer.pop("is_eager") else "no",
        lacking=tuple(answer.pop("lacking")),
        **answer,
    )


def _eager(model: Mapping[str, Any], otherwise: Eager) -> Eager:
    if attention_cap(model) is not None:
        return "capped"
    return "sinks" if type_of(model) in SINKS else otherwise


def _mtp(shape: ModelShape, model: Mapping[str, Any]) -> Iterator[Weight]:
    """Weights of the one MTP head that megatron_train supports: one more layer like the last, and what joins two tokens
    (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
    family = family_of(model)
    if family is None or not family.has_mtp_head or model.get(NUM_HEADS) != 1:
        return
    hidden, last = shape.hidden_size, shape.num_layers - 1
    before, at = f"model.layers.{last}.", f"model.layers.{last + 1}."
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield Weight(f"{at}{norm}.weight", (hidden,), "whole", last + 1, norm)
    yield Weight(f"{at}eh_proj.weight", (hidden, 2 * hidden), "tensor", last + 1, "eh_proj")
    for weight in shape.weights:
        if weight.layer == last:
            yield replace(weight, name=weight.name.replace(before, at, 1), layer=last + 1)


def _with_numbers(shape: ModelShape, model: Mapping[str, Any], head: Head) -> ModelShape:
    """The shape with a head that gives numbers in place of logits."""
    rows, last = num_labels(model) if head == "sequence" else 1, shape.num_layers
    score = [Weight("score.weight", (rows, shape.hidden_size), "whole", last, "score")]
    if head == "value":
        score.append(Weight("score.bias", (1,), "whole", last, "bias of the score"))
    weights = (*(weight for weight in shape.weights if weight.block != "head"), *score)
    return replace(shape, weights=weights, mtp=(), ties_head=False, is_critic=True)


def num_labels(model: Mapping[str, Any]) -> int:
    """Numbers that a sequence-classification head gives, as transformers reads them from a config.json."""
    count, names = model.get("num_labels"), model.get("id2label")
    if type(count) is int and count > 0:
        return count
    return len(names) if isinstance(names, Mapping) and names else 2
