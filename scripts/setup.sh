#!/usr/bin/env bash
# Install everything that `make demo` and `make test` need: a virtual environment from the lock, and a Java that
# Spark runs on. A second run finds its stamp and does nothing. PYTHON names another interpreter than python3.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/machine.sh
exec 9<scripts/setup.sh
! command -v flock >/dev/null || flock 9

venv=.venv
stamp=$venv/.setup-stamp
want=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)

is_done() {
  [[ -f $stamp && $(<"$stamp") == "$want" && -x $venv/bin/python && -x $(<"$venv/java_home")/bin/java ]]
}

find_python() {
  local name
  for name in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 python3.10; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

has_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

has_venv() { has_pip || "$python" -c 'import ensurepip' 2>/dev/null; }

# Sets java_home and python, and adds what is missing if that can be done. The rest is named all at once.
find_needs() {
  local missing=() packages=()
  java_home=$(find_java) || {
    apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
    java_home=$(find_java) || missing+=("Java 17 or 21 for Spark (or set JAVA_HOME)") packages+=(openjdk-17-jre-headless)
  }
  python=$(find_python) || {
    missing+=("Python 3.10 or later (or name it: make PYTHON=/path/to/python3)") packages+=(python3)
    python=python3
  }
  # Debian keeps what the venv module needs in a package of its own.
  has_venv || apt_install python3-venv || true
  has_venv || missing+=("Python's venv module") packages+=(python3-venv)
  [[ ${#missing[@]} == 0 ]] || stop "Missing: $(printf '%s; ' "${missing[@]}")install it, then run this again." \
    "On Debian and Ubuntu: apt-get install ${packages[*]}"
}

make_venv() {
  has_pip || "$python" -m venv --clear "$venv" || stop "'$python -m venv' failed: on Debian and Ubuntu, install python3-venv"
}

# uv takes one minute, pip some. uv is told to trust the certificates of the system, as pip does since 24.2: a proxy may
# have its own. Where uv fails, for whatever reason, pip installs the same.
install() {
  local python=$venv/bin/python
  UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true} "$python" -m uv pip install -q --compile-bytecode --python "$python" \
    -c constraints.txt -b constraints.txt "$@" && return
  say "uv failed, so pip installs the packages, which takes some minutes"
  PIP_CONSTRAINT=constraints.txt "$python" -m pip install -q --disable-pip-version-check "$@"
}

install_locked() {
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt uv || true
  install -e '.[spark41,postgres,hive,sops,openlineage,airbyte,dev]'
}

# The Spark provider imports Airflow's Kubernetes client wherever it finds it, in seconds; so only the tests that need it
# have it on their path.
install_kubernetes() {
  local names='apache-airflow-providers-cncf-kubernetes|durationpy|kubernetes|kubernetes-asyncio|oauthlib' pins
  names+='|requests-oauthlib|websocket-client'
  mapfile -t pins < <(grep -E "^($names)==" constraints.txt)
  rm -rf "$venv/kubernetes"
  install --no-deps --target "$venv/kubernetes" "${pins[@]}"
}

is_done && exit 0

say "Java 17 or 21, and Python 3.10 or later"
find_needs

say "Virtual environment, from constraints.txt"
rm -f "$stamp"
make_venv
install_locked
install_kubernetes
printf '%s\n' "$java_home" >"$venv/java_home"

say "Class archive, which halves the start of Spark"
scripts/run.sh python -m airflow_provider_rfr.refresh.process >"$venv/jvm-archive.log" 2>&1 ||
  echo "It could not be written, so Spark starts slower; see $venv/jvm-archive.log" >&2

printf '%s\n' "$want" >"$stamp"
