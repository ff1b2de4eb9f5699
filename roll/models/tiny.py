"""A tokenizer of about 290 tokens and Qwen models of about 100 thousand parameters, for demos, tests and benchmarks.

They go through the same doors as real ones: `AutoTokenizer`, `AutoModelForCausalLM` and
`AutoModelForSequenceClassification.from_pretrained(directory)`.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

ARCHITECTURES = ("qwen2", "qwen3")

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<answer>", "</answer>", "<think>", "</think>")
WHOLE_WORDS = ("system", "user", "assistant", "Left", "Right", "Up", "Down")

# AutoTokenizer gives a directory whose config.json says model_type qwen2 or qwen3 this splitting and NFC, whatever its
# tokenizer.json says; only a tokenizer that already uses both comes back unchanged.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: the 256 bytes, a few whole words, answer and think tags, Qwen's chat markers. Text round-trips.

    Example: "3142" is four tokens, "<answer>" is one; the chat prompt around "3142" is 12 tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    repeats = 1000  # every merge inside a whole word occurs this often, and no other merge exists
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=[PAD, TURN_START, TURN_END],
        min_frequency=repeats,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((word for word in WHOLE_WORDS for _ in range(repeats)), trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=TURN_END,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    arch: str = "qwen2",
    tie_word_embeddings: bool = True,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 2,
    num_kv_heads: int = 1,
    max_position_embeddings: int = 2048,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    num_labels: int = 0,
) -> PreTrainedModel:
    """A randomly initialised model, the same for the same seed; the caller's random state is left alone. With
    `num_labels` it has a sequence-classification head, as reward models have.

    117,824 parameters as it stands. Heads are 32 wide because vLLM has no CPU attention for narrower ones; with
    `hidden_size=128, num_heads=4, num_kv_heads=2` there are enough of them for tensor parallel 2. The vocabulary is
    rounded up to a multiple of 8, so that 2, 4 and 8 divide it.
    """
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch is {arch!r}; the tiny models exist as {' and '.join(ARCHITECTURES)}")
    shape = {
        "vocab_size": (len(tokenizer) + 7) // 8 * 8,
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_position_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "initializer_range": 0.05,  # at this width .02 starts too flat
        "tie_word_embeddings": tie_word_embeddings,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if arch == "qwen2":
            kinds: tuple[type[PreTrainedModel], ...] = (Qwen2ForCausalLM, Qwen2ForSequenceClassification)
            config: PretrainedConfig = Qwen2Config(**shape)
        else:
            kinds = (Qwen3ForCausalLM, Qwen3ForSequenceClassification)
            config = Qwen3Config(head_dim=hidden_size // num_heads, **shape)
        if num_labels:
            config.num_labels = num_labels
        model = kinds[bool(num_labels)](config)
    return model.to(dtype)  # type: ignore[arg-type]


def save_pretrained(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Write both as one Hugging Face model directory and return it.

    The weights are written without `model.save_pretrained`, which imports DeepSpeed, if installed, for several seconds.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = model.state_dict()
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(directory)
    return directory
