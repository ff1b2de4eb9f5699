"""Saving is tried before the first step, so that no run loses its steps at its first checkpoint."""

import os
import shutil
from contextlib import suppress

from roll.configs.sections.run import RunConfig
from roll.errors import ConfigError, describe


def rehearse_saving(config: RunConfig) -> None:
    """Writes and removes what a saved model holds beside its weights. ConfigError for what cannot be written."""
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
