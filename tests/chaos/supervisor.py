"""A parent that runs a refresh, as a task's supervisor does in Airflow: ``python supervisor.py CONFIG COMMAND...``.

It names itself in the document's ``run.supervisor``, starts the command with that document, and ends as it ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def main() -> int:
    from airflow_provider_rfr.refresh.process import process_started

    config, command = Path(sys.argv[1]), sys.argv[2:]
    document = json.loads(config.read_text())
    own = {"pid": os.getpid(), "started": process_started(os.getpid()), "host": socket.gethostname()}
    document["run"] = {**document.get("run", {}), "supervisor": own}
    supervised = config.with_name(f"supervised-{os.getpid()}-{config.name}")
    supervised.write_text(json.dumps(document))
    return abs(subprocess.call([*command, "--config", str(supervised)]))


if __name__ == "__main__":
    sys.exit(main())
