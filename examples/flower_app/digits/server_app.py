"""What the server does."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and print the results."""
    strategy = FedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(context.run_config["learning-rate"])}),
    )
    print(result)
