"""Stand-in for the kernels that sglang imports on a CPU; the real package exists for GPUs only.

One function is really called there and works here. Everything else can be imported and says its name when it is called.
No `torch.ops.sgl_kernel` is registered, so sglang takes its own PyTorch path in every layer.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

__version__ = "0.4.10"  # sglang asks for at least this


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the next end - start slots of `out_cache_loc` into the row of each request, one request after the other.

    Example: rows [2, 0], starts [1, 0], ends [3, 1], slots [7, 8, 9]: row 2 gets 7, 8 at 1..2 and row 0 gets 9 at 0.
    """
    used = 0
    requests = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in requests:
        slots = out_cache_loc[used : used + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        used += end - start


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU: this is the CPU stand-in of sgl_kernel")

    return absent
