"""Which rectangles of a tensor a range of it is, when it lies flat."""

import random
from math import prod

import pytest
import torch

from roll.distributed.strategy.megatron.checkpoint import Block, blocks


@pytest.mark.parametrize(
    ("shape", "start", "stop", "expected"),
    [
        ((5,), 1, 4, [Block(1, (1,), (3,))]),
        ((4, 3), 3, 9, [Block(3, (1, 0), (2, 3))]),
        ((4, 3), 2, 7, [Block(2, (0, 2), (1, 1)), Block(3, (1, 0), (1, 3)), Block(6, (2, 0), (1, 1))]),
        ((4, 3), 4, 5, [Block(4, (1, 1), (1, 1))]),
        ((4, 3), 2, 4, [Block(2, (0, 2), (1, 1)), Block(3, (1, 0), (1, 1))]),
        ((2, 2, 2), 1, 4, [Block(1, (0, 0, 1), (1, 1, 1)), Block(2, (0, 1, 0), (1, 1, 2))]),
        ((4, 3), 5, 5, []),
        ((4, 3), 7, 2, []),
    ],
)  # fmt: skip
def test_a_range_is_these_blocks(shape: tuple[int, ...], start: int, stop: int, expected: list[Block]) -> None:
    assert list(blocks(shape, start, stop)) == expected


def test_blocks_of_any_range_are_its_elements_in_their_order() -> None:
    draw = random.Random(0)
    for _ in range(500):
        shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(1, 4)))
        start, stop = sorted(draw.randint(0, prod(shape)) for _ in range(2))
        numbered, next_one = torch.arange(prod(shape)).view(shape), start
        for block in blocks(shape, start, stop):
            assert block.start == next_one
            rectangle = numbered[tuple(slice(at, at + size) for at, size in zip(block.offset, block.size, strict=True))]
            next_one += rectangle.numel()
            assert rectangle.flatten().tolist() == list(range(block.start, next_one))
        assert next_one == stop
