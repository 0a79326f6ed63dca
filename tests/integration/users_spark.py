"""A Spark session with Iceberg's own runtime, as somebody else starts it to use the lake."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings
from tests.integration.conftest import run_python

SESSION = """
import json, sys
from pyspark.sql import SparkSession

settings, argument = json.loads(sys.stdin.read())
builder = SparkSession.builder.master("local[2]").appName("a user's notebook").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
"""


def run_on_spark(lake: LakeSettings, program: str, argument: Any) -> Any:
    """Run a program that has the session as ``spark``, and return the JSON that it prints in its last line."""
    settings = json.dumps([spark_sql_settings(lake), argument])
    ended = run_python("-c", SESSION + program, input=settings, expect=None)
    if "unresolved dependency" in ended.stderr + ended.stdout and not os.environ.get("CI"):
        pytest.skip("Iceberg's runtime can't be had from Maven here")
    assert ended.returncode == 0, ended.stderr[-5000:]
    return json.loads(ended.stdout.strip().splitlines()[-1])
