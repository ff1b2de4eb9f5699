"""Tiny models that the parity tests start from, in directories of their own."""

import json
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel


def save_critic(model_dir: Path, directory: Path) -> PreTrainedModel:
    """A token classifier on the layers of this model, with a head that is not zero."""
    torch.manual_seed(0)
    critic = AutoModelForTokenClassification.from_pretrained(model_dir, dtype=torch.float32, num_labels=1)
    torch.nn.init.normal_(critic.score.weight, std=0.1)
    critic.save_pretrained(directory)
    return critic


def save_windowed(model_dir: Path, directory: Path, window: int) -> None:
    """This model, the second layer of which sees so many tokens back."""
    shutil.copytree(model_dir, directory, dirs_exist_ok=True)
    changed = {
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changed))
