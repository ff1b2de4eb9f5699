"""Tracker that asks the rules during a run, and says once what begins and what ends."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Any
from urllib.request import Request, urlopen

from roll.run.health.history import History
from roll.run.health.verdict import PAGE, Symptom, symptoms, verdict
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.run.tracking.tracker import Metrics, TrackedRun, Tracker
from roll.utils.secrets import mask

logger = logging.getLogger(__name__)

_OFTEN, _EVERY = 500, 10  # rows that are all looked at, and of later ones every tenth: a look takes as long as the run
_PATIENCE = 20  # rows before a rule that ended may speak again


class HealthTracker(Tracker):
    """Reads every row as it comes. A resumed run knows the rows before it if it wrote metrics.jsonl. `alert_url`: the
    webhook that gets what begins, and the end of the run."""

    def __init__(self, run: TrackedRun, alert_url: str | None = None):
        self._alerts = Alerts(run.name, alert_url)
        before = run.directory / METRICS_FILE
        rows = read_metrics(before) if run.resumed and before.is_file() else []
        self._history = History.of(rows, run.config)
        self._present: dict[str, Symptom] = {symptom.label: symptom for symptom in symptoms(self._history)}
        self._warned: dict[str, int] = {}
        self._count = len(rows)

    def log(self, step: int, metrics: Metrics) -> None:
        if step > self._history.step or not self._count:  # a row that failed is told again
            self._count += 1
            self._history.add(step, metrics)
        if self._count > _OFTEN and self._count % _EVERY:
            return
        found = {symptom.label: symptom for symptom in symptoms(self._history)}
        for label, symptom in found.items():
            if label not in self._present and self._count - self._warned.get(label, -_PATIENCE) >= _PATIENCE:
                self._warned[label] = self._count
                text = "\n".join(symptom.lines())
                logger.warning("health: step %d: %s\n  %s", step, text, PAGE)
                self._alerts.send(f"step {step}: {text}")
        for label in self._present.keys() - found.keys():
            if self._warned.get(label, 0) < self._count:
                logger.info("health: step %d: no longer %s", step, label)
        self._present = found

    def summary(self, values: Mapping[str, Any]) -> None:
        if (result := verdict(self._history)).label == "untrained":
            return
        logger.info("health: %s: %s", result.label, "\n".join(result.lines()))

    def close(self, failed: bool = False) -> None:
        label = verdict(self._history).label
        self._alerts.send(f"{'failed' if failed else 'ended'} after step {self._history.step}: {label}")
        self._alerts.close()


_POST_S = 5
_CLOSE_S = 5  # for all that waits: a server may answer so slowly that no single read of it takes _POST_S


class Alerts:
    """Posts texts about a run to a webhook, in a thread of its own; without a URL it does nothing."""

    def __init__(self, name: str, url: str | None):
        self._name, self._thread = name, None
        self._texts = SimpleQueue[str | None]()
        if url:
            self._thread = threading.Thread(target=self._post_all, args=(url,), name="roll_alerts", daemon=True)
            self._thread.start()

    def send(self, text: str) -> None:
        if self._thread:
            self._texts.put(f"{self._name}: {text}")

    def _post_all(self, url: str) -> None:
        while (text := self._texts.get()) is not None:
            body = json.dumps({"text": text, "content": text}).encode()  # as Slack and as Discord name it
            headers = {"Content-Type": "application/json", "User-Agent": "roll"}
            try:
                with urlopen(Request(url, body, headers), timeout=_POST_S):
                    pass
            except OSError as error:
                logger.warning("alert_url: an alert was not sent: %s", mask(str(error), (url,)))
            except (ValueError, HTTPException) as error:  # its text may have a part of the URL
                logger.warning("alert_url: an alert was not sent: %s", type(error).__name__)

    def close(self) -> None:
        if not self._thread:
            return
        self._texts.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.warning("alert_url: the last alerts may not be sent: the server did not answer in %d s", _CLOSE_S)
            with suppress(Empty):
                while True:
                    self._texts.get_nowait()
            self._texts.put(None)
