"""The process that makes plans for the studio. It has imported what a plan needs, and forks for each one.

A plan may import code of the user's, change the environment, or hang: all of that ends with its fork. The process
itself runs nothing of the user's and starts no thread. It ends, with the plans under way, when the studio does.

A message on the control socket is either {"modules": [...]} to import, or {"words": [...], "folder": ...} with the
descriptor of a socket: the fork runs `roll WORDS`, writes what it prints to FOLDER/stdout and FOLDER/stderr, and sends
its process id on a line at once, and {"code": ..., "modules": [...]} at its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from roll.commands.table import main as roll_main

MOST_BYTES = 100_000  # of a message
_FIRST = ("roll.commands.run", "roll.pipeline.rlvr.rlvr_checks", "roll.pipeline.rlvr.rlvr_config", "hydra", "numpy")
_OURS = "roll."


def serve(control: socket.socket) -> NoReturn:
    """Makes plans until the other end of the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    _import(_FIRST)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 1)
        if not message:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        request = json.loads(message)
        if not descriptors:
            _import(name for name in request["modules"] if name.startswith(_OURS))
            continue
        reply = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            control.close()
            _plan(reply, request["words"], request["folder"])
        reply.close()


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(ImportError):  # a plan that needs it says so
            import_module(name)


def _plan(reply: socket.socket, words: Sequence[str], folder: str) -> NoReturn:
    """Runs the command in this fork, and ends it."""
    code, before = 1, set(sys.modules)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
            os.close(file)
        reply.sendall(f"{os.getpid()}\n".encode())
        code = roll_main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
            modules = sorted(name for name in sys.modules.keys() - before if name.startswith(_OURS))
            reply.sendall(json.dumps({"code": code, "modules": modules}).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
