"""Where parameters and buffers of an empty model get their memory."""

import torch
from torch import nn

from roll.distributed.strategy.fsdp2.rank import make_room

HOST, DEVICE = torch.device("cpu"), torch.device("meta")  # a device that is not the host stands in for a GPU


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.empty(4, dtype=torch.float32), persistent=False)
        self.register_buffer("original_inv_freq", None, persistent=False)


def empty_model() -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(3, 2), Rotary(), nn.BatchNorm1d(2))


def devices(module: nn.Module) -> tuple[set[str], set[str]]:
    return (
        {parameter.device.type for parameter in module.parameters()},
        {buffer.device.type for buffer in module.buffers()},
    )


def test_shards_in_host_memory_leave_the_buffers_on_the_device() -> None:
    """With `offload_policy: true` the buffers were in host memory too, from which NCCL broadcasts nothing and where no
    block on a GPU finds them."""
    module = empty_model()
    make_room(module, HOST, DEVICE)
    assert devices(module) == ({"cpu"}, {"meta"})
    assert {name: (buffer.shape, buffer.dtype) for name, buffer in module.named_buffers()} == {
        "1.inv_freq": ((4,), torch.float32),
        "2.running_mean": ((2,), torch.float32),
        "2.running_var": ((2,), torch.float32),
        "2.num_batches_tracked": ((), torch.int64),
    }
    assert "1.inv_freq" not in module.state_dict()  # it is still none that a checkpoint holds
