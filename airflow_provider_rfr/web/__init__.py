"""The pages that Airflow's API server shows under ``/rfr``: refreshes, deliveries, migrations, connections.

Only the API server imports this package, by ``plugin.py``. The pages read; whatever changes something is a DAG's run.
"""
