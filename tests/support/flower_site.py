"""Three sites of a Flower app under `protect()`, and the server's configuration, on a grid in this process."""

import shutil

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from flower_grid import Grid, first_model
from paraaegis.deploy.key_folder import deal_keys
from paraaegis.flower import ParaAegis, protect

ROUNDS, PATIENCE = 3, 0.5  # seconds until a node that is away counts as late
CONFIG = """
[federation]
clients = {clients}
rounds = {rounds}
quorum = {quorum}
[protect]
method = "paraaegis-feedback"
ratio = {ratio}
cipher = "rlwe"
reveal = "server"
[engine]
share_metrics = {share}
[privacy]
attempts = 9
"""
ALL = {"min_train_nodes": 3, "min_evaluate_nodes": 3, "min_available_nodes": 3}
INNER = {
    "FedAvg": lambda: FedAvg(**ALL),
    "FedAvgM": lambda: FedAvgM(**ALL, server_momentum=0.9),
    "FedAdam": lambda: FedAdam(**ALL),
    "FedAdagrad": lambda: FedAdagrad(**ALL),
    "FedYogi": lambda: FedYogi(**ALL),
    "FedProx": lambda: FedProx(**ALL, proximal_mu=0.1),
}


class Site:
    """A server's configuration, three nodes' folders, and a grid between them."""

    def __init__(self, out, ratio=1.0, share="true", quorum=3, rounds=ROUNDS, clients=3, **functions):
        self.out, self.path = out, out / "paraaegis.toml"
        out.mkdir(exist_ok=True)
        self.path.write_text(CONFIG.format(ratio=ratio, share=share, quorum=quorum, rounds=rounds, clients=clients))
        if not (out / "keys").exists():
            deal_keys(out / "keys", [f"client-{number}" for number in range(clients)])
        self.folders = [out / "keys" / f"client-{number}" for number in range(clients)]
        for folder in self.folders:
            shutil.copy(self.path, folder / "config.toml")
        self.grid = Grid([protect()], [{"paraaegis": str(folder)} for folder in self.folders], **functions)

    def strategy(self, inner, **given):
        return ParaAegis(inner, self.path, folder=self.out / "run", **given)

    def start(self, inner=None, **given):
        self.last = self.strategy(inner or INNER["FedAvg"]())
        return self.last.start(
            self.grid, first_model(), ROUNDS, timeout=PATIENCE, train_config=ConfigRecord({"lr": 0.5}), **given
        )


def arrays(result):
    return {name: array.numpy() for name, array in result.arrays.items()}


def replies(site):
    return [(node, sent, reply.content) for node, sent, reply in site.grid.wire]
