#!/usr/bin/env bash
# Every test. Those on a running Airflow mostly wait, so they run beside all others; what they print comes at the end.
# With arguments: one pytest with these.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($#)); then
  exec scripts/run.sh python -m pytest "$@"
fi
beside=$(mktemp)
system=
trap '[[ -z $system ]] || kill "$system"; rm -f "$beside"' EXIT
scripts/run.sh python -m pytest -p no:cacheprovider tests/system >"$beside" 2>&1 &
system=$!
others=0 on_airflow=0
scripts/run.sh python -m pytest --ignore tests/system || others=$?
wait "$system" || on_airflow=$?
system=
cat "$beside"
echo "tests on a running Airflow: exit code $on_airflow; all others: exit code $others"
((others == 0 && on_airflow == 0))
