-- Two databases, each with an owner of its own. Run once, by psql (15 or later), with the passwords in the environment.
\set ON_ERROR_STOP on
\getenv airflow_password AIRFLOW_DB_PASSWORD
\getenv control_password CONTROL_DB_PASSWORD

CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE control LOGIN PASSWORD :'control_password';

-- Airflow's metadata, the control store
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE control OWNER control;

REVOKE CONNECT ON DATABASE airflow, control FROM PUBLIC;
