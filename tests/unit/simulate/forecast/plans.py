"""Plans of small YAMLs whose models are config.json alone, and a machine whose speeds are round numbers."""

import json
from pathlib import Path
from typing import Any

import yaml

from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.run.kind import kind_of
from roll.run.start.load import Loaded, check
from roll.simulate.forecast.costs import Hardware

MODEL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}
SEVEN_B = MODEL | {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "vocab_size": 152064,
}
FLAT = [1e9, 1e9, 1e9, 1e9]  # a rate that does not depend on rows
PROBE = {
    "cores": 2,
    "key": "cores",
    "flops": {"1": {"fp32": FLAT, "bf16": FLAT}, "2": {"fp32": [2e9] * 4, "bf16": [2e9] * 4}},
    "layer_flops": {"fp32": 1e9, "bf16": 1e9},
    "copy_bytes_per_s": 1e9,
    "operation_s": 1e-6,
}
CPUS = Hardware("2 cores", probe=PROBE)
ON_GPUS = {
    "actor_train": {"strategy_args": {"strategy_name": "fsdp2_train"}, "device_mapping": "list(range(0,8))"},
    "actor_infer": {"strategy_args": {"strategy_name": "vllm"}, "device_mapping": "list(range(0,8))"},
    "num_gpus_per_node": 8,
    "rollout_batch_size": 64,
}


def loaded(folder: Path, model: dict[str, Any] = MODEL, **keys: Any) -> Loaded:
    """A run of 8 prompts with 4 responses each, of exactly 64 tokens behind prompts of 16."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(model))
    (folder / "rows.jsonl").write_text("")
    tree: dict[str, Any] = {
        "exp_name": "run",
        "pretrain": str(folder / "model"),
        "output_dir": str(folder / "out"),
        "platform": "cuda" if "num_gpus_per_node" in keys else "cpu",
        "max_steps": 10,
        "eval_steps": -1,
        "save_steps": -1,
        "rollout_batch_size": 8,
        "num_return_sequences_in_group": 4,
        "prompt_length": 32,
        "response_length": 64,
        "skip_idle_rows": False,
        "actor_train": {
            "model_args": {"dtype": "fp32", "disable_gradient_checkpointing": True},
            "training_args": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8},
            "data_args": {"file_name": str(folder / "rows.jsonl")},
            "strategy_args": {"strategy_name": "fsdp2_train"},
            "use_prefix_sharing": "off",
        },
        "actor_infer": {
            "model_args": {"dtype": "fp32"},
            "generating_args": {"ignore_eos": True},
            "strategy_args": {"strategy_name": "hf_infer"},
        },
        "rewards": {"task": {"reward": "exact_match"}},
    }
    for key, value in keys.items():
        tree[key] = tree[key] | value if isinstance(value, dict) and key in tree else value
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(tree))
    raw = compose_tree(*yaml_at(str(file)), ())
    spec = kind_of(raw.tree)
    return check(spec, resolve_tree(raw, spec.config_class()))
