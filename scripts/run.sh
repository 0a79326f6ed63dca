#!/usr/bin/env bash
# Run a command in the project's environment: its Python first on the path, and the Java that the set-up chose.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here"
export PATH="$here/.venv/bin:$PATH" VIRTUAL_ENV="$here/.venv"
[[ -f .venv/java_home ]] && export JAVA_HOME && JAVA_HOME=$(cat .venv/java_home)
unset SPARK_HOME PYTHONPATH
exec "$@"
