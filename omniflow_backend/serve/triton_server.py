"""The Triton server of a deployment: found, set up for this Python, started, and waited for."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omniflow_backend.serve.identity import remove_shared_memory
from omniflow_backend.serve.libpython import libpython_directory
from omniflow_backend.serve.processes import Child, Children, StartFailed
from omniflow_backend.serve.triton_control import TritonControl

log = logging.getLogger(__name__)

TRITON_HOME = "OMNIFLOW_TRITON_HOME"
_VENDOR_HOME = Path("/opt/tritonserver")
_POLL_SECONDS = 0.05
_STARTS = 3
_TELLING = re.compile(r"^E\d{4} |rror|xception|Traceback|ailed|refus", re.ASCII)
_BOX = re.compile(r"^[+|]")


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A server on this machine. ``stubs`` holds Python stubs by version, where they are not built into ``backends``."""

    binary: Path
    backends: Path
    libraries: tuple[Path, ...] = ()
    stubs: Path | None = None

    @classmethod
    def find(cls) -> TritonInstallation:
        """``OMNIFLOW_TRITON_HOME``, else the one in the nvidia-pytriton wheel, else /opt/tritonserver.

        Raises ``StartFailed``.
        """
        given = os.environ.get(TRITON_HOME)
        if given is None:
            bundled = cls._bundled()
            if bundled is not None:
                return bundled
        home = Path(given) if given else _VENDOR_HOME
        binary = home / "bin" / "tritonserver"
        if not binary.is_file():
            raise StartFailed(
                f"triton: no server at {binary}; pip install nvidia-pytriton==0.7.0, run in NVIDIA's container, "
                f"or set {TRITON_HOME}"
            )
        return cls(binary, home / "backends", (home / "lib",))

    @classmethod
    def _bundled(cls) -> TritonInstallation | None:
        spec = importlib.util.find_spec("pytriton")
        if spec is None or spec.origin is None:
            return None
        package = Path(spec.origin).parent
        home = package / "tritonserver"
        return cls(
            home / "bin" / "tritonserver",
            home / "backends",
            (libpython_directory(), package.parent / "nvidia_pytriton.libs"),
            home / "python_backend_stubs",
        )

    def backend_directory(self, target: Path) -> Path:
        """A backend directory for this Python, assembled at ``target`` where the installation has none.

        Raises ``StartFailed``.
        """
        if self.stubs is None:
            return self.backends
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = self.stubs / version / "triton_python_backend_stub"
        if not stub.is_file():
            known = ", ".join(sorted(path.name for path in self.stubs.iterdir()))
            raise StartFailed(f"triton: the bundled server has no stub for Python {version}, only for {known}")
        python = target / "python"
        python.mkdir(parents=True)
        for source in [*(self.backends / "python").iterdir(), stub]:
            (python / source.name).symlink_to(source)
        return target


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """How to run the server. A port of ``None`` is any free one.

    ``load_timeout`` and ``exit_timeout`` are in seconds: for loading one model, and for all models to end in order
    when the server stops.
    """

    host: str = "127.0.0.1"
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    load_timeout: float = 600.0
    exit_timeout: int = 10
    complete_configs: bool = False
    log_verbose: int = 0
    extra: tuple[str, ...] = ()


