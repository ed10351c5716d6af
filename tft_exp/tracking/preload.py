"""What MLflow imports the first time that a run is recorded, for a process that others are forked from."""

import mlflow.artifacts
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
