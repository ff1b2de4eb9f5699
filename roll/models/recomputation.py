"""Computing a block again in the backward pass: all of it from its input, or all but what costs the most."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from roll.configs.sections.model import ModelArgs

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1}  # the place of the first factor among the arguments
_GROUPED = frozenset({"aten::_grouped_mm", "transformers::grouped_mm_fallback"})
_ATTENTION = ("aten::_scaled_dot_product_", "torch_attn::_varlen_attn", "flash_attn")
LEAST_TERMS = 128  # of a number of a product; one of fewer, such as an adapter's, costs less than its memory


def checkpoint_blocks(pretrained: PreTrainedModel, args: ModelArgs) -> None:
    """Has the blocks of the model compute activations again in the backward pass, as `recompute_granularity` says."""
    how: dict[str, Any] = {"use_reentrant": bool(args.gradient_checkpointing_use_reentrant)}
    if args.recompute_granularity == "selective":
        how["context_fn"] = _contexts
    pretrained.gradient_checkpointing_enable(how)


def policy(context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keeps the results of matrix products and of attention."""
    factor = _PRODUCTS.get(_name(op))
    is_dear = _may_be_kept(op) and (factor is None or args[factor].shape[-1] >= LEAST_TERMS)
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE


def _may_be_kept(op: Any) -> bool:
    """Products of stacks (bmm) are not: those are the scores of attention without a kernel, of tokens x tokens."""
    name = _name(op)
    return name in _PRODUCTS or name in _GROUPED or name.startswith(_ATTENTION)


def _name(op: Any) -> str:
    """Name without overload, of those alone that make a tensor of their own."""
    return op._schema.name if isinstance(op, torch._ops.OpOverload) and op._overloadname == "default" else ""


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts of a block's forward pass and of its second one."""
    keeping, reusing = create_selective_checkpoint_contexts(policy)
    return keeping, _Reusing(reusing)


class _Reusing(TorchDispatchMode):
    """torch's own context of a second pass, for what may be kept alone: it refuses operations that the first pass did
    not have, and ZeRO-3 gathers weights at other times in the second one."""

    def __init__(self, mode: Any):
        super().__init__()
        self._mode = mode

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _may_be_kept(func):
            return self._mode.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))
