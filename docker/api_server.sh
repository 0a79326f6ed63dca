#!/usr/bin/env bash
# Airflow's API server, with the password of its one user, admin, from the environment.
set -euo pipefail
umask 077
file=$AIRFLOW_HOME/passwords.json
python -c 'import json, os; print(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))' >"$file"
unset AIRFLOW_ADMIN_PASSWORD
export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=$file
exec airflow api-server "$@"
