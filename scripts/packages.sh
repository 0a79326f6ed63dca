#!/usr/bin/env bash
# Install Debian's packages with programs that some tests start: postgresql, chromium. Without them these tests are
# skipped, but fail in CI.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/machine.sh

missing=()
for name in "$@"; do
  case $name in
    postgresql) has_postgres || missing+=("$name") ;;
    *) command -v "$name" >/dev/null || missing+=("$name") ;;
  esac
done
[[ ${#missing[@]} == 0 ]] || apt_install "${missing[@]}" ||
  echo "Not installed: ${missing[*]} (Debian's names). The tests that need them will be skipped." >&2
