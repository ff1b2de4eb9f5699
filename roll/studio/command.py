"""`roll studio`: runs, their rollouts and new configurations, in a browser."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from roll.errors import ConfigError
from roll.studio.launch import Address
from roll.studio.options import DEFAULT_FOLDER, argument_parser
from roll.utils.files import open_regular, path_info
from roll.utils.logging import say

TOKEN_VARIABLE = "ROLL_STUDIO_TOKEN"
LEAST_TOKEN_CHARACTERS = 16
_MOST_TOKEN_BYTES = 4096
_MAKE_ONE = "python -c 'import secrets; print(secrets.token_urlsafe(24))'"


def run(argv: Sequence[str]) -> int:
    """Serves until Ctrl-C. Raises ConfigError for what cannot be served."""
    options = argument_parser().parse_args(argv)
    if options.token is not None:
        raise ConfigError(
            "--token: every user of this machine can read command lines. Put the token in the environment as "
            f"{TOKEN_VARIABLE}, or in a file that only you can read (--token_file FILE), or have one made."
        )
    place = Address(options.host, token_of(options.token_file, os.environ.pop(TOKEN_VARIABLE, None)))
    folders = [path_info(folder) for folder in options.folders or [DEFAULT_FOLDER]]
    wrong = [folder for folder in folders if not folder.is_directory]
    if options.folders and wrong:  # the default one may come with the first run
        raise ConfigError(*(f"{folder.why}: name folders that have runs below them." for folder in wrong))
    if find_spec("nicegui") is None:
        raise ConfigError("roll studio needs NiceGUI: run pip install -e '.[studio]' in the checkout.")
    listener = _listener(place.host, options.port)
    from roll.studio.server import serve

    say(f"roll studio: {place.url(listener.getsockname()[1])}", is_secret=True)
    say("Ctrl-C ends it; runs that it started go on.")
    serve([folder.path for folder in folders], place, listener)
    return 0


def token_of(file: str | None, variable: str | None) -> str:
    """Return the token of the file, that of the environment, or else a new one. Raises ConfigError for a file that
    others can read, and for a token that can be guessed."""
    if file is not None:
        return _checked(f"--token_file {file}", _private_text(Path(file)))
    return secrets.token_urlsafe(24) if variable is None else _checked(TOKEN_VARIABLE, variable)


def _private_text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MOST_TOKEN_BYTES)
    except OSError as error:
        raise ConfigError(f"--token_file {path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"--token_file {path}: other users can read or change it. chmod 600 {path}")
    return text.decode("utf-8", "replace")


def _checked(where: str, text: str) -> str:
    token = text.strip()
    if len(token) < LEAST_TOKEN_CHARACTERS or not token.isprintable():
        raise ConfigError(f"{where}: a token is a line of {LEAST_TOKEN_CHARACTERS} characters or more. {_MAKE_ONE}")
    return token


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        message = f"{host}, port {port}: nothing can listen there ({error}). --port 0 takes a free one."
        raise ConfigError(message) from None
