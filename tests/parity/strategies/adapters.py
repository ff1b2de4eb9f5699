"""Adapters that peft writes, and the settings that describe them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

LORA: dict[str, Any] = {"lora_target": "all-linear", "lora_rank": 4, "lora_alpha": 6, "use_rslora": True}


def an_adapter(model: torch.nn.Module, directory: Path, **more: Any) -> Path:
    """Written by peft, with a B that is not 0."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear"}
    peft_model = get_peft_model(model, LoraConfig(**settings | more))  # type: ignore[arg-type]
    for name, parameter in peft_model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.05)
    peft_model.save_pretrained(str(directory))
    return directory
