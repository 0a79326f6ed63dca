#!/usr/bin/env bash
# Print .env.example with a random value for each secret: docker/new_env.sh >.env
set -euo pipefail
cd "$(dirname "$0")/.."
while IFS= read -r line; do
  case $line in
    AIRFLOW_FERNET_KEY=*) printf 'AIRFLOW_FERNET_KEY=%s\n' "$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')" ;;
    *=change-me) printf '%s=%s\n' "${line%%=*}" "$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" ;;
    *) printf '%s\n' "$line" ;;
  esac
done <.env.example
