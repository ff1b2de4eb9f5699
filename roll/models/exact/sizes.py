"""The sizes in which exact passes compute: the trainer's and the engine's have to be the same."""

import torch

FLOOR = 16
"""Rows of a matrix product at least. With fewer (below 4 on one thread, below 8 on two), MKL takes kernels that add up
in another order; from here on a row's result is the same in a product of any height."""
BATCHED_FLOOR = 4
"""The same for each product of a batch of them, which is one thread's: attention's."""
BLOCK = 128  # keys
HEAD_COLUMNS = 1024  # of a tile of the vocabulary
_ROWS_ON_GPUS = 64  # as many as a tile of their products has: fewer cost the same
WHOLE = 4  # what widths are a multiple of: FLOOR times this is what a loop over bf16 takes at a time


def multiple_of_tokens(device: torch.device) -> int:
    """Return what the number of tokens of a pass has to be a multiple of. On CPUs, so that every thread's share of an
    elementwise operation is a whole number of vectors: what remains goes through other code, with other last bits. On
    GPUs, so that sums over a token's numbers, as in norms, have many results: torch divides each among more threads
    where there are less than 16 (measured: other bits for 8 rows of 896 to 8192 numbers, the same from 16 rows on).
    """
    return FLOOR * torch.get_num_threads() if device.type == "cpu" else _ROWS_ON_GPUS


def filled_length(num_tokens: int, device: torch.device) -> int:
    """Return the number of tokens of a pass, with fillers. Example: 17 on one thread -> 32."""
    return num_tokens + -num_tokens % multiple_of_tokens(device)
