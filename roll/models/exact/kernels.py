"""The matrix product of exact passes on GPUs, in Triton.

cuBLAS takes other kernels for other numbers of rows, which add up in another order. Here each result is one sum over
the inner dimension, in steps of a fixed number, whatever is beside it: tiles have one size for every shape. The
kernel is compiled once for a form of its arguments; the forms differ in how numbers are loaded, not in what is added to
what.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl


class _Tiles(NamedTuple):
    rows: int
    columns: int
    step: int  # of the inner dimension
    warps: int
    stages: int


_TILES = {
    torch.float32: _Tiles(64, 64, 32, 4, 2),
    torch.bfloat16: _Tiles(64, 128, 64, 4, 3),
}


def batched_product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Left [b, M, K] with right [B, K, N], B a multiple of b whose batches take left's in turns, plus bias [N]: [B, M,
    N] in their dtype, fp32 or bf16, rounded once."""
    left = left if left.stride(-1) == 1 else left.contiguous()
    (fewer, rows, _), (batches, inner, columns) = left.shape, right.shape
    output = left.new_empty(batches, rows, columns)
    tiles = _TILES[left.dtype]
    programs = batches * triton.cdiv(rows, tiles.rows) * triton.cdiv(columns, tiles.columns)
    if programs and inner:
        kernel: Any = _product
        kernel[(programs,)](
            left,
            right,
            output,
            left if bias is None else bias,
            rows,
            columns,
            inner,
            fewer,
            *left.stride()[:2],
            *right.stride(),
            *output.stride()[:2],
            bias is not None,
            tiles.rows,
            tiles.columns,
            tiles.step,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return output


@triton.jit(do_not_specialize=["rows", "fewer"])
def _product(
    left,
    right,
    output,
    bias,
    rows,
    columns,
    inner,
    fewer,
    left_batch,
    left_row,
    right_batch,
    right_row,
    right_column,
    output_batch,
    output_row,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    step: tl.constexpr,
):
    program = tl.program_id(0)
    across, down = tl.cdiv(columns, tile_columns), tl.cdiv(rows, tile_rows)
    batch = (program // (across * down)).to(tl.int64)
    row = ((program % down) * tile_rows + tl.arange(0, tile_rows)).to(tl.int64)[:, None]
    column = ((program // down % across) * tile_columns + tl.arange(0, tile_columns)).to(tl.int64)[None, :]
    at = tl.arange(0, step)
    lefts = left + (batch % fewer) * left_batch + row * left_row + at[None, :]
    rights = right + batch * right_batch + at[:, None] * right_row + column * right_column
    total = tl.zeros((tile_rows, tile_columns), tl.float32)
    for start in range(0, inner, step):
        some = at < inner - start
        a = tl.load(lefts, mask=(row < rows) & some[None, :], other=0.0)
        b = tl.load(rights, mask=some[:, None] & (column < columns), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        lefts += step
        rights += step * right_row
    if has_bias:
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    place = output + batch * output_batch + row * output_row + column
    tl.store(place, total.to(output.dtype.element_ty), mask=(row < rows) & (column < columns))
