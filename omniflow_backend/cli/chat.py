"""``omniflow chat``: talk to a running server, streaming, one session per run."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator

from omniflow_backend.cli.options import DEFAULT_GRPC, add_client_options
from omniflow_backend.errors import OmniFlowError

_HELP = "/new starts a new session, /quit (or Ctrl-D) ends, Ctrl-C stops the answer"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("chat", help="chat with a running server, with a session")
    add_client_options(parser)
    parser.add_argument(
        "--workflow", default="chat", help="a workflow with a 'prompt' input and a 'text' output (default: %(default)s)"
    )
    parser.add_argument("--session", help="session id, to go on with an earlier conversation")
    parser.add_argument(
        "--sampling", type=json.loads, help="sampling parameters as JSON, e.g. '{\"temperature\": 0.7}'"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from omniflow_backend.client import WorkflowClient

    session = arguments.session or uuid.uuid4().hex[:8]
    try:
        client = WorkflowClient(arguments.url, arguments.workflow, timeout_s=arguments.timeout)
    except Exception as error:
        where = "" if arguments.url != DEFAULT_GRPC else "; start one with: omniflow serve"
        print(f"no server with workflow {arguments.workflow!r} at {arguments.url}: {error}{where}", file=sys.stderr)
        return 1
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"session {session}; {_HELP}")
    with client:
        for line in _lines(interactive):
            if line == "/quit":
                break
            if line == "/new":
                session = uuid.uuid4().hex[:8]
                print(f"session {session}")
                continue
            inputs = {"prompt": line, "sampling_parameters": arguments.sampling}
            try:
                for received in client.stream(inputs, session_id=session):
                    if received.output == "text":
                        print(received.value, end="", flush=True)
            except KeyboardInterrupt:
                print(" [stopped]", end="")
            except (OmniFlowError, TimeoutError) as error:
                print(f"error: {error}", file=sys.stderr)
                if not interactive:
                    return 1
            print()
    return 0


def _lines(interactive: bool) -> Iterator[str]:
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line:
            yield line
