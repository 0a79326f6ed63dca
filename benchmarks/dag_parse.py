"""A benchmark of parsing operators that share one source file: ``python -m benchmarks.dag_parse [operators]``.

It prints one line of JSON: CPU seconds of the first operator, of all operators, and the ratio of all to the first.
"""

from __future__ import annotations

import json
import sys
import time

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP


def main(count: int) -> None:
    """Create the operators as a DAG file does, and print the cost."""
    began, first = time.process_time(), 0.0
    for number in range(count):
        ResumableFullRefreshOperator(
            task_id=f"refresh_{number}", source={"file": str(SHOP)}, streams=["orders"], target=f"raw.orders_{number}"
        )
        first = first or time.process_time() - began
    total = time.process_time() - began
    print(
        json.dumps({"operators": count, "first_s": round(first, 3), "all_s": round(total, 3), "ratio": total / first})
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
