"""Runs a call with events in a random order, as a careless but lawful world would deliver them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from omniflow_backend.errors import ErrorCode
from omniflow_backend.planning.plan import Plan
from omniflow_backend.runtime.actions import Accept, Action, Activate, Emit, Fail, Finish, Stop
from omniflow_backend.runtime.activation import Activation
from omniflow_backend.runtime.call import Call
from omniflow_backend.runtime.paths import Token
from omniflow_backend.runtime.trace import Trace
from tests.control.graphs import PLACEHOLDER_VALUES
from tests.control.oracle.yields import Behaviour, YieldTable

MOST_ACTIVATIONS = 200


class Violation(AssertionError):
    """The runtime did something that it must not do."""


class Endless(Violation):
    """The call goes on and on."""


@dataclass(slots=True)
class Running:
    """One activation as the driver sees it. ``sent`` are ordinals, of which the first ``taken`` took effect."""

    number: int
    node: int
    inputs: Mapping[str, Any]
    behaviour: Behaviour
    credits: int
    unsent: list[int]
    sent: set[int] = field(default_factory=set)
    taken: int = 0
    accepted: int = 0
    ends_at: int | None = None
    ended: bool = False
    stopped: bool = False

    @property
    def total(self) -> int:
        return len(self.behaviour.yields)

    def deliverable(self) -> list[int]:
        """Ordinals that backpressure allows to be sent now."""
        limit = self.accepted + self.credits
        return [ordinal for ordinal in self.unsent if ordinal < limit]


@dataclass(slots=True)
class Step:
    """One event and what came of it: yields that took effect, activations that ended, the runtime's actions."""

    event: tuple[Any, ...]
    takes: list[tuple[int, int]]
    ends: list[int]
    actions: list[Action]
    repeated: bool = False
    forced: bool = False


