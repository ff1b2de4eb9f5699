"""The program that a script starts: its keys say what a run is only where the program is verl's own trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from roll.importers.rows import Change, Row, changes

_KNOWN = re.compile(
    r"verl\.trainer\.(main_ppo(_sync)?|fsdp_sft_trainer|sft_trainer(_ray)?)"
    r"|(verl\.)?recipe\.dapo\.(src\.)?main_dapo|(verl\.)?recipe\.entropy\.main_entropy"
    r"|(verl\.experimental|recipe)\.transfer_queue\.main_ppo"
)
"""Trainers whose meaning the importer knows by their keys."""
_OVERLAPPING = re.compile(
    r"((verl\.)?recipe|verl\.experimental)\.(one_step_off_policy|fully_async_policy)\.(main_ppo|\w*_main)"
)
_MEANINGS = {
    "one_step_off_policy": "answers are a step old there, and engines have devices of their own: "
    "async_generation_ratio: 1, and device_mapping of actor_infer beside actor_train's (docs/rollouts.md)",
    "fully_async_policy": "trainer and engines do not wait for each other there: rollout_batch_size is "
    "ppo_mini_batch_size x require_batches x trigger_parameter_sync_step, async_generation_ratio is "
    "staleness_threshold, and actor_infer has a device_mapping beside actor_train's (docs/rollouts.md)",
}
_DEVICES = "actor_infer.device_mapping gives engines devices of their own, beside actor_train's"
PROGRAM_ROWS: tuple[Row, ...] = (
    changes("rollout.nnodes", _DEVICES),
    changes("rollout.n_gpus_per_node", _DEVICES),
    changes("rollout.total_rollout_steps", "max_steps counts steps: prompts in all over rollout_batch_size"),
    changes("rollout.total_epochs", "num_train_epochs, or max_steps"),
    changes("rollout.test_freq", "eval_steps"),
    changes("async_training.staleness_threshold", "async_generation_ratio: how much is sampled ahead of a step"),
    changes(
        "async_training.trigger_parameter_sync_step",
        "weights go after every step: rollout_batch_size is this many times require_batches x ppo_mini_batch_size",
    ),
    changes("async_training.require_batches", "rollout_batch_size has it as a factor", 1),
    changes("async_training.partial_rollout", "answers under way go on with newer weights: async_generation_ratio"),
    changes("async_training.use_rollout_log_probs", "force_disable_old_logprobs_recompute: true"),
)
"""Keys of programs whose trainer and engines overlap."""
_ROOTS = ("verl", "recipe")


def program_notes(words: Sequence[str]) -> Iterator[str]:
    """What a program other than verl's trainers means, as far as its name tells.

    Example: python3 -m recipe.prime.main_prime trains a reward model as well.
    """
    name = module_of(words)
    if not name or "$" in name or "`" in name or _KNOWN.fullmatch(name):
        return
    if found := _OVERLAPPING.fullmatch(name):
        yield Change(f"{name}: {_MEANINGS[found[3]]}.")
    else:
        yield Change(f"{name} is a program of its own: what it does beside the keys is not read.")


def module_of(words: Sequence[str]) -> str:
    """The module that a command starts: the last one behind -m, else the last file of Python; empty for none.

    Example: torchrun -m verl.trainer.sft_trainer, and python3 /x/verl/trainer/main_ppo.py is verl.trainer.main_ppo.
    """
    modules = [word for before, word in pairwise(words) if before in ("-m", "--module")]
    modules += [word[2:] for word in words if re.fullmatch(r"-m[A-Za-z_][\w.]*\.[\w.]+", word)]
    modules = [name for name in modules if name not in ("torch.distributed.run", "torch.distributed.launch")]
    if modules:
        return modules[-1]
    files = [word for word in words if word.endswith(".py") and not word.startswith("-")]
    if not files:
        return ""
    parts = files[-1].removesuffix(".py").split("/")
    return ".".join(parts[max((i for i, part in enumerate(parts) if part in _ROOTS), default=len(parts) - 1) :])
