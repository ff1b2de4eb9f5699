"""Whose arithmetic is where: one function per strategy and use. A new strategy adds a line and a file."""

from collections.abc import Callable, Mapping

from roll.configs.memory import deepspeed, engine, huggingface, megatron
from roll.configs.memory.parts import RankMemory, RoleFacts

ARITHMETIC: Mapping[tuple[str, str], Callable[[RoleFacts], RankMemory]] = {
    ("deepspeed_train", "train"): deepspeed.train_memory,
    ("deepspeed_infer", "score"): deepspeed.infer_memory,
    ("megatron_train", "train"): megatron.train_memory,
    ("megatron_infer", "score"): megatron.infer_memory,
    ("hf_infer", "score"): huggingface.score_memory,
    ("hf_infer", "generate"): huggingface.generate_memory,
    ("vllm", "generate"): engine.vllm_memory,
    ("sglang", "generate"): engine.sglang_memory,
}
