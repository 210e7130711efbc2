"""ParaAegis: federated learning whose updates travel partly encrypted and partly under differential privacy.

What is needed to attach a model and to read results is here. Importing this package loads neither torch nor tenseal nor
flwr; `federate` and `torch_learner` load what they need when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paraaegis.config import Config, load_config
from paraaegis.errors import ParaAegisError
from paraaegis.types import Learner
from paraaegis.version import __version__

if TYPE_CHECKING:
    from paraaegis.learn.attach import torch_learner
    from paraaegis.runs.result import Result
    from paraaegis.runs.run import federate

__all__ = [
    "Config",
    "Learner",
    "ParaAegisError",
    "Result",
    "__version__",
    "federate",
    "load_config",
    "torch_learner",
]
_LATER = {
    "Result": "paraaegis.runs.result",
    "federate": "paraaegis.runs.run",
    "torch_learner": "paraaegis.learn.attach",
}


def __getattr__(name: str) -> Any:
    """The names whose modules are heavy."""
    if name not in _LATER:
        raise AttributeError(f"module 'paraaegis' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
