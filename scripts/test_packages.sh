#!/usr/bin/env bash
# Programs that some tests start for themselves: PostgreSQL's server, and Chromium. Without them these tests are skipped,
# but fail in CI.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/machine.sh

missing=()
has_postgres || missing+=(postgresql)
command -v chromium >/dev/null || missing+=(chromium)
[[ ${#missing[@]} == 0 ]] || apt_install "${missing[@]}" ||
  echo "Not installed: ${missing[*]} (Debian's names). The tests that need them will be skipped." >&2
