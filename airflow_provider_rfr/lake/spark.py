"""What every engine on Spark shares: the settings of an application that is started here, and what errors mean.

Nothing here imports pyspark: its errors are known by the modules of their classes.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

LOCAL: Final = "local[*,4]"
"""The master where none is named. In the local mode a failed task is repeated only if the master says so."""
_LIKELY_CAUSE: Final = "killed, often for memory: see spark.driver.memory and the machine's limits"
_OF_PYTHON: Final = re.compile(r"^(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): (?!org\.apache|Traceback)(.+)$", re.M)
_OF_JAVA: Final = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.{1,300})", re.M)
_FAILED: Final = re.compile(r"Job aborted due to stage failure: (.{1,300})")


def application_settings(app_name: str, master: str | None) -> dict[str, str]:
    """Settings of an application that this process starts; everything of a local one stays on this machine.

    :param master: None: spark-submit has said it
    """
    # Workers of a driver that was started by plain python have to run that very python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = {"spark.app.name": app_name, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master is None:
        return found
    found["spark.master"] = master
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        found |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        found["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    return found


def spark_problem(error: BaseException) -> str | None:
    """What went wrong in a call of Spark, in one sentence without the stack; None for any other error."""
    kind, text = type(error), str(error)
    library = kind.__module__.partition(".")[0]
    # A call without an answer is a plain Py4JError, whose text may say that the method does not exist. What the JVM
    # itself answers has a trace.
    has_answer = kind.__name__ == "Py4JJavaError" or "Trace:" in text
    if isinstance(error, (ConnectionError, EOFError)) or (library == "py4j" and not has_answer):
        return f"the JVM died ({_LIKELY_CAUSE})"
    if library not in ("py4j", "pyspark"):
        return None
    if "JAVA_GATEWAY_EXITED" in text:
        return f"the JVM died while it started ({_LIKELY_CAUSE}); its output is in the log above"
    first, failed = text.strip().partition("\n")[0], _FAILED.search(text)
    if kind.__module__.startswith("pyspark.errors") and failed is None:
        return first
    if of_python := _OF_PYTHON.search(text):
        return of_python.group(1)
    if causes := _OF_JAVA.findall(text):
        return str(causes[-1])
    return failed.group(1) if failed else first
