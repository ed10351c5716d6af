"""MLflow's UI on the runs of this project."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import quote

from tft_exp.tracking.store import open_store


def serve(uri: str | None, home: str, experiment: str, sweep_id: str | None, port: int) -> int:
    """Say which page shows the runs, and, unless a server is there already, become that server. Raises TrackingError."""
    store = open_store(uri, home, experiment, create=False)
    wanted = f"tags.sweep_id LIKE '%{sweep_id}%'"
    query = f"?compareRunsMode=CHART&searchFilter={quote(wanted, safe='')}" if sweep_id else ""
    page = f"/#/experiments/{store.experiment_id}/runs{query}"
    if uri is not None and uri.startswith("http"):
        print(f"{uri.rstrip('/')}{page}")
        return 0
    print(f"Open http://127.0.0.1:{port}{page}\n(stop with Ctrl-C)", flush=True)
    # One worker: MLflow's usual four each take seconds and hundreds of MiB to start, for one person's browser.
    command = ["ui", "--backend-store-uri", store.uri, "--port", str(port), "--workers", "1"]
    return subprocess.call([sys.executable, "-m", "mlflow", *command])
