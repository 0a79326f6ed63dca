#!/usr/bin/env bash
# Write constraints.txt: the newest versions that pyproject.toml allows, for every Python from 3.10 on.
# An argument names a file of pins ("name==version" lines), which are kept for Python 3.11 and later.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
touch "$scratch/pins"
[[ $# == 0 ]] || grep '==' "$1" | sed -E "s/[ ;].*//; s/\$/ ; python_version >= '3.11'/" >"$scratch/pins"
.venv/bin/python - >"$scratch/wanted" <<'PYTHON'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
# Of the extras for one Spark each, the one that this repository installs.
extras = [value for name, value in project["optional-dependencies"].items() if name == "spark41" or "spark" not in name]
print(*project["dependencies"], *sum(extras, []), "setuptools", "uv", sep="\n")
PYTHON
{
  echo "# The exact versions that the tests, the demo and CI run on. Written by scripts/lock.sh; don't edit."
  .venv/bin/python -m uv pip compile -q --universal --python-version 3.10 --no-annotate --no-header \
    --no-emit-index-url --constraint "$scratch/pins" "$scratch/wanted"
} >"$scratch/lock"
mv "$scratch/lock" constraints.txt
