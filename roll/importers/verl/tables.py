"""verl's tables, and which of them a configuration needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from roll.importers.convert import Imported, SourceKeys, convert, leaves
from roll.importers.row_files import names_of, rows_of
from roll.importers.rows import Change, Table, data, is_left_open
from roll.importers.script import COUNTED, Command, is_output, undated
from roll.importers.verl.checkout import Checkout, checkout_of
from roll.importers.verl.combined_keys import COMBINED_KEYS, OF_MACHINES, TRACKER_VARIABLES
from roll.importers.verl.common import ACTOR, CONDITIONS, MEGATRON, NO_DUAL_CLIP, OWN_REWARD, ROLLOUT
from roll.importers.verl.files import of_program
from roll.importers.verl.overlap import is_stream, overlapping_table
from roll.importers.verl.pictures import picture_notes
from roll.importers.verl.programs import forked, module_of, program_notes
from roll.importers.verl.releases import (
    PPO,
    PPO_MEGATRON,
    SFT_ALONE,
    SFT_ENGINE,
    WHOLE_STEPS,
    derived,
    fitting,
    given_notes,
    nearest_name,
    of_checkout,
    release_notes,
)
from roll.importers.verl.sft_rows import SFT
from roll.importers.verl.turns import plays, turns_table
from roll.importers.verl.variables import (
    is_carried,
    key_of_variable,
    own_variables,
    read_by_own_code,
    runs_own_code,
)

_OF_SFT = ("model.partial_pretrain", "data.prompt_dict_keys", "data.multiturn.enable", "data.max_length", "optim.lr")
CONFIG_NAME = "config-name"
_OF_ENGINE: Mapping[str, str] = {
    "engine.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    "model.use_remove_padding": "use_remove_padding",
    "engine.use_remove_padding": "use_remove_padding",
    "data.messages_key": "data.multiturn.messages_key",
}
"""Keys of newer versions, and what older ones call the same."""
_UNBOUNDED = f"The checkout's loss vanilla is not bounded by {ACTOR}.clip_ratio_c, whatever it is."
ASCEND = "backend_config"
"""The section in which the guide for Ascend has verl's keys."""
FLAGS: Mapping[str, str] = {
    "nproc-per-node": "trainer.n_gpus_per_node",
    "nnodes": "trainer.nnodes",
    CONFIG_NAME: "actor_rollout_ref.actor.strategy",
}
"""Words of the command that say what a key says as well."""


def is_verl(tree: Mapping[str, Any]) -> bool:
    inner = tree.get(ASCEND)
    if isinstance(inner, Mapping):
        return is_verl(inner)
    model = tree.get("model")
    return "actor_rollout_ref" in tree or (isinstance(model, Mapping) and "partial_pretrain" in model)


def verl_table(original: SourceKeys, script: Path | None = None, checkout: Checkout | None = None) -> Table:
    """The table for what the keys train; tools are read from files beside the script."""
    values = {_known_as(key): value for key, value in original.keys}
    keys = values.keys()
    is_sft = (original.command and "sft_trainer" in " ".join(original.command.program)) or any(
        key in keys for key in _OF_SFT
    )
    is_rl = any(key.startswith("actor_rollout_ref.") for key in keys)
    module = module_of(original.command.program) if original.command else ""
    if is_sft and not is_rl:
        return VERL_SFT
    table = overlapping_table(VERL_RL, module, values)
    table = forked(table, module, keys, checkout)
    return turns_table(table, values, script) if plays(values) else table


def import_verl(
    original: SourceKeys, notes: Sequence[str], script: Path | None = None, version: str | None = None
) -> Imported:
    """The import by the defaults of a release: the newest that has all given keys, if no `version` says which."""
    command, found = original.command or _started(original), None
    checkout = checkout_of(module_of(command.program), script) if script else None
    table, keys, of_script = verl_table(original, script, checkout), verl_keys(original), original.command is not None
    given = {key.removeprefix(f"{ASCEND}."): value for key, value in original.keys}
    added = {word.lstrip("+").partition("=")[0] for word in original.overrides if word.startswith("+")}
    own = {key: value for key, value in given.items() if key not in added}
    name = _configuration(original, table, own)
    notes = [*notes, *verl_notes(original, table, checkout)]
    if (checkout is not None and checkout.reward) or runs_own_code({_known_as(key): value for key, value in keys}):
        variables = own_variables(original.command).items()
        keys += [(f"${name}", value) for name, value in variables if is_carried(name, value)]
    if script and checkout is not None:
        of_code = {OWN_REWARD: checkout.reward, NO_DUAL_CLIP: not checkout.has_dual_clip}
        of_code |= {} if checkout.has_kl_in_reward else {"algorithm.use_kl_in_reward": False}
        notes += [_UNBOUNDED] if of_code[NO_DUAL_CLIP] else []
        table = replace(
            table, place_of=checkout.place_of, is_switch=checkout.is_switch, program={**of_code, **table.program}
        )
        found = of_program(checkout, command, script) if version is None else None
    if found is not None:
        below = fitting(name, own)[0][0] if found[1].bases else None
        table = forked(table, "", dict(leaves(found[1].tree)), checkout)
        whole = f"{original.tree}{found[1].tree}"  # an unknown name that others refer to is a variable of these files
        known = table.canonical
        keys = [(key, value) for key, value in keys if f"${{{key}}}" not in whole or table.row(known(key))]
        mine, told = of_checkout(name, str(found[0]), found[1].tree, below, table, given)
        return convert(keys, mine, [*notes, *told, *found[1].remarks], of_script)
    fits, lacking = fitting(name, own, version)
    tables = [release.over(table, given) for release in fits]
    made = [convert(keys, each, (), of_script) for each in tables]
    said = release_notes(fits, lacking, [each.tree for each in made], table.pipeline, version is not None)
    return replace(made[0], notes=(*notes, *said, *made[0].notes))


