"""The devices on which torch can train here, by the names that `engine.device` has for them."""

from __future__ import annotations

import torch

from paraaegis.errors import ConfigError


def devices() -> list[str]:
    """The devices of this machine."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def find_device(name: str) -> torch.device:
    """The device of this name, refused if this machine does not have it.

    `cuda` is the first GPU. `auto` is the same, or the CPU if there is none; it is never MPS.
    """
    here = devices()
    auto = "cuda:0" if "cuda:0" in here else "cpu"
    wanted = {"auto": auto, "cuda": "cuda:0"}.get(name, name)
    if wanted not in here:
        raise ConfigError(
            f'engine.device is {name!r}, but torch finds only {", ".join(here)} here; choose one of them, or "auto"'
        )
    return torch.device(wanted)


def gpu_name(device: torch.device) -> str:
    """The GPU's name; empty on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else {"mps": "Apple (MPS)"}.get(device.type, "")
