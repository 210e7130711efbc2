"""What the nodes do is in flower_grid.py; a node may be held in a round by a file."""

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

import flower_grid
from paraaegis.flower import ParaAegis, protect

client = ClientApp(mods=[protect()])
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    gates = Path(os.environ["DROP_IN_GATES"])
    gate = gates / f"{context.node_config['partition-id']}-{message.content['config']['server-round']}"
    if gate.exists():
        gate.with_suffix(".waiting").touch()
    while gate.exists():
        time.sleep(0.1)
    return Message(flower_grid.fit(message, context), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(flower_grid.test(message, context), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["folder"]))
    strategy = ParaAegis(FedAdam(), str(context.run_config["config"]), folder)
    result = strategy.start(grid, flower_grid.first_model(), timeout=200)
    np.savez(folder / "result.npz", **{name: array.numpy() for name, array in result.arrays.items()})
