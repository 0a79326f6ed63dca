#!/usr/bin/env bash
# Run a command in the project's environment: its Python first on the path, and the Java that the set-up chose.
set -euo pipefail
cd "$(dirname "$0")/.."
export VIRTUAL_ENV=$PWD/.venv
JAVA_HOME=$(<.venv/java_home)
export JAVA_HOME PATH="$VIRTUAL_ENV/bin:$JAVA_HOME/bin:$PATH"
unset SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME
# Tests start thousands of processes, and each would compile the package again.
unset PYTHONDONTWRITEBYTECODE
exec "$@"
