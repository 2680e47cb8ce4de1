"""What `pip install .` brings: everything that lies in the packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("omniflow_backend", "memory_manager")


def test_the_wheel_has_every_file_of_the_packages(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__", ".*", "*.so")  # what this machine built
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    expected = {
        str(file.relative_to(source)) for name in PACKAGES for file in (source / name).rglob("*") if file.is_file()
    }
    subprocess.run([*command, str(source)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert expected - set(archive.namelist()) == set()
