#!/usr/bin/env bash
# Install the tools that the benchmarks compare with, into an environment of their own: dependency group "peers".
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
python -m uv venv -q --clear --python .venv/bin/python .venv/peers
python -m uv pip install -q --compile-bytecode --python .venv/peers/bin/python --group peers
