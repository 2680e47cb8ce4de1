#!/usr/bin/env bash
# NVIDIA's perf_analyzer against a running server (`omniflow serve`): latency and throughput of one workflow.
#
#   tools/load/perf_analyzer.sh chat '{"data": [{"prompt": ["Say hello."], "sampling_parameters": ["{\"max_tokens\": 16}"]}]}'
#
# First argument: the workflow; second: its inputs, as perf_analyzer's input data; the rest goes to perf_analyzer
# (default: --concurrency-range 1:8:7 --measurement-interval 10000). OMNIFLOW_GRPC_URL names another server than
# 127.0.0.1:8001. The report is also written to perf_analyzer.csv (REPORT=FILE chooses another).
#
# The wheel needs a newer C library than Debian 12 has: so, where the system's is too old, the libraries of Debian's
# next release are unpacked beside it and it is started through their loader. Nothing is installed.
set -euo pipefail

VERSION=2.60.0
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$HERE/.venv/bin/python}"
HOME_DIRECTORY="${OMNIFLOW_CACHE:-$HOME/.cache/omniflow}/perf_analyzer-$VERSION"
LIBRARIES=(libc6 libstdc++6 libgcc-s1 libssl3t64 zlib1g libzstd1)
NEXT_RELEASE=trixie

fail() {
    echo "perf_analyzer.sh: $1" >&2
    exit 1
}

# The mirror that this machine's package manager already uses, asked for another release, with lists of its own.
fetch_libraries() {
    local into="$1" scratch uri
    command -v apt-get > /dev/null || fail "the C library here is too old, and without apt-get no newer one can be fetched"
    uri="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)"
    [ -n "$uri" ] || fail "the package manager has no list of Debian's packages: run apt-get update first"
    scratch="$(mktemp -d)"
    mkdir -p "$scratch"/{lists,archives}/partial "$into"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $NEXT_RELEASE main" > "$scratch/sources.list"
    local options=(
        -o "Dir::Etc::sourcelist=$scratch/sources.list" -o "Dir::Etc::sourceparts=-" -o "Dir::State::lists=$scratch/lists"
        -o "Dir::Cache::archives=$scratch/archives" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
        -o "APT::Default-Release=" -o "APT::Sandbox::User=$(id -un)"
    )
    apt-get -qq "${options[@]}" update || fail "Debian $NEXT_RELEASE is not reachable through this machine's package manager"
    (cd "$scratch/archives" && apt-get -qq "${options[@]}" download "${LIBRARIES[@]}") \
        || fail "the libraries of Debian $NEXT_RELEASE could not be downloaded"
    for package in "$scratch"/archives/*.deb; do
        dpkg -x "$package" "$into"
    done
    rm -rf "$scratch"
}

install() {
    local wheels
    mkdir -p "$(dirname "$HOME_DIRECTORY")"
    rm -rf "$HOME_DIRECTORY.part"
    wheels="$(mktemp -d)"
    "$PYTHON" -m pip download --quiet --no-deps --only-binary :all: --platform manylinux_2_38_x86_64 \
        --dest "$wheels" "perf-analyzer==$VERSION" || fail "the wheel perf-analyzer==$VERSION could not be downloaded"
    "$PYTHON" -m zipfile -e "$wheels"/*.whl "$HOME_DIRECTORY.part"
    rm -rf "$wheels"
    find "$HOME_DIRECTORY.part" -name perf_analyzer -type f -exec chmod +x {} +
    if [ "$(printf '%s\n' 2.38 "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" | sort -V | head -n 1)" != 2.38 ]; then
        fetch_libraries "$HOME_DIRECTORY.part/libraries"
    fi
    mv "$HOME_DIRECTORY.part" "$HOME_DIRECTORY"
}

[ $# -ge 2 ] || fail "usage: $0 WORKFLOW INPUT_JSON [perf_analyzer's options]"
workflow="$1" input="$2"
shift 2
[ -d "$HOME_DIRECTORY" ] || install
program="$(find "$HOME_DIRECTORY" -name perf_analyzer -type f -perm -u+x | head -n 1)"
[ -n "$program" ] || fail "the wheel holds no perf_analyzer; remove $HOME_DIRECTORY and try again"
start=("$program")
if [ -d "$HOME_DIRECTORY/libraries" ]; then
    libraries="$HOME_DIRECTORY/libraries"
    loader="$(find "$libraries" -name 'ld-linux-x86-64.so.2' | head -n 1)"
    path="$(find "$libraries" -name '*.so*' -printf '%h\n' | sort -u | paste -sd :)"
    start=("$loader" --library-path "$path" "$program")
fi

data="$(mktemp --suffix .json)"
trap 'rm -f "$data"' EXIT
printf '%s' "$input" > "$data"
[ $# -gt 0 ] || set -- --concurrency-range 1:8:7 --measurement-interval 10000
# A workflow streams: each call is over with its final response.
"${start[@]}" -m "$workflow" -u "${OMNIFLOW_GRPC_URL:-127.0.0.1:8001}" -i grpc --streaming --async \
    --input-data "$data" -f "${REPORT:-perf_analyzer.csv}" "$@"
