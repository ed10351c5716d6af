"""The only room that imports MLflow."""

import os

# Nothing that is run here is told to anyone, unless the user asks MLflow to.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
