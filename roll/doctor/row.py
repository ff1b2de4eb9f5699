"""One error that others had before."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "actor_infer.strategy_args.strategy_config"
TRAINER = "actor_train.strategy_args.strategy_config"
SHM = "docker --shm-size=16g, or an emptyDir with medium: Memory"


@dataclass(frozen=True)
class KnownError:
    """`pattern`: a regular expression of one line. `near`: one that must be found in that line or those around it.
    `where`: the YAML key, variable or command that `fix` is about. `follows`: it tells of what another process met."""

    name: str
    pattern: str
    cause: str
    where: str
    fix: str
    near: str = ""
    follows: bool = False