def _started(original: SourceKeys) -> Command:
    """The command that most start a YAML with."""
    program = "main_ppo" if "actor_rollout_ref" in original.tree.get(ASCEND, original.tree) else "fsdp_sft_trainer"
    named = [f"--config-name={name}" for name in original.bases[:1]]
    return Command(("-m", f"verl.trainer.{program}", *named), (), (), (), ())


def _configuration(original: SourceKeys, table: Table, given: Mapping[str, Any]) -> str:
    """The name of verl's configuration that the program starts with."""
    module = module_of(original.command.program).rpartition(".")[2] if original.command else ""
    if table.pipeline == VERL_SFT.pipeline:
        if "sft_trainer" in module:
            return SFT_ALONE if "fsdp" in module else SFT_ENGINE
        return nearest_name((SFT_ALONE, SFT_ENGINE), given)
    values = {_known_as(key): value for key, value in verl_keys(original)}
    return PPO_MEGATRON if {**derived(values), **values}.get(f"{ACTOR}.strategy") == MEGATRON else PPO


def verl_keys(original: SourceKeys) -> list[tuple[str, Any]]:
    """The keys with what else the command says, and with a number of GPUs that is left to the machine."""
    command = original.command
    keys = [
        (key, command.gpus if command and _leaves_gpus(original, key, value) else value)
        for key, value in _with_flags(original)
    ]
    return keys + [(f"${name}", value) for name, value in _of_trackers(original) if not is_output(value)]


def _leaves_gpus(original: SourceKeys, key: str, value: Any) -> bool:
    """Whether a script leaves the GPUs of a node to the machine."""
    return original.command is not None and is_left_open(value) and _known_as(key) == FLAGS["nproc-per-node"]


def _with_flags(original: SourceKeys) -> list[tuple[str, Any]]:
    """The keys with what the words of a launcher and the name of the configuration say beside them."""
    keys = list(original.keys)
    there = {_known_as(key) for key, _ in keys}
    if any("megatron" in base for base in original.bases) and FLAGS[CONFIG_NAME] not in there:
        keys.append((f"--{CONFIG_NAME}", "megatron"))
    for flag, known_as in FLAGS.items():
        value = original.command.flag(flag) if original.command else None
        value = "1" if flag == "nproc-per-node" and _is_single(original) else value
        if value is None or flag == CONFIG_NAME or known_as in there:
            continue
        keys.append((known_as, value) if "$" in value else (f"--{flag}", int(value) if value.isdecimal() else value))
    return keys


def _of_trackers(original: SourceKeys) -> Iterator[tuple[str, Any]]:
    """Yield the variables of trackers that the script gives its program."""
    variables = original.command.environment if original.command else {}
    yield from ((name, undated(variables[name])) for name in TRACKER_VARIABLES if variables.get(name))


def _unwritten(original: SourceKeys, logger: Any) -> Iterator[str]:
    """Yield a note about variables of trackers that are in the script and no setting of a run."""
    variables = original.command.environment if original.command else {}
    if names := [name for name, tracker in OF_MACHINES.items() if variables.get(name) and tracker in str(logger)]:
        yield f"The script exports {', '.join(names)}, which no YAML should hold: export it where the run starts."


_UNFILTERED = (
    "verl's main_ppo reads algorithm.filter_groups since trainer.use_v1 (0.9); before, only its recipe of DAPO did. "
    "Here groups are filtered. To keep all, give algorithm.filter_groups.enable=false after the file."
)


_OF_V1 = ("trainer.use_v1", "algorithm.filter_groups.max_inflight_gen_batches")


def _filters(original: SourceKeys) -> bool:
    """Whether the program reads filter_groups, as far as its name and newer keys tell."""
    module = module_of(original.command.program) if original.command else ""
    is_v1 = any(key.startswith("trainer.v1.") or key in _OF_V1 for key, _ in original.keys)
    return is_v1 or not module.startswith("verl.trainer.main_ppo")


