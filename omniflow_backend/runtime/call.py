"""One graph call: the state machine between a driver's events and its actions (contract sections 4-8).

Deterministic for a given order of events; knows no clock, socket or Triton.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from omniflow_backend.dsl.types import absent
from omniflow_backend.dsl.workflow import Placeholder
from omniflow_backend.errors import ErrorCode, Failure
from omniflow_backend.planning.plan import (
    ENTRY,
    Alternative,
    AlternativeKind,
    OutputBinding,
    Plan,
    PlannedNode,
    Route,
)
from omniflow_backend.runtime.actions import Accept, Action, Activate, Emit, Fail, Finish, Stop
from omniflow_backend.runtime.activation import Activation, StreamValue
from omniflow_backend.runtime.count_join import CountBucket, CountJoinError, judged_first
from omniflow_backend.runtime.leases import Leases
from omniflow_backend.runtime.ordering import pass_gate
from omniflow_backend.runtime.outputs import CollectedOutputs
from omniflow_backend.runtime.paths import Token, show_path
from omniflow_backend.runtime.placeholders import check_placeholders
from omniflow_backend.runtime.prefix_join import Bucket, WrongNumber
from omniflow_backend.runtime.trace import Trace


class Call:
    """One request's run through a plan.

    Every method is an event and returns the actions that follow. Events for activations that are unknown, ended or
    repeated are ignored.
    """

    def __init__(self, plan: Plan, request: str, inputs: Mapping[str, Any], trace: Trace | None = None) -> None:
        """Raises ``BadInput`` when ``inputs`` do not fit the plan's placeholders.

        ``skipped`` and ``impossible`` count skips and impossible buckets, by node.
        """
        self.plan = plan
        self.request = request
        self.ended = False
        self._trace = trace
        self._placeholders = check_placeholders(plan, inputs)
        self._leases = Leases(plan, None if trace is None else self._lease_changed)
        self._root = Token(ENTRY, None, 0, 0, None, None, {})
        self._root.scope = {ENTRY: self._root}
        self._activations: dict[int, Activation] = {}
        self._running: set[int] = set()
        self._constants: dict[tuple[int, int], dict[str, Any]] = {}
        self._count_buckets: dict[int, CountBucket] = {}
        self._ready: dict[int, list[tuple[int, int, Activation]]] = {}
        self._busy: set[int] = set()
        self._collected = CollectedOutputs(plan)
        self._numbers = 0
        self._buffered = 0
        self.skipped: dict[int, int] = {}
        self.impossible: dict[int, int] = {}
        self._actions: list[Action] = []

    # --- events -------------------------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """The call is admitted: run every node that is bound to placeholders alone."""
        try:
            for node in self.plan.nodes:
                if node.is_count_join:
                    self._count_buckets[node.index] = CountBucket(node, self._placeholders)
        except CountJoinError as error:
            self._fail(ErrorCode.BAD_INPUT, str(error), node)
            return self._flush()
        for node in self.plan.nodes:
            for alternative in node.alternatives:
                if alternative.kind is AlternativeKind.ENTRY:
                    inputs = dict(self._constants_of(node, alternative))
                    self._begin(self._new_activation(node, alternative.index, inputs, self._root, self._root))
        return self._flush()

    def on_yield(self, activation: int, ordinal: int, fields: Mapping[str, Any]) -> list[Action]:
        """Yield ``ordinal`` (from 0) of an activation. Repeated ones are ignored, early ones kept until their turn."""
        producer = self._activations.get(activation)
        if producer is None or ordinal < producer.next_ordinal:
            return []
        if ordinal > producer.next_ordinal:
            producer.early.setdefault(ordinal, fields)
            return []
        self._take_yield(producer, fields)
        while producer.early and producer.next_ordinal in producer.early and not self.ended:
            self._take_yield(producer, producer.early.pop(producer.next_ordinal))
        if producer.ends_at == producer.next_ordinal and not self.ended:
            self._end(producer)
        return self._flush()

    def on_end(self, activation: int, yields: int | None = None) -> list[Action]:
        """The activation has ended after ``yields`` yields (``None``: as many as have come)."""
        ending = self._activations.get(activation)
        if ending is None:
            return []
        if yields is not None and yields > ending.next_ordinal:
            ending.ends_at = yields
            return []
        self._end(ending)
        return self._flush()

    def on_error(self, activation: int, code: ErrorCode, message: str) -> list[Action]:
        """The activation has failed: so does the call, even if nobody waits for that branch (ruling 15)."""
        failed = self._activations.get(activation)
        if failed is None:
            return []
        self._running.discard(activation)
        self._fail(code, message, failed.node, failed.origin)
        return self._flush()

    def cancel(self, code: ErrorCode, message: str) -> list[Action]:
        """End the call from outside: cancellation, deadline, disconnect."""
        if not self.ended:
            self._fail(code, message, None)
        return self._flush()

    @property
    def running(self) -> frozenset[int]:
        """Activations handed to the driver that have not ended; empty after the terminal event."""
        return frozenset(self._running)

    # --- yields -------------------------------------------------------------------------------------------------------

    def _take_yield(self, producer: Activation, fields: Mapping[str, Any]) -> None:
        node = producer.node
        if not fields.keys() <= node.spec.outputs.keys():
            unknown = sorted(fields.keys() - node.spec.outputs.keys())
            message = (
                f"yielded {unknown[0]!r}, which is not among its declared outputs ({', '.join(node.spec.outputs)})"
            )
            self._fail(ErrorCode.ROLE_FAILED, message, node, producer.origin)
            return
        self._numbers += 1
        lease = producer.lease
        token = Token(node.index, producer, producer.next_ordinal, self._numbers, producer.origin, lease, lease.scope)
        if node.is_anchor:
            token.scope = {**lease.scope, node.index: token}
        producer.next_ordinal += 1
        if self._trace is not None:
            self._trace.yielded(producer.number, show_path(token, self.plan.node_name), fields)
        started: list[Activation] = []
        for route in node.routes:
            if not self.ended:
                self._deliver(route, token, fields, producer, started)
        for node_index, count in node.count_routes:
            if count.output is not None and count.output in fields and not self.ended:
                self._learn_count(node_index, count.field, fields[count.output])
        if self.ended:
            return
        for binding in node.outputs:
            if binding.field in fields:
                self._present(binding, fields[binding.field], token, producer)
        if producer.siblings is not None:
            producer.tokens.append(token)
        for child in started:
            self._begin(child)
        for target in node.anchored_joins:
            if not token.pending.get(target):
                self._leases.closed.append((token, target))
        if node.spec.style.repeats:
            producer.unaccepted += 1
            self._accept(producer)

    def _deliver(
        self, route: Route, token: Token, fields: Mapping[str, Any], producer: Activation, started: list[Activation]
    ) -> None:
        """Hand one yield to one route; ``started`` collects activations to begin once all of the yield is
        registered.
        """
        node = self.plan.nodes[route.node]
        alternative = node.alternatives[route.alternative]
        if alternative.kind is AlternativeKind.DIRECT:
            self._deliver_direct(route, node, alternative, token, fields, producer, started)
            return
        present = [mapping for mapping in route.mappings if mapping.source in fields]
        if not present:
            self._skip(node, token, [m.source for m in route.mappings])
            return
        if self._trace is not None:
            self._trace.delivered(node.name, self._show(token), [mapping.field for mapping in present])
        if alternative.kind is AlternativeKind.PREFIX_JOIN:
            assert alternative.anchor is not None
            assert alternative.target is not None
            anchor = token.scope[alternative.anchor]
            bucket: Bucket | None = anchor.buckets.get(alternative.target)
            if bucket is None:
                bucket = anchor.buckets[alternative.target] = Bucket(alternative, anchor)
                self._leases.hold(anchor, node.work)
                if self._trace is not None:
                    self._trace.opened(node.name, self._show(anchor))
            for mapping in present:
                bucket.add(token, mapping.field, fields[mapping.source])
            self._buffer(len(present), node)
        else:
            count_bucket = self._count_buckets[node.index]
            if not count_bucket.fired:
                for mapping in present:
                    count_bucket.add(alternative.index, mapping.field, token, fields[mapping.source])
                self._buffer(len(present), node)
                self._try_count_join(node, count_bucket)

    def _deliver_direct(
        self,
        route: Route,
        node: PlannedNode,
        alternative: Alternative,
        token: Token,
        fields: Mapping[str, Any],
        producer: Activation,
        started: list[Activation],
    ) -> None:
        inputs = dict(self._constants_of(node, alternative))
        for mapping in route.mappings:
            if mapping.source in fields:
                value = fields[mapping.source]
                inputs[mapping.field] = [value] if mapping.wrap else value
            elif mapping.required:
                self._skip(node, token, [m.source for m in route.mappings if m.required and m.source not in fields])
                return
            else:
                inputs[mapping.field] = absent(node.spec.inputs[mapping.field])
        child = self._new_activation(node, alternative.index, inputs, token, token)
        if self._trace is not None:
            sent = [mapping.field for mapping in route.mappings if mapping.source in fields]
            self._trace.delivered(node.name, self._show(token), sent, child.number)
        if route.windowed:
            child.producer = producer
            producer.outstanding += 1
        started.append(child)

    def _skip(self, node: PlannedNode, token: Token, missing: list[str]) -> None:
        self.skipped[node.index] = self.skipped.get(node.index, 0) + 1
        if self._trace is not None:
            self._trace.skipped(node.name, self._show(token), missing)

    def _lease_changed(self, token: Token, target: int, held: bool) -> None:
        assert self._trace is not None
        changed = self._trace.held if held else self._trace.closed
        changed(self.plan.target_name(target), self.plan.targets[target].kind.value, self._show(token))

    def _show(self, token: Token) -> str:
        return show_path(token, self.plan.node_name)

    def _buffer(self, values: int, node: PlannedNode) -> None:
        self._buffered += values
        if self._buffered > self.plan.buffered_values:
            self._fail(
                ErrorCode.JOIN_FAILED, f"the joins of this call hold more than {self.plan.buffered_values} values", node
            )

    # --- activations --------------------------------------------------------------------------------------------------

    def _new_activation(
        self, node: PlannedNode, alternative: int, inputs: dict[str, Any], origin: Token, lease: Token
    ) -> Activation:
        self._numbers += 1
        activation = Activation(self._numbers, node, alternative, inputs, origin, lease)
        self._activations[activation.number] = activation
        self._leases.hold(lease, node.work)
        if self._trace is not None:
            self._trace.queued(activation.number, node.name, self._show(origin))
        return activation

    def _begin(self, activation: Activation) -> None:
        """Run it, or let it wait for its turn where the interface is ordered."""
        if activation.node.order_target is None:
            self._run(activation)
        elif pass_gate(activation):
            self._enqueue(activation)

    def _enqueue(self, activation: Activation) -> None:
        node = activation.node.index
        if node in self._busy:
            heapq.heappush(self._ready.setdefault(node, []), (activation.alternative, activation.sequence, activation))
        else:
            self._busy.add(node)
            self._run(activation)

    def _run(self, activation: Activation) -> None:
        path = self._show(activation.origin) if self._trace is not None else ""
        if self._trace is not None:
            self._trace.started(activation.number, activation.node.name, path)
        self._running.add(activation.number)
        self._actions.append(Activate(activation.number, activation.node, activation.inputs, path))

    def _end(self, activation: Activation) -> None:
        del self._activations[activation.number]
        self._running.discard(activation.number)
        if self._trace is not None:
            self._trace.ended(activation.number)
        self._leases.release(activation.lease, activation.node.work)
        if activation.producer is not None:
            activation.producer.outstanding -= 1
            self._accept(activation.producer)
        if activation.node.order_target is not None:
            node = activation.node.index
            waiting = self._ready.get(node)
            if waiting:
                self._run(heapq.heappop(waiting)[2])
            else:
                self._busy.discard(node)

    def _accept(self, producer: Activation) -> None:
        if producer.unaccepted and producer.outstanding <= self.plan.window and producer.number in self._running:
            self._actions.append(Accept(producer.number, producer.unaccepted))
            producer.unaccepted = 0

    def _constants_of(self, node: PlannedNode, alternative: Alternative) -> dict[str, Any]:
        """Placeholders and global parameters that the alternative binds; inputs that it leaves unbound are absent."""
        key = (node.index, alternative.index)
        if key not in self._constants:
            constants: dict[str, Any] = {
                field: absent(field_type)
                for field, field_type in node.spec.inputs.items()
                if field not in alternative.fields
            }
            for field, source in alternative.constants.items():
                constants[field] = self._placeholders[source.name] if isinstance(source, Placeholder) else source
            self._constants[key] = constants
        return self._constants[key]

    # --- joins --------------------------------------------------------------------------------------------------------

    def _close(self, bucket: Bucket) -> None:
        """Nothing more can come: run the join, or find it impossible."""
        alternative = bucket.alternative
        node = self.plan.nodes[alternative.node]
        self._buffered -= bucket.size
        missing = bucket.missing(node.spec)
        if missing:
            self.impossible[node.index] = self.impossible.get(node.index, 0) + 1
            if self._trace is not None:
                self._trace.impossible(node.name, self._show(bucket.anchor), missing)
        else:
            assert bucket.origin is not None
            try:
                inputs = {**self._constants_of(node, alternative), **bucket.inputs(node.spec)}
            except WrongNumber as error:
                self._fail(ErrorCode.JOIN_FAILED, str(error), node, bucket.anchor)
                return
            activation = self._new_activation(node, alternative.index, inputs, bucket.origin, bucket.anchor)
            if self._trace is not None:
                self._trace.fired(node.name, self._show(bucket.anchor), activation.number)
            self._begin(activation)
        self._leases.release(bucket.anchor, node.work)

    def _learn_count(self, node_index: int, trigger: str, count: Any) -> None:
        node = self.plan.nodes[node_index]
        bucket = self._count_buckets[node_index]
        try:
            bucket.learn(trigger, count)
        except CountJoinError as error:
            self._fail(ErrorCode.JOIN_FAILED, str(error), node)
            return
        if not bucket.fired:
            self._try_count_join(node, bucket)

    def _try_count_join(self, node: PlannedNode, bucket: CountBucket) -> None:
        if not bucket.held:
            bucket.held = True
            self._leases.hold(self._root, node.work)
            if self._trace is not None:
                self._trace.opened(node.name, "")
        if self.ended or bucket.empty or bucket.shortfall():
            return
        facet = next(a for a in node.alternatives if a.kind is AlternativeKind.COUNT_JOIN)
        try:
            inputs, origin = bucket.fire(self.plan.node_name)
        except (CountJoinError, WrongNumber) as error:
            self._fail(ErrorCode.JOIN_FAILED, str(error), node)
            return
        inputs = {**self._constants_of(node, facet), **inputs}
        activation = self._new_activation(node, facet.index, inputs, origin, self._root)
        if self._trace is not None:
            self._trace.fired(node.name, "", activation.number)
        self._begin(activation)
        self._leases.release(self._root, node.work)

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _present(self, binding: OutputBinding, value: Any, token: Token, producer: Activation) -> None:
        output = self.plan.outputs[binding.output]
        if not output.stream:
            self._collected.add(output, token, value)
            return
        self._collected.streamed(output)
        self._numbers += 1
        item = StreamValue(output, value, token, self._numbers, producer if binding.windowed else None)
        if pass_gate(item):
            self._actions.append(Emit(output.name, value))
            if self._trace is not None:
                self._trace.emitted(output.name, self._show(token))
            return
        self._leases.hold(token, (item.target,))
        if item.producer is not None:
            item.producer.outstanding += 1

    def _emit(self, item: StreamValue) -> None:
        self._actions.append(Emit(item.output.name, item.value))
        if self._trace is not None:
            self._trace.emitted(item.output.name, self._show(item.token))
        if item.producer is not None:
            item.producer.outstanding -= 1
            self._accept(item.producer)
        self._leases.release(item.token, (item.target,))

    # --- settling and ending ------------------------------------------------------------------------------------------

    def _flush(self) -> list[Action]:
        """Act on everything that closed, until nothing more does; end the call when nothing is left."""
        closed = self._leases.closed
        while not self.ended:
            while closed and not self.ended:
                token, target = closed.popleft()
                if not token.pending.get(target):
                    self._settled(token, target)
            if self._activations or closed or self.ended:
                break
            self._quiesce()
        actions, self._actions = self._actions, []
        return actions

    def _settled(self, token: Token, target: int) -> None:
        bucket = token.buckets.pop(target, None)
        if bucket is not None:
            self._close(bucket)
        elif token.activation is not None and token.activation.siblings is not None:
            siblings = token.activation.siblings.get(target)
            for item in siblings.freed(target) if siblings is not None else ():
                if pass_gate(item):
                    if isinstance(item, StreamValue):
                        self._emit(item)
                    elif isinstance(item, Activation):
                        self._enqueue(item)

    def _quiesce(self) -> None:
        """No activation is left: count joins are judged, upstream ones first, then the call finishes.

        A bucket may be open even now: it waited for what a count join would have yielded.
        """
        while waiting := [index for index, bucket in self._count_buckets.items() if not bucket.fired]:
            index = judged_first(self.plan, waiting)
            node, bucket = self.plan.nodes[index], self._count_buckets[index]
            if bucket.reached and not bucket.empty:
                self._fail(
                    ErrorCode.JOIN_FAILED, f"count join not satisfied when the call ended: {bucket.shortfall()}", node
                )
                return
            bucket.fired = True
            if bucket.held:
                self._leases.release(self._root, node.work)
            if self._leases.closed:
                return
        self._finish()

    def _finish(self) -> None:
        try:
            outputs = self._collected.results()
        except WrongNumber as error:
            self._fail(ErrorCode.OUTPUT_FAILED, str(error), None)
            return
        self.ended = True
        self._actions.append(Finish(outputs))
        if self._trace is not None:
            self._trace.finished(sorted(outputs))
        self._clear()

    def _fail(self, code: ErrorCode, message: str, node: PlannedNode | None, origin: Token | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        failure = Failure(
            code=code,
            message=message,
            workflow=self.plan.name,
            node=node.name if node else "",
            role=(node.role or "") if node else "",
            request=self.request,
            path=show_path(origin, self.plan.node_name) if origin is not None else "",
        )
        self._actions += [Stop(number) for number in sorted(self._running)]
        self._actions.append(Fail(failure))
        if self._trace is not None:
            self._trace.failed(failure)
        self._clear()

    def _clear(self) -> None:
        self._running.clear()
        self._activations.clear()
        self._ready.clear()
        self._count_buckets.clear()
        self._collected = CollectedOutputs(self.plan)
        self._leases.closed.clear()
