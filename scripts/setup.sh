#!/usr/bin/env bash
# Everything that `make demo` and `make test` need, from nothing: a virtual environment from the lock, a Java that
# Spark runs on, and, for the tests, a PostgreSQL server. A second run finds its stamp and does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.setup-stamp
want=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(cat "$stamp") == "$want" ]]; then
  exit 0
fi

say() { printf '\033[1m%s\033[0m\n' "$*"; }
root_with_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }
apt_install() {
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

java_version() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }
usable_java() { [[ -x $1 ]] && case $(java_version "$1") in 17 | 21) return 0 ;; *) return 1 ;; esac; }
find_java() {
  local candidate
  for candidate in "${JAVA_HOME:-/nonexistent}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*17*/bin/java \
    /usr/lib/jvm/*21*/bin/java; do
    if usable_java "$candidate"; then
      dirname "$(dirname "$(readlink -f "$candidate")")"
      return 0
    fi
  done
  return 1
}

say "Java 17 or 21"
if ! java_home=$(find_java); then
  root_with_apt && (apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless) || true
  java_home=$(find_java) || {
    echo "Spark 4.1 needs Java 17 or 21: install it (e.g. openjdk-17-jre-headless) or set JAVA_HOME, then run again." >&2
    exit 1
  }
fi

say "Virtual environment from constraints.txt"
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install -q -c constraints.txt uv
"$venv/bin/python" -m uv pip install -q --python "$venv/bin/python" -c constraints.txt -e '.[pyspark,postgres,openlineage,dev]'
printf '%s\n' "$java_home" >"$venv/java_home"

if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null && root_with_apt; then
  say "PostgreSQL server, for the tests"
  apt_install postgresql || echo "PostgreSQL could not be installed: its tests will be skipped" >&2
fi

say "Class archive, which halves Spark's start"
scripts/run.sh python -m airflow_provider_rfr.refresh.jvm_archive >/dev/null 2>&1 || echo "no class archive: Spark starts slower" >&2

printf '%s\n' "$want" >"$stamp"
