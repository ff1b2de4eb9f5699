"""Attention kernels of transformers models, and checks that a kernel leaves out nothing that the model needs."""

import inspect
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.model_numbers import ATTENTION_CAP, attention_cap, attention_problem
from roll.errors import StrategyError

OTHER_FORMS = ("softcap", "s_aux", "position_bias")
"""Arguments of attention that plain softmax of scaled products does not have: soft cap, sinks, bias by distance."""
_FA2 = "flash_attention_2"
_NAMES = {"fa2": _FA2, "sdpa": "sdpa", "eager": "eager"}


def attention_options(args: ModelArgs, config: PretrainedConfig) -> dict[str, str]:
    """Return the options for from_pretrained: none if transformers' own choice (sdpa if the model has it) computes
    everything that config.json asks for. StrategyError for an attention that would leave some of it out."""
    text = config.get_text_config().to_dict()
    if why_not := attention_problem(args.attn_implementation, text):
        raise StrategyError(f"model_args.attn_implementation: {why_not}")
    AttentionInterface.register("sdpa", whole_sdpa)
    AttentionInterface.register(_FA2, whole_flash)
    name = _NAMES.get(args.attn_implementation or "auto")
    if name is None and attention_cap(text) is not None:
        name = "eager"
    return {"attn_implementation": name} if name else {}


def refusal(why: str) -> StrategyError:
    """A model that takes no packs."""
    return StrategyError(
        f"use_sequence_packing does not work with this model: {why}. Set it to false, and ulysses_size, which packs "
        "rows as well, to 1"
    )


def set_text_attention(model: PreTrainedModel, name: str) -> None:
    """Has the layers of the language model compute attention by the function of this name. A tower for pictures, which
    looks both ways, keeps its own."""
    has_parts = model.config.get_text_config() is not model.config and "text_config" in model.config.sub_configs
    model.set_attn_implementation({"text_config": name} if has_parts else name)


def whole_sdpa(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' sdpa. StrategyError where it would leave out what the model gives it."""
    for form in ("softcap", "s_aux"):
        if kwargs.get(form) is not None:
            raise _left_out(module, form, "sdpa")
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def whole_flash(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """flash-attn 2 by transformers, likewise. Only its later versions (2.6) have soft caps."""
    if kwargs.get("s_aux") is not None:
        raise _left_out(module, "s_aux", "flash-attn 2")
    if kwargs.get("softcap") is not None and not _flash_has_caps():
        raise _left_out(module, "softcap", "this version of flash-attn")
    return flash_attention_forward(module, query, key, value, attention_mask, **kwargs)


def _flash_has_caps() -> bool:
    from flash_attn import flash_attn_func  # pyright: ignore[reportMissingImports]

    return "softcap" in inspect.signature(flash_attn_func).parameters


def _left_out(module: nn.Module, form: str, kernel: str) -> StrategyError:
    what = {"softcap": f"a soft cap ({ATTENTION_CAP})", "s_aux": "sinks"}[form]
    return StrategyError(
        f"{type(module).__name__} computes with {what}, which {kernel} leaves out. Set model_args.attn_implementation: "
        "eager"
    )


def state_layers(model: nn.Module) -> list[nn.Module]:
    """The modules in which a token sees others without attention, whose states go through a convolution: those of
    gated delta rules, Mamba, and convolutions alone."""
    return [module for module in model.modules() if any(isinstance(child, nn.Conv1d) for child in module.children())]
