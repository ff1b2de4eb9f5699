"""The server: NiceGUI's pages and the data that they fetch, behind the gate."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from roll.studio.access import Gate
from roll.studio.command import Place
from roll.studio.indexes import RolloutIndexes
from roll.studio.launch import Launched
from roll.studio.pages import builder, report, rollout_data, rollouts, run, runs
from roll.studio.run_list import RunList


def serve(folders: Sequence[Path], place: Place, listener: socket.socket) -> None:
    """Serves the studio until a signal ends it."""
    gate = Gate(application(folders), place.token, listener.getsockname()[1])
    # no access log: addresses hold the token
    config = uvicorn.Config(gate, log_level="warning", access_log=False, ws="wsproto", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def application(folders: Sequence[Path]) -> FastAPI:
    """Pages and data, open to whoever asks."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    found = RunList(folders)
    launches: dict[str, Launched] = {}
    runs.add(found)
    run.add(found, launches)
    builder.add(folders[0], launches)
    indexes = RolloutIndexes(found)
    rollouts.add(indexes)
    rollout_data.add(app, indexes)
    report.add(app, found)
    ui.run_with(app, title="roll studio", favicon="🎲", tailwind=False, show_welcome_message=False)
    return app
