#!/usr/bin/env bash
# Run the tests of Airbyte's manifests on the lowest airbyte-cdk that pyproject.toml allows. Others run on the locked
# one, which is the newest. What both need besides is in .venv already. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
target=$PWD/.venv/cdk-lowest
lowest=$(sed -n 's/^airbyte = \["airbyte-cdk>=\([0-9.]*\),.*/\1/p' pyproject.toml)
rm -rf "$target"
scripts/run.sh python -m pip install -q --disable-pip-version-check --no-deps --target "$target" "airbyte-cdk==$lowest"
# A variable of the command, because run.sh unsets the one that it gets.
on_lowest=(scripts/run.sh env PYTHONPATH="$target" python)
"${on_lowest[@]}" -c 'import airbyte_cdk, sys; sys.exit(not airbyte_cdk.__file__.startswith(sys.argv[1]))' "$target"
exec "${on_lowest[@]}" -m pytest tests/unit/streams/airbyte tests/unit/refresh/test_incremental_manifests.py -n 2 "$@"
