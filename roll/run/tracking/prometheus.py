"""The newest metrics of a run for Prometheus, which comes and asks for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from roll.run.tracking.tracker import Metrics, NamedTracker, TrackedRun
from roll.utils.network import LOOPBACK

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

DEFAULT_PORT = 9400


class PrometheusTracker(NamedTracker):
    """Serves `http://<host>:<port>/metrics` while the run goes on: each metric of the newest step as a gauge
    `roll_<name>` with the label `run`, and `roll_step`. Whoever reaches the port can read them, so `host` is loopback
    unless given; 0.0.0.0 is every interface. Port 0 takes a free one."""

    module: ClassVar = "prometheus_client"
    install: ClassVar = "pip install prometheus_client"
    settings: ClassVar = frozenset({"host", "port"})

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        from prometheus_client import CollectorRegistry, start_http_server

        self._newest = _Newest(run.name)
        registry = CollectorRegistry()
        registry.register(self._newest)
        host, port = str(settings.get("host") or LOOPBACK), settings.get("port")
        self._server, self._thread = start_http_server(DEFAULT_PORT if port is None else int(port), host, registry)

    @property
    def port(self) -> int:
        return self._server.server_port

    def log(self, step: int, metrics: Metrics) -> None:
        self._newest.metrics = {"step": float(step), **metrics}

    def close(self, failed: bool = False) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Newest:
    """A collector. Metrics are put in its place whole, so that the server's thread never sees a half of them."""

    def __init__(self, run: str):
        self._run = run
        self.metrics: Metrics = {}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        told: set[str] = set()
        for name, value in self.metrics.items():
            plain = "roll_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            if plain not in told:  # of two that Prometheus cannot tell apart, the first
                told.add(plain)
                family = GaugeMetricFamily(plain, name, labels=["run"])
                family.add_metric([self._run], value)
                yield family
