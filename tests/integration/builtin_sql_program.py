"""Starts a rewrite that never ends, so that somebody can kill it when most of it is done."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.builtin_sql_deploy import HELD, Deploy, holding

if __name__ == "__main__":
    deploy = Deploy(Path(sys.argv[1]))
    deploy.session.udf.register("hold", holding, "string")
    deploy.start(query=HELD)
