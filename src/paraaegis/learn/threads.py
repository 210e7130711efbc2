"""How many threads torch may use inside one operation."""

from __future__ import annotations

import torch


def use_one_thread() -> None:
    """Clients run side by side, one thread each; sums then do not depend on how many cores there are."""
    torch.set_num_threads(1)
