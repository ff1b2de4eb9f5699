"""What an algorithm by name is, and the lines of formulas that several share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """`settings` by the keys of a YAML; `*` stands for each entry of a section. `formula` are the lines that explain
    it, with `beside` for what the paper has and the preset leaves to the YAML. `pipeline`: the kind of run, `rl` for
    RLVR and agentic ones alike."""

    name: str
    paper: str
    settings: Mapping[str, Any]
    formula: tuple[str, ...]
    beside: str = ""
    pipeline: str = "rl"


GROUP = "A = (reward - mean of the group) / deviation of the group, the same for all tokens of an answer"
CLIP = "loss of a token = -min(r A, clip(r, 1 - low, 1 + high) A), r = p_new / p_old"
GRADIENT = "loss of a token = -A log p"
KL = "a KL to the reference: use_kl_loss and kl_loss_coef, with a section reference"
