"""Log-probs as a page of definitions has them."""

import math

import torch


def with_others(log_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probs of these tokens, and of all others together."""
    others = log_probs.scatter(1, tokens, -math.inf).logsumexp(1, keepdim=True)
    return torch.cat((log_probs.gather(1, tokens), others), 1)