def _of_generation_batches(values: Mapping[str, Any], reads_filter: bool) -> Iterator[str]:
    """Yield what data.gen_batch_size decides beside the filter of groups: it is the batch of the loader."""
    prompts, generated = values.get("data.train_batch_size"), values.get("data.gen_batch_size")
    if not isinstance(generated, int) or generated == prompts:
        return
    if values.get("algorithm.filter_groups.enable") is not True:
        yield Change(
            f"data.gen_batch_size is {generated}: without the filter of groups, verl trains on all of them, and "
            f"data.train_batch_size counts no more. Give data.train_batch_size={generated} after the file."
        )
    elif not reads_filter or values.get("trainer.total_training_steps") is None:
        yield (
            f"There an epoch has at most rows / {generated} steps (data.gen_batch_size), here rows / {prompts}; where "
            f"main_ppo does not filter, a step trains on all {generated} prompts."
        )


def _is_single(original: SourceKeys) -> bool:
    """True for fine-tuning under a torchrun that is not told how many processes to start: it starts one."""
    command = original.command
    if command is None or command.flag("nproc-per-node") is not None:
        return False
    is_torchrun = any(Path(word).name == "torchrun" for word in command.program[:3])
    return is_torchrun and "sft_trainer" in " ".join(command.program)


def verl_notes(original: SourceKeys, table: Table, checkout: Checkout | None) -> Iterator[str]:
    """Yield notes about words of a command that no key has taken."""
    values = {_known_as(key): value for key, value in original.keys}
    there = values.keys()
    yield from given_notes(values)
    shows = table.pipeline == VERL_RL.pipeline
    yield from picture_notes({_known_as(key): value for key, value in verl_keys(original)}, shows)
    is_scored = bool(values.get("custom_reward_function.path") or values.get("reward_model.enable"))
    command = original.command or _started(original)
    yield from program_notes(command.program, checkout, is_scored, values)
    yield from _computed_rewards(original, checkout, str(values.get("reward_model.reward_manager") or "naive"))
    if values.get("algorithm.filter_groups.enable") is True and not _filters(original):
        yield _UNFILTERED
    if not is_stream(module_of(original.command.program) if original.command else "", values):
        yield from _of_generation_batches(values, _filters(original))
    yield from _unwritten(original, values.get("trainer.logger"))
    yield from read_by_own_code(original.command, values)
    for name, value in _of_trackers(original):
        if is_output(value):
            yield f"{name} is taken from a program, and not read: tracker_kwargs.{TRACKER_VARIABLES[name]}."
    if original.command and any(_leaves_gpus(original, *each) for each in _with_flags(original)):
        yield COUNTED.format(original.command.gpus)
    if _is_single(original) and "trainer.n_gpus_per_node" not in there:
        yield "torchrun without --nproc-per-node starts one process: 1 GPU."


def _computed_rewards(original: SourceKeys, checkout: Checkout | None, manager: str) -> Iterator[str]:
    """Yield what a checkout's class around rewards makes of them, unless a file with all of it is named here."""
    of_script = len(original.command.overrides) if original.command else 0
    if checkout is None or any(word.startswith(_OWN_SCORES) for word in original.overrides[of_script:]):
        return
    if place := checkout.computes_rewards(manager):
        yield Change(
            f"The checkout's class around rewards computes with them ({place}), which is not read. Give a file with "
            f"compute_score(data_source, solution_str, ground_truth, extra_info) that does: {_OWN_SCORES}FILE"
        )
    if checkout.reads_turns(manager):
        yield Change(
            "The checkout's rewards look for the assistant's turn in prompt and answer together; here they get the "
            "answer alone, and may find nothing. Give a file whose compute_score puts the beginning of that turn "
            f"before solution_str and calls theirs: {_OWN_SCORES}FILE"
        )


_OWN_SCORES = "custom_reward_function.path="


@lru_cache(maxsize=10000)
def _known_as(key: str) -> str:
    """Name of a key in the table: without the section of Ascend's guide and without a launcher's words."""
    if key.startswith("$") and key[1:] not in TRACKER_VARIABLES:
        return key_of_variable(key[1:])
    key = FLAGS.get(key.removeprefix("--"), key).removeprefix(f"{ASCEND}.")
    key = f"{ROLLOUT}.{key}" if key.startswith("engine_kwargs.") else key
    return next((older + key[len(newer) :] for newer, older in _RENAMED if _is_below(key, newer)), key)


def _is_below(key: str, section: str) -> bool:
    return key == section or (section.endswith(".") and key.startswith(section))


_RENAMED = tuple(names_of(data("verl/names.yaml")).items())
"""Keys and sections of newer versions, and what older ones call them."""


VERL_RL = Table(
    "verl",
    "rlvr",
    rows_of("verl/rl.yaml"),
    COMBINED_KEYS,
    CONDITIONS,
    _known_as,
    derived,
    partly_off=("reward_model",),
)
VERL_SFT = replace(
    SFT,
    canonical=lambda key: _OF_ENGINE.get(key, _known_as(key)),
    derived=lambda values: WHOLE_STEPS,
)
