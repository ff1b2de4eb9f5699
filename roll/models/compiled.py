"""A Hugging Face model by torch.compile: its blocks, which are many of one form, and the arithmetic of its head."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from roll.errors import StrategyError
from roll.models.hf import TokenLogProbModel
from roll.models.loading import LoadedModel
from roll.models.sequences.packed_attention import PACKED_ATTENTION, packed_attention


def compile_model(model: LoadedModel) -> None:
    """Compiles the model's blocks, once for all lengths of rows. Only a block's forward function is compiled, so that
    the hooks of FSDP2 and checkpointing stay as they are. Attention within a pack depends on the rows' lengths and
    stays torch's own kernels."""
    names = set(model.pretrained._no_split_modules or ())
    blocks = [m for m in model.pretrained.modules() if names & {kind.__name__ for kind in type(m).__mro__}]
    if not blocks:
        raise StrategyError(
            f"use_torch_compile: transformers does not say which modules of {type(model.pretrained).__name__} are its "
            "blocks. Set it to false"
        )
    compile_it: Any = torch.compile
    for block in blocks:
        block.forward = compile_it(block.forward, dynamic=True)
    AttentionInterface.register(PACKED_ATTENTION, torch.compiler.disable(packed_attention))
    if isinstance(model.module, TokenLogProbModel):
        model.module.head.compiled = True
