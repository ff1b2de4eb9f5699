"""Activations in host memory: what moves there, what stays, and that the gradients do not know."""

from pathlib import Path

import pytest
import torch

from roll.configs.sections.model import ModelArgs
from roll.models.execution import LEAST_ELEMENTS, ActivationOffload, _OfWeight, _OnHost, _Packed
from roll.models.loading import load_policy


class Counting(ActivationOffload):
    """Keeps what it was given and what it made of it."""

    def __init__(self, module: torch.nn.Module):
        super().__init__(module)
        self.calls: list[tuple[torch.Tensor, _Packed]] = []
        self.asked = 0

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        packed = super()._pack(tensor)
        self.calls.append((tensor, packed))
        return packed

    def _unpack(self, packed: _Packed) -> torch.Tensor:
        self.asked += isinstance(packed, _OnHost)
        return super()._unpack(packed)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("keeps_all", [True, False], ids=["kept", "recomputed"])
def test_activations_move_weights_stay_and_gradients_are_the_same_bits(
    keeps_all: bool, reentrant: bool, tiny_tied_model_dir: Path
) -> None:
    args = ModelArgs(
        model_name_or_path=str(tiny_tied_model_dir),
        dtype="fp32",
        disable_gradient_checkpointing=keeps_all,
        gradient_checkpointing_use_reentrant=reentrant,
    )
    loaded = load_policy(args)
    ids = torch.randint(3, 296, (4, 40), generator=torch.Generator().manual_seed(0))
    given = (ids, torch.ones_like(ids, dtype=torch.bool))
    loaded.module(*given)[0].sum().backward()
    want = gradients(loaded.module)
    offload = Counting(loaded.module)
    with offload.saving():
        total = loaded.module(*given)[0].sum()
    total.backward()
    got = gradients(loaded.module)
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)

    weights = {parameter.untyped_storage().data_ptr() for parameter in loaded.module.parameters()}
    moved = [(tensor, packed) for tensor, packed in offload.calls if isinstance(packed, _OnHost)]
    assert moved and offload.asked >= len(moved)
    assert all(packed.copy.data_ptr() != tensor.data_ptr() for tensor, packed in moved)
    for tensor, packed in offload.calls:
        is_weight = tensor.untyped_storage().data_ptr() in weights
        assert isinstance(packed, _OfWeight) == is_weight
        is_large = tensor.numel() >= LEAST_ELEMENTS and tensor.is_floating_point()
        assert isinstance(packed, _OnHost) == (is_large and not is_weight)
    config = loaded.pretrained.config
    inputs = [packed for tensor, packed in moved if tensor.shape == (4, 39, config.hidden_size)]
    if not keeps_all:
        assert len({id(packed) for packed in inputs}) <= config.num_hidden_layers + 3  # inputs of blocks, and the norm
    assert len({id(packed) for packed in inputs}) >= config.num_hidden_layers


def test_what_is_saved_twice_is_moved_once_and_what_changed_between_is_not() -> None:
    offload = Counting(torch.nn.Identity())
    x = torch.rand(LEAST_ELEMENTS, requires_grad=True)
    with offload.saving():
        y = x * 2
        first, second = y.sin(), y.cos()
    (first.sum() + second.sum()).backward()
    assert len({id(packed) for _, packed in offload.calls if isinstance(packed, _OnHost)}) == 1
    torch.testing.assert_close(x.grad, 2 * (2 * x).cos() - 2 * (2 * x).sin())
    tensor = torch.zeros(LEAST_ELEMENTS)
    with offload.saving():
        before = offload._pack(tensor)
        tensor.add_(1)
        after = offload._pack(tensor)
    assert float(offload._unpack(before).sum()) == 0 and float(offload._unpack(after).sum()) == LEAST_ELEMENTS
