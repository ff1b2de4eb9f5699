"""Experts of a mixture divided over neighbouring ranks, which are data-parallel ranks with rows of their own."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from roll.configs.strategies import fsdp2_settings
from roll.errors import StrategyError
from roll.models.experts.ranks import ExpertRanks, experts_of
from roll.models.loading import LoadedModel


def divide(model: LoadedModel, mesh: DeviceMesh) -> None:
    """Divides every layer's experts over the ranks of the mesh, whole ones each. The model is empty: nothing is sent.
    StrategyError for a model whose type is none of `DIVIDED_EXPERTS`."""
    kind = model.pretrained.config.get_text_config().model_type
    if kind not in fsdp2_settings.DIVIDED_EXPERTS:
        raise StrategyError(f"strategy_config.ep_size: {fsdp2_settings.refused_mixture(kind)}")
    ranks = ExpertRanks(mesh.get_group(), mesh.size())
    for _, experts in experts_of(model.pretrained):
        for name, weight in list(experts.named_parameters(recurse=False)):
            part = distribute_tensor(weight.detach(), mesh, [Shard(0)], src_data_rank=None)
            setattr(experts, name, nn.Parameter(part, requires_grad=weight.requires_grad))
        ranks.divide(experts, _local_weights)


def _local_weights(experts: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of this rank's experts, while FSDP2 has them gathered."""
    weights: dict[str, Any] = dict(experts.named_parameters(recurse=False))
    return {name: weight.to_local() for name, weight in weights.items()}
