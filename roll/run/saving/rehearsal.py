"""Saving is tried before the first step, so that no run loses its steps at its first checkpoint."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError, describe
from roll.run.saving.model_files import read_model_config

STATE_BYTES = 12  # of a trained parameter in a checkpoint: fp32 copy and two moments


def checkpoint_bytes(config: RunConfig, sure: bool = False) -> float:
    """Bytes of a checkpoint, about; 0 where no model is known: the weights of each role that learns, and the states of
    what is trained. `sure`: no more than there will be, whatever the optimizer keeps."""
    if all(read_model_config(worker.model_args)[0] is None for worker in config.learning_roles.values()):
        return 0.0
    from roll.configs.memory.model_shape import model_shape
    from roll.configs.memory.parts import BYTES_OF
    from roll.configs.memory.trained import held_weights

    size = 0.0
    for role, worker in config.learning_roles.items():
        args, (model, _) = worker.model_args, read_model_config(worker.model_args)
        shape = None if model is None else model_shape(model, config.roles[role].head or "lm")[0]
        if shape is not None:
            trained = sum(weight.num_elements for weight, learns in held_weights(shape, args) if learns)
            size += BYTES_OF[args.dtype] * shape.num_elements + (0 if sure else STATE_BYTES * trained)
    return size


def room_problems(config: RunConfig) -> Iterator[Problem]:
    """A disk that is too small for one checkpoint."""
    if config.save_steps <= 0 or not (needed := checkpoint_bytes(config, sure=True)):
        return
    place = config.checkpoint_dir.absolute()
    try:
        free = shutil.disk_usage(next(path for path in (place, *place.parents) if path.is_dir())).free
    except OSError:
        return  # `directories` are looked at by name
    if free < needed:
        from roll.configs.memory.parts import gigabytes

        yield Problem(
            f"checkpoint_config.output_dir: {place} has {gigabytes(free)} GB free, and the weights of one checkpoint "
            f"alone take {gigabytes(needed)} GB. Free some, or choose another disk.",
            ("checkpoint_config", "output_dir"),
            "place",
        )


def rehearse_saving(config: RunConfig) -> None:
    """Writes what a saved model holds beside its weights, and removes it. Raises ConfigError for what cannot be
    written: by then no engine has started."""
    from roll.models.copied_files import copy_start_files
    from roll.models.hub import local_model
    from roll.models.loading import model_config

    place = config.checkpoint_dir.absolute()
    directory = place / f".step_000000.partial-{os.getpid()}"  # a name that the next run cleans, should this one die
    for role, worker in config.learning_roles.items():
        if config.roles[role].head == "value":  # it is saved to go on from alone
            continue
        at, name = f"{role}.model_args.model_name_or_path", worker.model_args.model_name_or_path
        try:
            args = local_model(worker.model_args)
            saved = model_config(args)
        except Exception as error:  # transformers does not know the type, or finds no file
            raise ConfigError(
                f"{at}: transformers cannot read the config.json of {name}: {describe(error)}. Code that comes with a "
                "model is not run; name a model of a type that transformers has."
            ) from error
        try:
            directory.mkdir(parents=True, exist_ok=True)
            saved.save_pretrained(directory)
            copy_start_files(args, directory)
        except Exception as error:  # of transformers' validators, the disk, the hub
            raise ConfigError(
                f"{at}: the model that {name} becomes could not be saved in {place}: {describe(error)}. Correct the "
                "file or the directory that it names."
            ) from error
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):
                place.rmdir()  # if it is empty
