"""``airflow rfr version``: the versions on which a refresh depends."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_rfr import __version__
from airflow_provider_rfr.cli.common import command, print_value
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.preflight import iceberg_runtime, installed_spark, installed_version


@command
def version(args: Namespace) -> None:
    """Print the versions; Spark's is that of the installation that an application on this machine uses."""
    spark = installed_spark()
    try:
        runtime = iceberg_runtime()
    except ConfigurationError:
        runtime = None
    versions = {
        "airflow-provider-rfr": __version__,
        "apache-airflow": installed_version("apache-airflow"),
        "spark": None if spark is None else spark.version,
        "pyiceberg": installed_version("pyiceberg"),
        "iceberg-spark-runtime": runtime,
    }
    print_value(versions, args)
