"""Kinds of recurrence: what each keeps for a backward pass, and the state that it carries.

In torch, the figures are those of transformers 5.19, counted from what autograd saves (tests/unit/configs/memory/
test_recurrence.py). With kernels they are arithmetic: what the autograd functions of flash-linear-attention
(`ChunkGatedDeltaRuleFunction`, `ChunkKDAFunction`), mamba-ssm (`MambaSplitConv1dScanCombinedFn`, `MambaInnerFn`,
`SelectiveScanFn`) and causal-conv1d (`CausalConv1dFn`) save, and what torch saves around them.
"""

from collections.abc import Mapping

from roll.configs.memory.layer_shape import Recurrence, SavedElements

DELTA_KERNELS = "flash-linear-attention"
MAMBA_KERNELS = "mamba-ssm"
ALL_KERNELS: Mapping[str, str] = {DELTA_KERNELS: "fla", MAMBA_KERNELS: "mamba_ssm"}
"""Packages, and the modules that transformers imports of them. Engines have such kernels of their own."""
_CHUNK = 64  # tokens that the delta rules compute together
_SCAN_CHUNK = 2048  # tokens between the states that mamba-ssm's scan saves


def gated_delta(key_heads: int, value_heads: int, key: int, value: int, kernel: int) -> Recurrence:
    """Gated delta rule (Yang et al., arXiv 2412.06464) of heads of `key` and `value` numbers, behind a convolution.
    Keys are repeated for each head of values."""
    keys, values = value_heads * key, value_heads * value
    convolved = 2 * key_heads * key + values
    state = keys * value
    gate = SavedElements(3 * values + value_heads, 3 * values + 4 * value_heads)  # the norm, its gate and the decays
    in_kernels = SavedElements(gate.low + convolved + 2 * keys + values + (_CHUNK + 1) * value_heads, gate.fp32)
    return Recurrence(
        in_torch=SavedElements(
            gate.low + 2 * convolved,
            gate.fp32 + 3 * values + 8 * keys + 5 * (_CHUNK + 1) * value_heads + state / _CHUNK,
        ),
        in_kernels=in_kernels,
        in_parts=in_kernels,
        package=DELTA_KERNELS,
        channels=convolved,
        kernel=kernel,
        state=state,
        projected=2 * key_heads * key + 2 * values + 2 * value_heads,
        products=3 * state,
        chunk=_CHUNK,
    )


def kimi_delta(heads: int, size: int, kernel: int) -> Recurrence:
    """Delta rule with a decay for each channel (Kimi Delta Attention, arXiv 2510.26692). The torch form inverts the
    matrix of a chunk row by row, and keeps it as it was before each row."""
    width, state = heads * size, heads * size**2
    rows = sum(row * (row + 1) for row in range(1, _CHUNK)) // _CHUNK  # of the inverse, per token and head
    in_kernels = SavedElements(
        3 * width + 3 * width + 4 * width + (2 * _CHUNK + 1) * heads,  # convolution, q k v, gates and norm
        (1 + 3) * width + 4 * heads,  # decays, norm
    )
    return Recurrence(
        in_torch=SavedElements(
            9 * width, 3 * _CHUNK * width + 21 * width + (rows + 2 * _CHUNK) * heads + state / _CHUNK
        ),
        in_kernels=in_kernels,
        in_parts=in_kernels,
        package=DELTA_KERNELS,
        channels=3 * width,
        kernel=kernel,
        state=state,
        projected=5 * width + 2 * size + heads,
        products=3 * state,
        in_fp32=True,
        chunk=_CHUNK,
    )


def mamba2(
    heads: int, size: int, groups: int, state: int, kernel: int, chunk: int, has_norm: bool = True
) -> Recurrence:
    """Mamba-2 (Dao & Gu, arXiv 2405.21060): `heads` of `size` numbers, each with `state` numbers per number. In torch,
    every head has B and C of its own."""
    inner = heads * size
    convolved = inner + 2 * groups * state
    projected = inner + convolved + heads
    return Recurrence(
        in_torch=SavedElements(
            projected + convolved + (1 if has_norm else 2) * inner + 2 * heads,
            (10 if has_norm else 6) * inner + heads * (3 * chunk + 5 * state + 4) + 2 * inner * state / chunk,
        ),
        in_kernels=SavedElements(projected + inner, heads),
        in_parts=SavedElements(
            projected + convolved + (2 if has_norm else 3) * inner, (5 if has_norm else 1) * inner + heads
        ),
        package=MAMBA_KERNELS,
        channels=convolved,
        kernel=kernel,
        state=inner * state,
        projected=projected,
        products=3 * inner * state,
        chunk=chunk,
    )


def mamba(inner: int, state: int, rank: int, kernel: int, is_fused: bool = True) -> Recurrence:
    """Mamba (Gu & Dao, arXiv 2312.00752) of `inner` channels with `state` numbers each. The torch form keeps the state
    of every token. `is_fused`: one kernel does all between the two projections, and computes most of it again."""
    steps = rank + 2 * state
    states = 2 * inner * state / _SCAN_CHUNK
    in_parts = SavedElements(6 * inner + 3 * steps, states)
    return Recurrence(
        in_torch=SavedElements(9 * inner + steps + inner * state, 3 * inner * state + 2 * inner + 4 * state),
        in_kernels=SavedElements(3 * inner + steps + 2 * state, states) if is_fused else in_parts,
        in_parts=in_parts,
        package=MAMBA_KERNELS,
        channels=inner,
        kernel=kernel,
        state=inner * state,
        projected=2 * inner + steps,
        products=3 * inner * state,
    )


def convolution(hidden: int, kernel: int) -> Recurrence:
    """A gated convolution over a few tokens (LFM2, arXiv 2511.23404)."""
    return Recurrence(
        in_torch=SavedElements(6 * hidden, 0),
        in_kernels=SavedElements(6 * hidden, 0),
        in_parts=SavedElements(6 * hidden, 0),
        package="",  # causal-conv1d has a kernel, which keeps as much
        channels=hidden,
        kernel=kernel,
        state=0,
        projected=3 * hidden,
        products=2 * hidden,
    )


def gated_linear(width: int, kernel: int) -> Recurrence:
    """RG-LRU (Griffin, arXiv 2402.19427), token by token: transformers has no kernel for it."""
    saved = SavedElements(15 * width, 2 * width)
    return Recurrence(
        saved, saved, saved, "", channels=width, kernel=kernel, state=width, projected=2 * width, products=2 * width
    )


def lightning(heads: int, size: int, block: int) -> Recurrence:
    """Linear attention in blocks (MiniMax-01, arXiv 2501.08313), without kernels in transformers."""
    width = heads * size
    saved = SavedElements(13 * width + heads * block + width * size / block, width)
    return Recurrence(
        saved,
        saved,
        saved,
        "",
        channels=0,
        kernel=1,
        state=width * size,
        projected=4 * width,
        products=2 * width * size,
    )
