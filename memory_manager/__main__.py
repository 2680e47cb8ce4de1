"""`python -m memory_manager`: one manager process."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path

from memory_manager.devices.cpu import CpuMemory
from memory_manager.endpoint import Endpoint
from memory_manager.errors import MemoryManagerError
from memory_manager.pools.sizes import parse_size
from memory_manager.server import Server
from memory_manager.tmp_buffers.extents import aligned

_PLAIN_RECORD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def pool_size(text: str) -> int:
    """Bytes of a size such as `1GiB` or `4096`, rounded up to whole cache lines.

    Raises:
        argparse.ArgumentTypeError: if it is not a size above 0.
    """
    try:
        return aligned(parse_size(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class JsonLines(logging.Formatter):
    """One JSON object for each record, with its `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _PLAIN_RECORD}
        line = {"time": self.formatTime(record), "level": record.levelname, "event": record.getMessage(), **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def main() -> int:
    """Serves until SIGTERM, SIGINT or the end of the parent. Exit status 1 if it cannot start."""
    parser = argparse.ArgumentParser(prog="python -m memory_manager", description="OmniFlow's node-local memory owner")
    parser.add_argument("--endpoint", type=Path, required=True, help="path of the socket; its directory must exist")
    parser.add_argument("--limit", type=pool_size, default="1GiB", help="bytes all pools may take (default 1GiB)")
    parser.add_argument("--pool-size", type=pool_size, default="64MiB", help="size of one pool (default 64MiB)")
    parser.add_argument("--pages-directory", type=Path, help="where pages of global parameters lie that are in files")
    parser.add_argument(
        "--idle-weights", type=pool_size, default="1GiB", help="of shared weights kept while unused (default 1GiB)"
    )
    parser.add_argument("--parent-pid", type=int, help="exit when this process ends")
    parser.add_argument("--ready-fd", type=int, help="descriptor that gets one byte when clients may connect")
    arguments = parser.parse_args()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=os.environ.get("OMNIFLOW_LOG_LEVEL", "WARNING").upper(), handlers=[handler])
    os.umask(0o077)
    try:
        server = Server(
            Endpoint(arguments.endpoint),
            CpuMemory(),
            arguments.limit,
            arguments.pool_size,
            arguments.parent_pid,
            arguments.pages_directory,
            arguments.idle_weights,
        )
    except (MemoryManagerError, MemoryError, OSError, ValueError) as error:
        print(f"memory_manager: cannot start: {error}", file=sys.stderr)
        return 1
    signal.set_wakeup_fd(server.wake_descriptor)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    if arguments.ready_fd is not None:
        os.write(arguments.ready_fd, b"1")
        os.close(arguments.ready_fd)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
