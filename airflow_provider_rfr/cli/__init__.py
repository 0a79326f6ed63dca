"""``airflow rfr``: what an operator of the platform does at a shell."""
