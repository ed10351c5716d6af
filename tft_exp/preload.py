"""First import of a server that forks processes: what it imports after this is no garbage, and stays shared."""

from __future__ import annotations

import gc
import os

# A collection writes into every object's header, and so copies the pages that the processes share.
gc.disable()
os.register_at_fork(before=gc.freeze, after_in_child=gc.enable)
