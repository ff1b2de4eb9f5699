"""The head that predicts the token after the next one (DeepSeek-V3, arXiv 2412.19437, section 2.2), on the last stage.

Of a position it takes the hidden state that the model's own head takes, and the embedding of the token that follows;
what it makes of them goes through the model's own head. In a model's files it is one layer behind the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    gather_from_tensor_model_parallel_region,
    scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from transformers import PretrainedConfig

from roll.configs.strategies.megatron_checks import tied_problem
from roll.configs.tables.families import NUM_HEADS
from roll.errors import StrategyError
from roll.models.copied_files import shared_tensors
from roll.models.megatron.attention import Norm
from roll.models.megatron.hf_files import HfReader
from roll.models.megatron.layers import layer_spec

Embed = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class HeadPlan:
    """How the head of a model is built. `is_sparse`: its layer has experts. `trains_trunk`: its loss has a gradient for
    what it shares with the model, too."""

    is_sparse: bool
    trains_trunk: bool

    @classmethod
    def of(cls, config: PretrainedConfig, reader: HfReader, trains_trunk: bool, stages: int = 1) -> HeadPlan:
        """Plans the MTP head of the model whose files `reader` has. Raises StrategyError if they hold none, or one of
        another kind."""
        if why_not := tied_problem(bool(config.tie_word_embeddings), stages):
            raise StrategyError(f"mtp_training_mode: {why_not}. Set it to disabled.")
        last, count = config.num_hidden_layers, getattr(config, NUM_HEADS, None)
        if count != 1 or f"model.layers.{last}.eh_proj.weight" not in reader:
            raise StrategyError(
                f"mtp_training_mode: {reader.model} has no MTP head behind its {last} layers that could "
                f"be trained: {NUM_HEADS} is {count}, and 1 is needed, with model.layers.{last}.eh_proj.weight in its "
                "files. Set it to disabled."
            )
        if apart := list(_apart(config, reader)):
            raise StrategyError(
                f"mtp_training_mode: {', '.join(apart)} of {reader.model} are not the model's own, which the head "
                "would share. Set it to disabled."
            )
        return cls(f"model.layers.{last}.mlp.gate.weight" in reader, trains_trunk)


def _apart(config: PretrainedConfig, reader: HfReader) -> Iterator[str]:
    """Names of what the head's files hold of its own, though the head shares it."""
    for name, original in shared_tensors(config.num_hidden_layers, bool(config.tie_word_embeddings)).items():
        if name in reader and not torch.equal(reader.get(name), reader.get(original)):
            yield name


class PredictionHead(MegatronModule):
    """norm(layer(eh_proj([enorm(embedding of the next token); hnorm(hidden state)])))"""

    def __init__(self, config: TransformerConfig, plan: HeadPlan, stage: int | None, has_copy: bool):
        """`stage`: the number of this run of layers in a virtual pipeline. `has_copy`: the embedding is one that this
        stage has for the head alone."""
        super().__init__(config=config)
        self._trains_trunk, self._has_copy = plan.trains_trunk, has_copy
        size, epsilon = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = Norm(config, size, epsilon), Norm(config, size, epsilon)
        init: Any = config.init_method
        self.eh_proj = ColumnParallelLinear(
            2 * size, size, config=config, init_method=init, bias=False, gather_output=False
        )
        here = config.num_layers + 1 - get_transformer_layer_offset(config, stage)
        self.layer = build_module(layer_spec(config, plan.is_sparse), config=config, layer_number=here, vp_stage=stage)
        self.norm = Norm(config, size, epsilon)

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the model as the head's loss sees it: detached unless the trunk is trained."""
        return tensor if self._trains_trunk else tensor.detach()

    def forward(
        self,
        hidden: torch.Tensor,
        following: torch.Tensor,
        embed: Embed,
        rotary: torch.Tensor | None,
        packed: PackedSeqParams | None,
    ) -> torch.Tensor:
        """`hidden` [s, b, h] behind the model's last norm, `following` [b, s] the next tokens -> [s, b, h]."""
        embedded = embed(input_ids=following, position_ids=None)
        shown = self.shared(embedded)
        if self._has_copy and not self._trains_trunk:
            shown = shown + embedded * 0.0  # a gradient of zeros: Megatron waits for one of every parameter
        joined = torch.cat([self.enorm(shown), self.hnorm(self.shared(hidden))], -1)
        # Each rank has some of the columns of all positions; the layer takes all columns of a rank's positions.
        merged = gather_from_tensor_model_parallel_region(self.eh_proj(joined)[0])
        if self.config.sequence_parallel:
            merged = scatter_to_sequence_parallel_region(merged)
        output, _ = self.layer(
            hidden_states=merged, attention_mask=None, rotary_pos_emb=rotary, packed_seq_params=packed
        )
        return self.norm(output)
