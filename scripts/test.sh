#!/usr/bin/env bash
# The tests of a tier, in parallel: check, test or all; or rest, which is all that `test` leaves to `all`.
# Further arguments go to pytest. What a tier holds is decided in tests/conftest.py.
set -euo pipefail
cd "$(dirname "$0")/.."
cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu)
tier=${1-}
(($#)) && shift
case $tier in
  check) options=(-m check -n "$cores" --dist worksteal) ;;
  # Much of what these do is waiting: for an API's latency, for Airflow, for a killed process to be missed.
  test) options=(-m "check or test" -n $((cores + 1)) --dist loadscope) ;;
  all) export RFR_TESTS=full && options=(-n $((cores + 1)) --dist loadscope) ;;
  rest) export RFR_TESTS=full && options=(-m "full or randomized" -n $((cores + 1)) --dist loadscope) ;;
  *) echo "usage: scripts/test.sh check|test|all|rest [pytest's arguments]" >&2 && exit 2 ;;
esac
exec scripts/run.sh python -m pytest "${options[@]}" --durations 25 "$@"