class TritonServer:
    """A server on ports of its own, which it keeps whenever it is started again.

    Raises ``StartFailed`` when there is none on this machine.
    """

    def __init__(
        self,
        children: Children,
        runtime: Path,
        repositories: Sequence[Path],
        environment: Mapping[str, str],
        shared_memory_prefix: str,
        options: TritonOptions,
    ) -> None:
        installation = TritonInstallation.find()
        backends = installation.backend_directory(runtime / "backends")
        ports = _ports(options.host, (options.http_port, options.grpc_port, options.metrics_port))
        self.host = options.host
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.control = TritonControl("127.0.0.1" if options.host in ("0.0.0.0", "") else options.host, self.http_port)
        self._children = children
        self._environment = _environment(environment, installation)
        self._shared_memory_prefix = shared_memory_prefix
        self._load_timeout = options.load_timeout
        self._command = [
            str(installation.binary),
            *(f"--model-repository={path}" for path in repositories),
            f"--backend-directory={backends}",
            "--model-control-mode=explicit",
            f"--http-address={options.host}",
            f"--http-port={self.http_port}",
            f"--grpc-address={options.host}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={options.host}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={options.exit_timeout}",
            f"--log-verbose={options.log_verbose}",
            f"--backend-config=python,shm-region-prefix-name={shared_memory_prefix}",
            f"--backend-config=python,stub-timeout-seconds={int(options.load_timeout)}",
            *([] if options.complete_configs else ["--disable-auto-complete-config"]),
            *options.extra,
        ]

    def start(self, models: Sequence[str], stopping: threading.Event) -> Child:
        """Start it with ``models`` loaded; when it crashes meanwhile, twice again.

        Returns when all are; raises ``StartFailed`` with the telling lines of its log, or because of ``stopping``.
        """
        command = [*self._command, *(f"--load-model={model}" for model in models)]
        # The directory of our own package: the stub looks for modules in its working directory first.
        package_parent = Path(__file__).parents[2]
        for attempt in range(1, _STARTS + 1):
            remove_shared_memory(self._shared_memory_prefix)
            child = self._children.start("triton", command, self._environment, package_parent)
            try:
                _wait_until_ready(child, self.control, self._load_timeout * max(1, len(models)), stopping)
                break
            except StartFailed as error:
                # Seen: an abort in the Python backend's shared memory, once in some hundred starts, with nothing wrong.
                if attempt == _STARTS or stopping.is_set() or child.process.returncode >= 0:
                    raise
                log.warning("Triton crashed while it started; starting it again: %s", error)
        return child


def _wait_until_ready(child: Child, control: TritonControl, timeout: float, stopping: threading.Event) -> None:
    deadline = time.monotonic() + timeout
    while not control.ready():
        if stopping.is_set():
            child.stop(1.0)
            raise StartFailed("triton: the deployment ends")
        if not child.alive:
            raise StartFailed(
                f"triton: the server ended with status {child.process.returncode}:\n{telling_lines(child)}"
            )
        if time.monotonic() > deadline:
            child.stop(1.0)
            raise StartFailed(f"triton: not ready within {timeout:g} s:\n{telling_lines(child)}")
        stopping.wait(_POLL_SECONDS)


def telling_lines(child: Child, limit: int = 40) -> str:
    """What in the server's log tells why it failed; its end, when nothing looks so."""
    lines = child.tail(2000).splitlines()
    telling: list[str] = []
    inside = False
    for line in lines:
        if _BOX.match(line):
            continue
        # Python's tracebacks continue on indented lines.
        inside = bool(_TELLING.search(line)) or (inside and line.startswith(" "))
        if inside and line not in telling:
            telling.append(line)
    return "\n".join(telling[-limit:]) if telling else child.tail()


def _environment(environment: Mapping[str, str], installation: TritonInstallation) -> dict[str, str]:
    libraries = [*map(str, installation.libraries), environment.get("LD_LIBRARY_PATH", "")]
    return {
        **environment,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join(filter(None, [str(Path(sys.executable).parent), environment.get("PATH", "")])),
    }


def _ports(host: str, wanted: tuple[int | None, ...]) -> tuple[int, ...]:
    """The ports wanted, each ``None`` replaced by a free one; all are held until all are chosen."""
    held: list[socket.socket] = []
    ports: list[int] = []
    try:
        for port in wanted:
            if port is None:
                holder = socket.socket()
                held.append(holder)
                holder.bind((host, 0))
                port = int(holder.getsockname()[1])
            ports.append(port)
    finally:
        for holder in held:
            holder.close()
    return tuple(ports)
