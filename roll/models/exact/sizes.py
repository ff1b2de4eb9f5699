"""The sizes in which exact passes compute: the trainer's and the engine's have to be the same."""

import torch

FLOOR = 16
"""Rows of a matrix product at least. With fewer (below 4 on one thread, below 8 on two), MKL takes kernels that add up
in another order; from here on a row's result is the same in a product of any height."""
BLOCK = 128  # keys
WHOLE = 4  # what widths are a multiple of: FLOOR times this is what a loop over bf16 takes at a time


def multiple_of_tokens() -> int:
    """Return what the number of tokens of a pass has to be a multiple of, so that every thread's share of an
    elementwise operation is a whole number of vectors: what remains goes through other code, with other last bits."""
    return FLOOR * torch.get_num_threads()
