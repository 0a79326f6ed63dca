"""Airflow's connections to APIs, lakes and Spark."""
