#!/usr/bin/env bash
# Builds the kernels and runs every test that needs a GPU, in less than eight minutes. PYTHON=... chooses the interpreter;
# it needs pytest, pytest-timeout, hypothesis, numpy, CuPy, torch, pyzmq, msgpack, pybind11, and CMake and nvcc on PATH.
# WHEELS=directory adds packages from wheels there, where nothing can be fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [[ -n ${WHEELS:-} ]]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
  export PYTHONPATH=$PYTHONPATH:$site
fi
timeout 180 "$PYTHON" cuda/build.py --require
timeout 210 "$PYTHON" -m pytest -q -rs tests/gpu
timeout 60 "$PYTHON" tests/gpu/throughput.py
