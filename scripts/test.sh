#!/usr/bin/env bash
# Run the tests of a tier in parallel: check, test, gate (those that CI runs beyond test) or all.
# Further arguments go to pytest. tests/conftest.py decides the tier of a test.
set -euo pipefail
cd "$(dirname "$0")/.."
cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu)
tier=${1-}
(($#)) && shift
# In the order of tests/conftest.py, and not by how many tests a module has: long ones may have one.
by_module=(--dist loadscope --no-loadscope-reorder)
case $tier in
  check) options=(-m check --dist worksteal) ;;
  test) options=(-m "check or test" "${by_module[@]}") ;;
  gate) options=(-m gate "${by_module[@]}" tests/integration tests/system tests/chaos) ;;
  all) export RFR_TESTS=full && options=("${by_module[@]}") ;;
  *) echo "usage: scripts/test.sh check|test|gate|all [pytest's arguments]" >&2 && exit 2 ;;
esac
# One more than there are cores: much of what tests do is waiting, for an API, Airflow, or a killed process to be missed.
exec scripts/run.sh python -m pytest "${options[@]}" -n $((cores + 1)) --durations 25 "$@"
