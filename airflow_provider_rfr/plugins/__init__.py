"""What Airflow loads from this package at its start."""
