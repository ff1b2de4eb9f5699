"""How a role's rows become micro batches: by count, by tokens with padding, or packed. What contradicts what."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.sections.cluster import SequencePackingArgs, WorkerConfig
from roll.configs.tables.roles import Role


def batching_problems(
    role: Role, worker: WorkerConfig, longest: int, length_keys: tuple[str, ...]
) -> Iterator[Problem]:
    """`longest` is the longest sequence of the run, in tokens; it follows from `length_keys`. A micro batch of training
    holds at least the rows that are learnt together."""
    at, packing = role.name, worker.sequence_packing_args
    packs_by_tokens = worker.packs_rows and packing.by_tokens
    if worker.packs_rows and worker.model_args.attn_implementation == "eager":
        key, (switch, value) = f"{at}.model_args.attn_implementation", worker.packing_switch
        yield Problem(
            f"{key}: eager with {at}.{switch}: {value}, which it does not support. Use sdpa, or fa2 on a GPU.",
            (key, f"{at}.{switch}"),
        )
    for where, dynamic, tokens, packed in (
        (
            "train",
            worker.use_dynamic_batching_in_train,
            worker.max_tokens_per_microbatch_in_train,
            packing.max_packed_sequence_length_train,
        ),
        (
            "infer",
            worker.use_dynamic_batching_in_infer,
            worker.max_tokens_per_microbatch_in_infer,
            packing.max_packed_sequence_length_forward,
        ),
    ):
        switch = f"{at}.use_dynamic_batching_in_{where}"
        together = role.rows_together if where == "train" else 1
        least, named = together * longest, "one sequence" if together == 1 else f"{together} sequences of one pair"
        if dynamic and packs_by_tokens:
            yield Problem(
                f"{switch} and {at}.sequence_packing_args.algorithm: load_balance both make micro batches by tokens. "
                "Remove one.",
                (switch, f"{at}.sequence_packing_args.algorithm"),
            )
        elif dynamic and (tokens or 0) < least:
            key = f"{at}.max_tokens_per_microbatch_in_{where}"
            yield Problem(
                f"{key}: {tokens or 0} must be at least {named}, {least} tokens, with {switch}.",
                (key, *length_keys),
            )
        if packs_by_tokens and (where == "infer" or role.learns) and (packed or 0) < least:
            key = f"{at}.sequence_packing_args.max_packed_sequence_length_{'train' if where == 'train' else 'forward'}"
            yield Problem(
                f"{key}: {packed or 0} must be at least {named}, {least} tokens, with algorithm: load_balance.",
                (key, *length_keys),
            )


def batching_warnings(role: str, worker: WorkerConfig) -> Iterator[str]:
    """Settings of packing that nothing reads, and one that nothing reads because of it."""
    packing, at = worker.sequence_packing_args, f"{role}.sequence_packing_args"
    changed = [key for key in SequencePackingArgs.model_fields if getattr(packing, key) != getattr(_DEFAULTS, key)]
    verb = "does" if len(changed) == 1 else "do"
    if changed and not worker.packs_rows:
        yield f"{at} does nothing while {role}.use_sequence_packing is off."
    elif changed and not packing.by_tokens:
        yield f"{at}: {', '.join(changed)} {verb} nothing with algorithm: none; load_balance reads it."
    for where in ("train", "infer"):
        key = f"sequence_length_round_in_{where}"
        by_tokens = worker.value(f"use_dynamic_batching_in_{where}")
        if worker.packs_rows and by_tokens and worker.is_changed(key):
            switch = ": ".join(worker.packing_switch)
            yield f"{role}.{key} does nothing with {role}.{switch}: rows of a pack are not padded."


_DEFAULTS = SequencePackingArgs()
