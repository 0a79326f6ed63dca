#!/usr/bin/env bash
# docker-compose.yaml without containers: the same commands, settings and health checks as processes on loopback.
# See demo/bare_machine.py; arguments go to it.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/packages.sh postgresql
exec scripts/run.sh python -m demo.bare_machine "$@"
