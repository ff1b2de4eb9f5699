"""Attention with sinks against its formula, written out."""

import pytest
import torch

from roll.models.megatron.attention import attend_with_sinks

BATCH, HEADS, GROUPS, CHANNELS, SCALE = 2, 4, 2, 6, 0.3


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Position i of the keys is seen from i on, and with a window until i + window - 1."""
    key, value = (tensor.repeat_interleave(HEADS // GROUPS, dim=1) for tensor in (key, value))
    logits = SCALE * query @ key.transpose(2, 3)
    num_keys = key.shape[2]
    distance = (torch.arange(num_keys - query.shape[2], num_keys)[:, None] - torch.arange(num_keys)[None]).expand_as(
        logits
    )
    hidden = (distance < 0) | (distance >= (window or num_keys))
    logits = logits.masked_fill(hidden, -torch.inf)
    weights = logits.exp() / (logits.exp().sum(-1, keepdim=True) + sinks.exp()[None, :, None, None])
    return weights @ value


@pytest.mark.parametrize("window", [None, 1, 3, 4, 9, 20])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(9, 9), (1, 1), (4, 9), (1, 9)])
def test_outputs_and_gradients_are_those_of_the_formula(window: int | None, num_queries: int, num_keys: int) -> None:
    """Queries may be the last positions of the keys alone, as with context parallel."""
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    query = made(BATCH, HEADS, num_queries, CHANNELS)
    key, value = made(BATCH, GROUPS, num_keys, CHANNELS), made(BATCH, GROUPS, num_keys, CHANNELS)
    given = (query, key, value, made(HEADS))
    got, want = attend_with_sinks(*given, window, SCALE), written_out(*given, window)
    assert torch.allclose(got, want, atol=1e-12)
    weight = made(*want.shape).detach()
    for own, written in zip(
        torch.autograd.grad((got * weight).sum(), given),
        torch.autograd.grad((want * weight).sum(), given),
        strict=True,
    ):
        assert torch.allclose(own, written, atol=1e-12)


def test_a_half_of_the_precision_keeps_its_form() -> None:
    query = torch.randn(1, HEADS, 5, CHANNELS, dtype=torch.bfloat16)
    key = torch.randn(1, GROUPS, 5, CHANNELS, dtype=torch.bfloat16)
    got = attend_with_sinks(query, key, key, torch.zeros(HEADS, dtype=torch.bfloat16), 2, SCALE)
    assert got.shape == query.shape and got.dtype is torch.bfloat16
