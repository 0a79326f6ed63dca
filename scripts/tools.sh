#!/usr/bin/env bash
# Install a dependency group of pyproject.toml into an environment of its own, .venv/GROUP, unless it is there: these
# tools are in no lock.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
tools=.venv/$1
wanted=$(sed -n "s/^$1 = //p" pyproject.toml)
if [[ ! -f $tools/wanted || $(<"$tools/wanted") != "$wanted" ]]; then
  python -m uv venv -q --clear --python .venv/bin/python "$tools"
  python -m uv pip install -q --python "$tools/bin/python" --group "$1"
  echo "$wanted" >"$tools/wanted"
fi
