"""The number of threads torch uses within one operation."""

from __future__ import annotations

import torch


def use_one_thread() -> None:
    """Let torch use one thread: clients run concurrently, and results do not depend on the number of cores."""
    torch.set_num_threads(1)
