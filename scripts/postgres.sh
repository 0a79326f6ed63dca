#!/usr/bin/env bash
# The PostgreSQL server that some tests start for themselves. Without it they are skipped, but fail in CI.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/machine.sh
has_postgres || apt_install postgresql ||
  echo "No PostgreSQL server is installed (Debian's package: postgresql): the tests that need one will be skipped." >&2
