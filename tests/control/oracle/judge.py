"""Holds a recorded run against the tree: nothing too early, nothing too late, nothing missing, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omniflow_backend.dsl.types import is_many
from omniflow_backend.errors import ErrorCode
from omniflow_backend.runtime.actions import Activate, Emit, Fail, Finish
from tests.control.graphs import output_name
from tests.control.oracle.order import Branches, Path, is_extension, precedes
from tests.control.oracle.schedule import Recording, Step, Violation
from tests.control.oracle.semantics import Act, Contribution, Tree
from tests.control.oracle.yields import canonical


def judge(tree: Tree, recording: Recording) -> None:
    """Raises ``Violation``."""
    _Judge(tree, recording).judge()


class _Judge:
    def __init__(self, tree: Tree, recording: Recording) -> None:
        self.tree = tree
        self._recording = recording
        self._graph = tree.facts.graph
        self._taken: set[tuple[int, int]] = set()
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._acts: dict[int, Act] = {}
        self._alike: dict[tuple[int, int], list[Act]] = {}
        for act in tree.acts:
            if act.behaviour is not None:
                self._alike.setdefault((act.node, act.behaviour.ident), []).append(act)
        self._waiting = list(tree.acts)
        self._unfinished = {act.index: act for act in tree.acts}
        self._log = 0
        self._streams = [_Stream(self, index) for index, output in enumerate(self._graph.outputs) if output.stream]
        self._ordered = [index for index, node in enumerate(self._graph.nodes) if node.ordered]

    def judge(self) -> None:
        for step, log in zip(self._recording.steps, self._recording.log_of_step, strict=True):
            self._log = log
            for number, ordinal in step.takes:
                self._taken.add((self._acts[number].index, ordinal))
            for number in step.ends:
                index = self._acts[number].index
                self._ended.add(index)
                del self._unfinished[index]
            self._judge_step(step)
        if self._recording.stuck:
            raise Violation("the call waits for ever: nothing can go on")

    def _judge_step(self, step: Step) -> None:
        if step.repeated:
            if step.actions:
                raise Violation(f"a repeated event had effects: {step.actions}")
            return
        terminal: Finish | Fail | None = None
        refused = self.tree.fails_at is not None and self._log >= self.tree.fails_at
        for action in step.actions:
            match action:
                case Activate() if refused:
                    pass  # the yield that makes a count join fail may have begun something: it is stopped with the rest
                case Activate():
                    self._begin(action)
                case Emit(output, value):
                    self._stream(output).emit(value)
                case Finish() | Fail():
                    terminal = action
        if step.forced:
            if not isinstance(terminal, Fail) or terminal.failure.code not in (
                ErrorCode.CANCELLED,
                ErrorCode.ROLE_FAILED,
            ):
                raise Violation(f"{step.event!r} led to {terminal}")
            return
        self._judge_terminal(terminal)
        if terminal is None:
            self._judge_idle()

    # --- activations --------------------------------------------------------------------------------------------------

    def ready(self, act: Act) -> bool:
        """Whether its inputs are complete."""
        return (act.cause is None or act.cause in self._taken) and act.needs <= self._ended and act.after <= self._log

    def _begin(self, action: Activate) -> None:
        running = self._recording.running[action.activation]
        alike = self._alike.get((running.node, running.behaviour.ident), [])
        if not alike:
            raise Violation(
                f"#{action.activation} must not happen (more often than it did): {action.node.name} {action.inputs}"
            )
        act = next((act for act in alike if self.ready(act)), None)
        if act is None:
            raise Violation(f"#{action.activation} begins too early: {self._missing(alike[0])}")
        alike.remove(act)
        self._waiting.remove(act)
        self._begun.add(act.index)
        self._acts[action.activation] = act
        self._judge_inputs(act, action.inputs)
        path = ":".join(f"n{self.tree.acts[i].node}.run[{ordinal}]" for i, ordinal in act.origin)
        if self._recording.traced and action.path != path:
            raise Violation(f"#{action.activation} has the path {action.path}, not {path}")
        if act.node in self._ordered:
            self._judge_turn(act, action)

    def _missing(self, act: Act) -> str:
        ended = sorted(act.needs - self._ended)
        nodes = ", ".join(f"n{self.tree.acts[index].node} {self.tree.acts[index].inputs}" for index in ended)
        return f"still to be waited for: {nodes or act.cause}"

    def _judge_inputs(self, act: Act, inputs: Mapping[str, Any]) -> None:
        spec = self._graph.nodes[act.node]
        for name in spec.inputs:
            actual, expected = inputs.get(name), act.inputs.get(name)
            collected = act.collected.get(name)
            if canonical(actual) is None and canonical(expected) is None:
                continue
            if collected is None or not is_many(spec.inputs[name]):
                if actual != expected:
                    raise Violation(f"n{act.node}: {name} is {actual}, not {expected}")
                continue
            branches = self.tree.field_branches(act.node, act.alternative, name)
            self._judge_list(actual, collected, branches, f"n{act.node}: {name}")

    def _judge_list(self, actual: Any, expected: Iterable[Contribution], branches: Branches, what: str) -> None:
        items = [(item.value, item) for item in expected]
        if not is_extension(actual, items, lambda a, b: self.tree.comes_before(a, b, branches)):
            raise Violation(f"{what} is {actual}; out of order, or not the values {[value for value, _ in items]}")

    # --- session-ordered interfaces -----------------------------------------------------------------------------------

    def _judge_turn(self, act: Act, action: Activate) -> None:
        if any(self.tree.acts[i].node == act.node and i != act.index for i in self._begun - self._ended):
            raise Violation(f"#{action.activation} begins while {action.node.name} is running")
        for other in self._waiting:
            if other.node != act.node or other.behaviour is None:
                continue
            if precedes(other.turn, act.turn, unordered) is True and other.turn != act.turn[: len(other.turn)]:
                raise Violation(f"#{action.activation} overtakes {other.inputs}, which was generated earlier")

    def _held(self, act: Act) -> bool:
        """Whether anything may keep a ready activation of an ordered interface from its turn."""
        if any(self.tree.acts[i].node == act.node for i in self._begun - self._ended):
            return True
        return self.may_come_first(act.turn, self.tree.facts.towards[act.node], than=act.index)

    def may_come_first(self, path: Path, towards: frozenset[int], than: int | None) -> bool:
        """Whether something unfinished, on another branch or under an earlier ordinal, leads to ``towards``."""
        return any(
            act.index != than and act.node in towards and _parts_before(act.turn, path)
            for act in self._unfinished.values()
        )

    # --- liveness -----------------------------------------------------------------------------------------------------

    def _judge_idle(self) -> None:
        """Whatever could have begun or been presented by now, was."""
        for act in self._waiting:
            if not self.ready(act) or act.behaviour is None or act.patient:
                continue
            if act.node not in self._ordered or not self._held(act):
                raise Violation(f"n{act.node} {act.inputs} should have begun by now")
        for stream in self._streams:
            stream.judge_idle()

    def _stream(self, output: str) -> _Stream:
        for stream in self._streams:
            if output_name(stream.index) == output:
                return stream
        raise Violation(f"a value of {output}, which is not streamed")

    def yielded(self, path: Path) -> bool:
        """Whether a yield was taken."""
        return path[-1] in self._taken

    # --- ending -------------------------------------------------------------------------------------------------------

    def _judge_terminal(self, terminal: Finish | Fail | None) -> None:
        may_fail = [act for act in self._waiting if act.failure and self.ready(act)]
        must_fail = [act.failure for act in may_fail if not act.patient or isinstance(terminal, Fail)]
        refused = self.tree.fails_at is not None and self._log >= self.tree.fails_at
        done = len(self._ended) == len(self.tree.acts)
        idle = self._begun <= self._ended and all(act.optional for act in self._unfinished.values())
        owed = idle and self.tree.owed
        if must_fail or refused or owed:
            if not isinstance(terminal, Fail) or terminal.failure.code is not ErrorCode.JOIN_FAILED:
                raise Violation(f"a join must fail the call ({must_fail or 'counted'}), but it led to {terminal}")
        elif not done:
            if terminal is not None:
                raise Violation(f"{terminal} before everything has ended")
        elif any(self._output_fails(index) for index in range(len(self._graph.outputs))):
            if not isinstance(terminal, Fail) or terminal.failure.code is not ErrorCode.OUTPUT_FAILED:
                raise Violation(f"an output must fail the call, but it led to {terminal}")
        elif not isinstance(terminal, Finish):
            raise Violation(f"everything has ended, but the call led to {terminal}")
        else:
            self._judge_outputs(terminal.outputs)
            for stream in self._streams:
                stream.judge_finished()

    def _output_fails(self, index: int) -> bool:
        output, count = self._graph.outputs[index], len(self.tree.outputs[index])
        return (output.required and not count) or (not output.stream and not output.many and count > 1)

    def _judge_outputs(self, outputs: Mapping[str, Any]) -> None:
        expected = {
            output_name(index): self.tree.outputs[index]
            for index, output in enumerate(self._graph.outputs)
            if not output.stream and self.tree.outputs[index]
        }
        actual = {name: value for name, value in outputs.items() if value not in (None, [])}
        if actual.keys() != expected.keys():
            raise Violation(f"the outputs are {outputs}, not {sorted(expected)}")
        for index, output in enumerate(self._graph.outputs):
            name = output_name(index)
            if name in expected:
                value = actual[name] if output.many else [actual[name]]
                self._judge_list(value, expected[name], self.tree.output_branches(index), name)


class _Stream:
    """One streamed output: what is still to be presented, with its place in time."""

    def __init__(self, judge: _Judge, index: int) -> None:
        self.index = index
        self._judge = judge
        tree = judge.tree
        self._left = [(item, tree.turn(item.path[-1])) for item in tree.outputs[index]]
        sources = tree.facts.graph.outputs[index].sources
        self._towards = frozenset().union(*(tree.facts.towards[source.node] for source in sources))

    def emit(self, value: Any) -> None:
        """``value`` is presented now."""
        earlier: list[Any] = []
        for entry in self._left:
            item, turn = entry
            if item.value == value and self._judge.yielded(item.path):
                earlier = [other.value for other, theirs in self._left if precedes(theirs, turn, unordered) is True]
                if not earlier:
                    self._left.remove(entry)
                    return
        reason = f"ahead of {earlier}" if earlier else "though it must not be (now)"
        raise Violation(f"{output_name(self.index)}: {value!r} is presented {reason}")

    def judge_idle(self) -> None:
        """What waits must have something to wait for."""
        for item, turn in self._left:
            if self._judge.yielded(item.path) and not self._judge.may_come_first(turn, self._towards, None):
                raise Violation(f"{output_name(self.index)}: {item.value!r} should have been presented by now")

    def judge_finished(self) -> None:
        """Nothing is kept back at the end."""
        if self._left:
            raise Violation(f"{output_name(self.index)}: {[item.value for item, _ in self._left]} was never presented")


def unordered(a: int, b: int) -> None:
    """Branches of one yield do not wait for each other: streams and ordered interfaces take them as they come."""
    return


def _parts_before(p: Path, q: Path) -> bool:
    """Whether ``p`` leaves ``q`` at an earlier ordinal or at another activation."""
    for (a, i), (b, j) in zip(p, q, strict=False):
        if a != b:
            return True
        if i != j:
            return i < j
    return False
