"""First import of a server that forks processes: what it imports after this is no garbage, and stays shared."""

from __future__ import annotations

import gc

# A collection would write into every object's header, and so copy the pages that its processes share.
gc.disable()
