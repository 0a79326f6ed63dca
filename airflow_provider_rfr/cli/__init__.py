"""The commands ``airflow rfr``."""
