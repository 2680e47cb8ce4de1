"""Options that several commands share; every one has an environment variable."""

from __future__ import annotations

import argparse
import os

DEFAULT_GRPC = "127.0.0.1:8001"


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Where a client command finds the server."""
    parser.add_argument(
        "--url",
        default=os.environ.get("OMNIFLOW_GRPC_URL", DEFAULT_GRPC),
        help="Triton's gRPC endpoint (OMNIFLOW_GRPC_URL; default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds to wait for each next response (default: %(default)g)"
    )


def environment_int(name: str, default: int) -> int:
    """An integer from the environment. Raises ``SystemExit`` that names the variable when it is none."""
    value = os.environ.get(name, "")
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise SystemExit(f"{name} must be a number, got {value!r}") from None
