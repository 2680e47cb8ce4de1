"""A workflow's counts on Triton's own /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb

from omniflow_backend.drivers.counts import NodeCounts, WorkflowCounts
from omniflow_backend.planning.plan import Plan

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0

_CALLS = {
    "omniflow_calls_started_total": "Calls that were submitted",
    "omniflow_calls_finished_total": "Calls that ended with SYSTEM_FINISH",
    "omniflow_calls_failed_total": "Calls that ended with an ERROR other than CANCELLED",
    "omniflow_calls_cancelled_total": "Calls that were cancelled",
}
_OPEN = "omniflow_calls_open"
_NODES = {
    "omniflow_node_activations_total": "Activations handed to a role",
    "omniflow_node_failures_total": "Activations that failed",
    "omniflow_node_skips_total": "Yields that did not provide what a route to the node needs",
    "omniflow_node_impossible_buckets_total": "Join buckets that closed without a required field",
    "omniflow_node_queue_us_total": "Microseconds from handing over an activation to its beginning",
    "omniflow_node_run_us_total": "Microseconds from the beginning of an activation to its end",
}


@dataclass(frozen=True, slots=True)
class _Sample:
    """One value of one metric; ``node`` is empty for metrics of the whole workflow."""

    family: str
    node: str
    value: float


class MetricsReporter:
    """Hands what has changed to Triton once a second, in a thread of its own: each number is a message to the server.

    Where the server has no custom metrics, nothing happens.
    """

    def __init__(self, plan: Plan, counts: WorkflowCounts, loop: asyncio.AbstractEventLoop) -> None:
        """Must be called on the loop's thread."""
        self._plan = plan
        self._counts = counts
        self._loop = loop
        self._told: dict[tuple[str, str], float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._table: _Table | None = None
        self._usable = hasattr(pb, "MetricFamily")
        if self._usable:
            self._thread.submit(self._open)
            self._timer: asyncio.TimerHandle | None = loop.call_later(_EVERY_SECONDS, self._report)
        else:
            log.info("this server has no custom metrics")

    def close(self) -> None:
        """Hand over what is left and stop. Called when the loop has nothing more to count, from another thread."""
        if self._usable:
            self._thread.submit(self._tell, self._changes())
        self._thread.submit(self._drop)
        self._thread.shutdown()
        self._usable = False

    def _report(self) -> None:
        if self._usable:
            changes = self._changes()
            if changes:
                self._thread.submit(self._tell, changes)
            self._timer = self._loop.call_later(_EVERY_SECONDS, self._report)

    def _changes(self) -> list[_Sample]:
        """What has grown since the last time, by how much; the gauge as it is."""
        changes = []
        for sample in _samples(self._plan, self._counts):
            key = (sample.family, sample.node)
            grown = sample.value - self._told.get(key, 0.0)
            if grown:
                self._told[key] = sample.value
                changes.append(sample if sample.family == _OPEN else _Sample(sample.family, sample.node, grown))
        return changes

    def _open(self) -> None:
        try:
            self._table = _Table(self._plan)
        except Exception as error:
            self._usable = False
            log.warning("no metrics of workflow %s: %s", self._plan.name, error)

    def _drop(self) -> None:
        """Triton's objects must go while the stub can still talk to the server: at its exit they would crash it."""
        self._table = None

    def _tell(self, changes: list[_Sample]) -> None:
        if self._table is None:
            return
        try:
            for sample in changes:
                self._table.tell(sample)
        except Exception as error:
            self._usable = False
            log.warning("metrics of workflow %s are told no more: %s", self._plan.name, error)


class _Table:
    """All metrics of a workflow, made at once so that those that stay zero are seen, too."""

    def __init__(self, plan: Plan) -> None:
        counter, gauge = pb.MetricFamily.COUNTER, pb.MetricFamily.GAUGE
        kinds = [(name, text, counter, [""]) for name, text in _CALLS.items()]
        kinds.append((_OPEN, "Calls without a terminal event yet", gauge, [""]))
        kinds += [(name, text, counter, [node.name for node in plan.nodes]) for name, text in _NODES.items()]
        self._families = []
        self._metrics: dict[tuple[str, str], Any] = {}
        for name, text, kind, nodes in kinds:
            family = pb.MetricFamily(name=name, description=text, kind=kind)
            self._families.append(family)
            for node in nodes:
                labels = {"workflow": plan.name} | ({"node": node} if node else {})
                self._metrics[name, node] = family.Metric(labels=labels)

    def tell(self, sample: _Sample) -> None:
        """Add to a counter, or set the gauge."""
        metric = self._metrics[sample.family, sample.node]
        if sample.family == _OPEN:
            metric.set(sample.value)
        else:
            metric.increment(sample.value)


def _samples(plan: Plan, counts: WorkflowCounts) -> Iterator[_Sample]:
    calls = (counts.started, counts.finished, counts.failed, counts.cancelled)
    for name, number in zip(_CALLS, calls, strict=True):
        yield _Sample(name, "", float(number))
    yield _Sample(_OPEN, "", float(counts.open))
    for node, of_node in zip(plan.nodes, counts.nodes, strict=True):
        for name, value in zip(_NODES, _values(of_node), strict=True):
            yield _Sample(name, node.name, value)


def _values(of: NodeCounts) -> tuple[float, ...]:
    times = (of.queue_s * 1e6, of.run_s * 1e6)
    return (float(of.activations), float(of.failures), float(of.skips), float(of.impossible), *times)
