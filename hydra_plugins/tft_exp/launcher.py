"""What Hydra finds: `hydra/launcher=isolated`. Hydra imports this at every start, so nothing heavy; the work is in tft_exp.sweep.

It does so before the module is in sys.modules, so that annotations as text could not be looked up by dataclass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class IsolatedConf:
    """n_jobs: jobs at a time; each has a GPU of its own where there are several."""

    _target_: str = "hydra_plugins.tft_exp.launcher.IsolatedLauncher"
    n_jobs: int = 1


ConfigStore.instance().store(group="hydra/launcher", name="isolated", node=IsolatedConf, provider="tft_exp")


class IsolatedLauncher(Launcher):
    """Runs each job in a fresh process, so that nothing of one job's memory reaches the next, and a killed one is one lost job."""

    def __init__(self, n_jobs: int = 1) -> None:
        self.n_jobs = n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._task, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """One return a job, in order: its objectives, or None where it did not finish. Never raises for a job."""
        from tft_exp.sweep.launching import launch

        return launch(self._context, self._task, self._config, self.n_jobs, job_overrides, initial_job_idx)
