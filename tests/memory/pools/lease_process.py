"""A client that acquires pages of `pages.declare` as its arguments say, tells so, and stays until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from memory_manager.pools.client import PageRequest, ParameterClient
from memory_manager.pools.requests import Access, Want
from tests.memory.pools.pages import shared


def main() -> None:
    endpoint, access, *pages = sys.argv[1:]
    client = ParameterClient(endpoint, "killed")
    wants = tuple(Want(page.encode(), Access(access)) for page in pages)
    (lease,) = client.acquire([PageRequest(shared(), wants)], 5.0)
    print("holds" if lease.complete else "misses", flush=True)
    sys.stdin.read()


main()
