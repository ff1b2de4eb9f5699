"""The tokenizer of what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roll.configs.sections.model import ModelArgs
from roll.configs.strategies.model_numbers import text_part
from roll.datasets.answers.end_tokens import asks
from roll.errors import ConfigError
from roll.models.tokenizer import tokenizer_key, tokenizer_of
from roll.run.saving.model_files import read_model_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def policy_tokenizer(role: str, args: ModelArgs) -> PreTrainedTokenizerBase:
    """Raises ConfigError where there is none, and for one of its own whose ids the model has no embedding for."""
    if args.tokenizer_path is None:
        return tokenizer_of(args)
    key = tokenizer_key(role, args)
    tokenizer = tokenizer_of(args, key)
    if args.model_name_or_path is not None:
        asks(tokenizer, str(args.model_name_or_path))
    model, _ = read_model_config(args)
    size = text_part(model).get("vocab_size") if model is not None else None
    largest = max(tokenizer.get_vocab().values())
    if type(size) is int and largest >= size:
        raise ConfigError(
            f"{key}: {args.tokenizer_path} has ids up to {largest}, but {args.model_name_or_path} has {size} "
            "embeddings (vocab_size). Name the tokenizer that the model was made with, or a smaller one"
        )
    return tokenizer


def check_teacher(role: str, teacher: ModelArgs, student: ModelArgs, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ConfigError for a teacher that reads other tokens than its student, whose tokenizer is given."""
    key = tokenizer_key(role, teacher)
    if tokenizer_of(teacher, key).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"{key}: the tokens of {teacher.model_name_or_path} are others than those of {student.model_name_or_path}. "
            "A student learns from a teacher with the same vocabulary: name one of its family"
        )
