"""Computing a block again in the backward pass: all of it from its input, or all but what costs the most."""

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import PreTrainedModel

from roll.configs.sections.model import ModelArgs

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "roll::exact_product": 0}  # place of the first factor among arguments
GROUPED = frozenset({"aten::_grouped_mm", "transformers::grouped_mm_fallback"})
_ATTENTION = (
    *("aten::_scaled_dot_product_", "torch_attn::_varlen_attn", "flash_attn"),
    *("aten::_flash_attention_forward", "aten::_efficient_attention_forward"),  # of trees on GPUs
    "roll::exact_attention",
)
LEAST_TERMS = 128  # of a number of a product; one of fewer, such as an adapter's, costs less than its memory


def checkpoint_blocks(pretrained: PreTrainedModel, args: ModelArgs) -> None:
    """Has the blocks of the model compute activations again in the backward pass, as `recompute_granularity` says."""
    how: dict[str, Any] = {"use_reentrant": bool(args.gradient_checkpointing_use_reentrant)}
    if args.recompute_granularity == "selective":
        how["context_fn"] = _contexts
    pretrained.gradient_checkpointing_enable(how)


def is_dear(op: Any, args: tuple[Any, ...]) -> bool:
    """True for matrix products and attention, whose results are kept. Products of stacks (bmm) are not: those are the
    scores of attention without a kernel, of tokens x tokens."""
    if not isinstance(op, torch._ops.OpOverload) or op._overloadname != "default":  # others write to memory of others
        return False
    name = op._schema.name
    if (place := _PRODUCTS.get(name)) is not None:
        factor = args[place]
        return factor.shape[-1] >= LEAST_TERMS and factor.shape[:-2].numel() == 1
    return name in GROUPED or name.startswith(_ATTENTION)


# torch has such contexts (`create_selective_checkpoint_contexts`). Those of 2.13 refuse operations that the first pass
# did not have, such as the gathers of ZeRO-3, and give wrong gradients where a result is changed in place: behind
# `nn.Linear` of three dimensions their check of versions sees nothing of it.


class _Keeping(TorchDispatchMode):
    """A block's first pass. `results`: what its dear operations returned, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.results: deque[tuple[Any, Any]] = deque()
        self._places: dict[int, int] = {}  # of results, by their memory

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_dear(func, args):
            result = func(*args, **kwargs)
            self._keep(func, result)
            return result
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            self._copy_before(func, args, kwargs)
        return func(*args, **kwargs)

    def _keep(self, op: Any, result: Any) -> None:
        for tensor in tree_leaves(result):
            if torch.is_tensor(tensor):
                self._places[tensor.untyped_storage()._cdata] = len(self.results)
        self.results.append((op, tree_map_only(torch.Tensor, torch.Tensor.detach, result)))

    def _copy_before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps a copy of a result that an operation is about to change."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            written = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(written):
                if not torch.is_tensor(tensor):
                    continue
                at = self._places.pop(tensor.untyped_storage()._cdata, None)
                if at is not None:
                    op, result = self.results[at]
                    self.results[at] = op, tree_map_only(torch.Tensor, torch.Tensor.clone, result)


class _Reusing(TorchDispatchMode):
    """A block's second pass, in which dear operations return what they did in the first one."""

    def __init__(self, first: _Keeping):
        super().__init__()
        self._first = first

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_dear(func, args):
            return func(*args, **(kwargs or {}))
        op, result = self._first.results.popleft()
        assert op is func, f"{func} in the second pass, where the first had {op}"
        return result


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    first = _Keeping()
    return first, _Reusing(first)
