"""A rank's part of a model: one Megatron module per run of layers, and what stands on top of the last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.gpt import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig

from roll.configs.sections.model import Head
from roll.models.megatron.attention import LatentAttention
from roll.models.megatron.config import rope_of
from roll.models.megatron.family import Family, padded_vocab_size
from roll.models.megatron.layers import block_spec
from roll.models.megatron.mtp_head import HeadPlan, PredictionHead
from roll.platforms.cpu_stand_ins.megatron import cuda_method_stays

# What the last stage makes of the hidden states [s, b, h] of its positions, and of those of the prediction head where
# it is asked for (else None). Any: the strategy's own request, and its answer.
Top = Callable[["TokenModel", torch.Tensor, torch.Tensor | None, Any], Any]


class ValueHead(nn.Linear):
    """Hidden states to one number each, in fp32; the same on every tensor-parallel rank. It begins with zeros."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = self.bias.float() if self.bias is not None else None
        return functional.linear(input.float(), self.weight.float(), bias)[..., 0]


class TokenModel(GPTModel):
    """GPTModel whose last stage hands its hidden states to `top` instead of computing the logits of every position."""

    top: Top
    prediction_head: PredictionHead | None

    def _postprocess(  # type: ignore[override]
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None = None,
        rotary_pos_emb: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
        **unused: Any,
    ) -> Any:
        """`labels`: the next tokens, where the head for further ones is asked."""
        if self.prediction_head is None or labels is None:
            return hidden_states
        mtp_hidden = self.prediction_head(hidden_states, labels, self.embedding, rotary_pos_emb, packed_seq_params)
        return hidden_states, mtp_hidden

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        packed: PackedSeqParams | None,
        request: Any,
        padding: torch.Tensor | None = None,
        following: torch.Tensor | None = None,
    ) -> Any:
        """`padding` [b, s]: slots that no router's balance counts; None: nobody asks for it. `following` [b, s]: the
        next tokens, for the head that predicts further ones."""
        if padding is not None and self.config.sequence_parallel and not self.pre_process:
            # Megatron (0.16) shares it among the ranks on the first stage alone.
            size, rank = self.config.tensor_model_parallel_size, parallel_state.get_tensor_model_parallel_rank()
            padding = padding.chunk(size, 1)[rank].contiguous()
        hidden: Any = super().forward(  # type: ignore[arg-type]
            input_ids,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            labels=following,  # type: ignore[arg-type]
            packed_seq_params=packed,  # type: ignore[arg-type]
            padding_mask=padding,
        )
        if not self.post_process:
            return hidden
        main_hidden, mtp_hidden = hidden if isinstance(hidden, tuple) else (hidden, None)
        return self.top(self, main_hidden, mtp_hidden, request)

    def gathered(self, hidden: torch.Tensor, parallel_output: bool) -> torch.Tensor:
        """The hidden states of all positions. `parallel_output`: what follows differs between tensor-parallel ranks."""
        if not self.config.sequence_parallel:
            return hidden
        return gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=parallel_output)

    def with_head(self, work: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """`work` on the head's weight [padded vocabulary / tensor parallel, hidden]: its own, or the embedding's.

        It goes through the call of the output layer, on which Megatron hangs the gathering of its weight
        (overlap_param_gather); read past it, the weight would be that of the last update but one."""
        return self.output_layer(work)

    def _apply_to_head(self, work: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if self.share_embeddings_and_output_weights:
            return work(self.shared_embedding_or_output_weight())
        weight = self.output_layer.weight
        assert weight is not None
        return work(weight)


@dataclass(frozen=True)
class Blueprint:
    """Blueprint of a model."""

    hf: PretrainedConfig
    family: Family
    config: TransformerConfig
    head: Head
    device: torch.device
    mtp_head: HeadPlan | None = None

    @property
    def ties_head(self) -> bool:
        return bool(self.hf.tie_word_embeddings) and self.head == "lm"


def build_chunks(blueprint: Blueprint, top: Top) -> list[TokenModel]:
    """This rank's runs of layers: one, or as many as the virtual pipeline has. Weights are random."""
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # megatron-core 0.16 reads it without transformer-engine: NameError
    if not isinstance(multi_latent_attention.TELinear, type):
        multi_latent_attention.HAVE_TE = False  # it is True there without transformer-engine
    stages: list[int | None] = [None]
    if blueprint.config.virtual_pipeline_model_parallel_size:
        stages = list(range(blueprint.config.virtual_pipeline_model_parallel_size))
    with cuda_method_stays():
        return [_build(blueprint, stage, top) for stage in stages]


def _build(blueprint: Blueprint, stage: int | None, top: Top) -> TokenModel:
    hf, config = blueprint.hf, blueprint.config
    edges: dict[str, Any] = {} if stage is None else {"ignore_virtual": False, "vp_stage": stage}
    model = TokenModel(
        config=config,
        transformer_layer_spec=block_spec(config, stage, blueprint.family.norms_outputs),  # type: ignore[arg-type]
        vocab_size=padded_vocab_size(hf.vocab_size, config.tensor_model_parallel_size),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(**edges),
        post_process=parallel_state.is_pipeline_last_stage(**edges),
        share_embeddings_and_output_weights=blueprint.ties_head,
        position_embedding_type="rope",
        vp_stage=stage,
    )
    plan = blueprint.mtp_head if model.post_process else None
    model.prediction_head = None if plan is None else PredictionHead(config, plan, stage, not model.pre_process)
    if blueprint.mtp_head is not None and model.pre_process != model.post_process:
        _have_two_embeddings(model)
    if config.num_moe_experts and config.expert_tensor_parallel_size != config.tensor_model_parallel_size:
        _sum_among_experts(model)
    rope, latent = rope_of(hf), [module for module in model.modules() if isinstance(module, LatentAttention)]
    for attention in latent:
        attention.rotate_by(rope.frequencies.to(blueprint.device), rope.factor)
    if not config.multi_latent_attention:
        model.rotary_pos_emb.inv_freq = rope.frequencies.to(blueprint.device)
    model.top = top
    if model.post_process and blueprint.head != "lm":
        biased = blueprint.head == "value"  # as in transformers' token classification; sequence classification has none
        model.output_layer = ValueHead(hf.hidden_size, 1, biased, blueprint.device, config.params_dtype)  # type: ignore[assignment]
    elif model.post_process:
        model.output_layer.forward = model._apply_to_head  # type: ignore[method-assign]
    return model


def _have_two_embeddings(model: TokenModel) -> None:
    """The head of the last stage embeds tokens, as the first one does: it has a copy, which is marked as Megatron marks
    that of a tied head. Their gradients are summed (see `embeddings_of_pipeline`), so they stay equal."""
    if model.post_process:
        model.embedding = LanguageModelEmbedding(
            model.config, model.vocab_size, model.max_sequence_length, "rope", tp_group=model.pg_collection.tp
        )
        model.mtp_process = True  # a checkpoint holds the first stage's
        model.embedding.word_embeddings.weight.shared = True  # type: ignore[attr-defined]
    model.embedding.word_embeddings.weight.shared_embedding = True  # type: ignore[attr-defined]


def embeddings_of_pipeline(chunks: Sequence[TokenModel]) -> list[nn.Parameter]:
    """This rank's of the two that first and last stage have where an MTP head is trained, if that is
    trained itself; at most one."""
    weights = [
        chunk.embedding.word_embeddings.weight
        for chunk in chunks
        if chunk.pre_process != chunk.post_process and hasattr(chunk, "embedding")
    ]
    return [weight for weight in weights if weight.requires_grad]


def _sum_among_experts(model: TokenModel) -> None:
    """Ranks that hold the same experts are others than those that hold the same layers: gradients of experts are summed
    over their own. Megatron (0.16) does so with expert_model_parallel_size above 1 alone."""
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.allreduce = False  # type: ignore[attr-defined]
