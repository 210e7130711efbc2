"""ParaAegis: federated learning whose updates travel partly under CKKS and partly under differential privacy."""

from paraaegis.config import Config, load_config
from paraaegis.errors import ParaAegisError
from paraaegis.types import Learner
from paraaegis.version import __version__

__all__ = ["Config", "Learner", "ParaAegisError", "__version__", "load_config"]
