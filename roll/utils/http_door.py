"""The door of every HTTP server of a run: uvicorn, with limits for whoever comes."""

from __future__ import annotations

import resource
from typing import Any

import uvicorn
from starlette.types import ASGIApp

MOST_CONNECTIONS = 4096
_MOST_HEAD_BYTES = 65_536
_IDLE_S = 120  # longer than clients keep connections (httpx 5 s, Go 90): a request on one just closed fails


def behind_door(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration of a server of this app: h11 limits the head of a request, and beyond MOST_CONNECTIONS
    requests are answered with 503. Lets the process open as many files as these need, if the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_CONNECTIONS  # not `hard`: macOS refuses its own infinity
    if 0 <= soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)
    return uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        limit_concurrency=most,
        timeout_keep_alive=_IDLE_S,
        log_level="error",  # it would say every request that is none
        access_log=False,  # addresses may hold tokens
        **options,
    )
