"""What a training loop keeps from round to round: optimisers, schedulers and generators, saved with the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch

from paraaegis.errors import ConfigError


class Stateful(Protocol):
    """What torch's optimisers and schedulers have."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a restart."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


Kept: TypeAlias = Stateful | torch.Generator


def check_keep(keep: Any) -> tuple[Kept, ...]:
    """The objects in `keep`; refused if their state could not be saved, or if they are not in a list."""
    if not isinstance(keep, Sequence) or isinstance(keep, str):
        raise ConfigError(f"keep= must be a list, such as keep=[optimizer], got {type(keep).__name__}")
    for part in keep:
        methods = (getattr(part, name, None) for name in ("state_dict", "load_state_dict"))
        if not isinstance(part, torch.Generator) and not all(map(callable, methods)):
            raise ConfigError(
                "keep= must list objects with state_dict and load_state_dict, such as optimizers, or generators of "
                f"torch, got {type(part).__name__}"
            )
    return tuple(keep)


def state_of(part: Kept) -> Any:
    """The state of an object, as `torch.load` with `weights_only` can read it."""
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def restore(part: Kept, state: Any) -> None:
    """Restore what `state_of` returned."""
    if isinstance(part, torch.Generator):
        part.set_state(state)
    else:
        part.load_state_dict(state)
