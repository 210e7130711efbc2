"""What a node does."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import evaluate, load_part, make_model, train

app = ClientApp()


@app.train()
def fit(msg: Message, context: Context) -> Message:
    """Train the model that came with the message on this node's data."""
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data, _ = load_part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    loss = train(model, data, int(context.run_config["local-epochs"]), float(msg.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def test(msg: Message, context: Context) -> Message:
    """Evaluate the model that came with the message on this node's data."""
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, data = load_part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    metrics = MetricRecord({"accuracy": evaluate(model, data), "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
