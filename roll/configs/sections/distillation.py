"""Words of distillation that settings and mathematics share."""

from typing import Literal

KdObjective = Literal[
    "forward_kl", "reverse_kl", "js_divergence", "skewed_forward_kl", "skewed_reverse_kl", "adaptive_kl"
]