@dataclass(slots=True)
class Recording:
    """One whole run."""

    steps: list[Step] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    log: list[tuple[int, int, int]] = field(default_factory=list)
    log_of_step: list[int] = field(default_factory=list)
    terminal: Finish | Fail | None = None
    traced: bool = False
    stuck: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the call ended well."""
        return isinstance(self.terminal, Finish)

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            lines.append(" ".join(map(str, step.event)))
            lines += [f"    {_show(action)}" for action in step.actions]
        return "\n".join(lines)


def _show(action: Action) -> str:
    if isinstance(action, Activate):
        return f"Activate #{action.activation} {action.node.name} {action.inputs} at {action.path}"
    return str(action)


class Schedule:
    """One random run of a plan. ``run`` may be called once."""

    def __init__(self, plan: Plan, table: YieldTable, random: Random) -> None:
        self._plan = plan
        self._table = table
        self._random = random
        traced = random.random() < 0.1
        trace = Trace(lambda: 0.0) if traced else None
        self._call = Call(plan, "request", {name: PLACEHOLDER_VALUES[name] for name in plan.placeholders}, trace)
        self.recording = self._recording = Recording(traced=traced)
        self._seen: dict[int, Activation] = {}
        self._live: list[Running] = []
        self._reorder = random.choice((0.0, 0.3, 1.0))
        self._repeat = random.choice((0.0, 0.0, 0.2))
        self._early_end = random.choice((0.0, 0.5))
        self._prefers = random.choice((None, None, "oldest", "newest"))
        self._ends_last = random.random() < 0.2
        self._break_at = random.randint(1, 25) if random.random() < 0.15 else -1

    def run(self) -> Recording:
        """Everything up to the terminal action, and a little more. Raises ``Violation``."""
        recording = self._recording
        self._step(("start",), self._call.start())
        while recording.terminal is None:
            if len(recording.running) > MOST_ACTIVATIONS:
                raise Endless(f"{len(recording.running)} activations, and the call has not ended")
            if len(recording.steps) == self._break_at:
                self._break()
                continue
            if self._repeat and recording.running and self._random.random() < self._repeat:
                self._repeat_something()
                continue
            able = [one for one in self._live if self._can_go_on(one)]
            if not able:
                recording.stuck = True
                return recording
            self._go_on(self._pick(able))
        self._check_ended()
        return recording

    def _pick(self, able: list[Running]) -> Running:
        if self._prefers and self._random.random() < 0.8:
            return able[0 if self._prefers == "oldest" else -1]
        return self._random.choice(able)

    @staticmethod
    def _can_go_on(one: Running) -> bool:
        limit = one.accepted + one.credits
        return (one.ends_at is None and one.total <= limit) or (bool(one.unsent) and one.unsent[0] < limit)

    def _go_on(self, one: Running) -> None:
        deliverable = one.deliverable()
        may_end = one.ends_at is None and one.total <= one.accepted + one.credits
        if may_end and (not one.unsent or self._random.random() < self._early_end):
            if not one.unsent and self._ends_last and len(self._live) > 1 and self._random.random() < 0.7:
                return
            one.ends_at = one.total
            yields = None if not one.unsent and self._random.random() < 0.5 else one.total
            event = (f"#{one.number}", "ends after", yields)
            self._step(event, self._call.on_end(one.number, yields), one)
        elif deliverable:
            ordinal = self._random.choice(deliverable) if self._random.random() < self._reorder else deliverable[0]
            one.unsent.remove(ordinal)
            one.sent.add(ordinal)
            fields = one.behaviour.yields[ordinal]
            self._step(
                (f"#{one.number}", "yields", ordinal, fields), self._call.on_yield(one.number, ordinal, fields), one
            )

    def _repeat_something(self) -> None:
        one = self._random.choice(list(self._recording.running.values()))
        if one.sent and self._random.random() < 0.7:
            ordinal = self._random.choice(sorted(one.sent))
            actions = self._call.on_yield(one.number, ordinal, one.behaviour.yields[ordinal])
            self._step((f"#{one.number}", "yields", ordinal, "again"), actions, repeated=True)
        elif one.ends_at is not None:
            self._step((f"#{one.number}", "ends again"), self._call.on_end(one.number, one.ends_at), repeated=True)
        else:
            actions = self._call.on_yield(10_000, 0, {"a": "stray"})
            self._step(("an unknown activation yields",), actions, repeated=True)

    def _break(self) -> None:
        live = [one for one in self._live if not one.ended]
        if live and self._random.random() < 0.5:
            one = self._random.choice(live)
            one.ended = True
            self._step(
                (f"#{one.number}", "fails"),
                self._call.on_error(one.number, ErrorCode.ROLE_FAILED, "broke"),
                forced=True,
            )
        else:
            self._step(("cancel",), self._call.cancel(ErrorCode.CANCELLED, "by the caller"), forced=True)

    def _step(
        self,
        event: tuple[Any, ...],
        actions: list[Action],
        one: Running | None = None,
        *,
        repeated: bool = False,
        forced: bool = False,
    ) -> None:
        recording = self._recording
        step = Step(event, [], [], actions, repeated, forced)
        recording.steps.append(step)
        if one is not None:
            while one.taken in one.sent:
                step.takes.append((one.number, one.taken))
                recording.log.append((one.node, one.behaviour.ident, one.taken))
                one.taken += 1
            if one.ends_at == one.taken and not one.ended:
                one.ended = True
                self._live.remove(one)
                step.ends.append(one.number)
        recording.log_of_step.append(len(recording.log))
        for action in actions:
            self._act(action)
        self._seen.update(self._call._activations)

    def _act(self, action: Action) -> None:
        recording = self._recording
        if recording.terminal is not None and not isinstance(action, Stop):
            raise Violation(f"{_show(action)} after {recording.terminal}")
        match action:
            case Activate(number, node, inputs, _):
                if number in recording.running:
                    raise Violation(f"activation {number} is begun twice")
                index = int(node.name[1:].removesuffix(".run"))
                behaviour = self._table.behaviour(index, inputs)
                unsent = list(range(len(behaviour.yields)))
                running = Running(number, index, inputs, behaviour, self._plan.window, unsent)
                recording.running[number] = running
                self._live.append(running)
            case Accept(number, count):
                one = recording.running[number]
                one.accepted += count
                if count < 1 or one.accepted > one.taken:
                    raise Violation(
                        f"{one.accepted} yields of activation {number} are accepted, {one.taken} were taken"
                    )
            case Stop(number):
                one = recording.running[number]
                if one.stopped or (one.ended and number not in recording.steps[-1].ends):
                    raise Violation(f"Stop for activation {number}, which does not run")
                one.stopped = True
            case Finish() | Fail():
                recording.terminal = action
            case Emit():
                pass

    def _check_ended(self) -> None:
        """After the terminal action nothing runs, nothing is heard, and no lease is held."""
        running = [one.number for one in self._recording.running.values() if not one.ended and not one.stopped]
        if running:
            raise Violation(f"activations {running} are neither ended nor stopped when the call is")
        if isinstance(self._recording.terminal, Finish) and any(
            one.stopped for one in self._recording.running.values()
        ):
            raise Violation("a finished call stopped something")
        if self._call.running or self._call._activations:
            raise Violation("the call keeps activations after its end")
        for one in list(self._recording.running.values())[-3:]:
            late = [
                *self._call.on_yield(one.number, one.taken, {"a": "late"}),
                *self._call.on_end(one.number, None),
                *self._call.on_error(one.number, ErrorCode.ROLE_FAILED, "late"),
                *self._call.cancel(ErrorCode.CANCELLED, "late"),
            ]
            if late:
                raise Violation(f"{late} after the end of the call")
        if isinstance(self._recording.terminal, Finish):
            self._check_leases()

    def _check_leases(self) -> None:
        tokens: dict[int, Token] = {id(self._call._root): self._call._root}
        for activation in self._seen.values():
            for token in (activation.lease, activation.origin, *activation.tokens):
                at: Token | None = token
                while at is not None:
                    tokens[id(at)] = at
                    at = at.parent
        for token in tokens.values():
            if any(token.pending.values()):
                raise Violation(
                    f"leases {token.pending} are still held under ordinal {token.ordinal} of node {token.node}"
                )
            if token.buckets:
                raise Violation(
                    f"buckets {token.buckets} are still open under ordinal {token.ordinal} of node {token.node}"
                )
