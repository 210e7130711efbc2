"""A client that trains with DP-SGD: what it is charged, whoever assembled it."""

from paraaegis.config import make_config
from paraaegis.privacy.ledger import TRAINING
from paraaegis.privacy.records import record_privacy
from paraaegis.runs.assemble import assemble
from paraaegis.runs.check import resolve
from record_learners import SAMPLES, learners
from toy import KEYS

CONFIG = resolve(make_config({}, ["privacy.unit=record", "privacy.calibration=tight", "privacy.epsilon=8",
                                  "privacy.delta=1e-3", "federation.clients=3"]), [SAMPLES] * 3)  # fmt: skip


def clients(config=CONFIG):
    return assemble(config, learners(), KEYS, "client-0").clients


def test_an_assembled_client_trains_with_the_dp_sgd_of_its_configuration():
    for client in clients().values():
        assert client.learner.made.record_privacy == client.learner.record_privacy == record_privacy(CONFIG)


def test_clients_draw_samples_and_noise_of_their_own():
    first, second, _ = clients().values()
    weights = first.learner.initial()
    fellow = learners()["client-0"]  # the data of the first with the generators of the second
    fellow.protect_records(record_privacy(CONFIG), second.learner.made._owned._private[1])
    own = first.learner.train(weights, 1)[0]
    assert abs(own - fellow.train(weights, 1)[0]).max() > 1e-3


def test_a_replayed_training_of_a_simulation_counts_once_and_a_fresh_one_each_time():
    client = clients()["client-0"]
    for _ in range(3):
        client.ledger.record(client.training(1, 0, "00"))
    assert sum(one.what == TRAINING for one in client.ledger.releases) == 1
    (release,) = client.training(1, 0, "00")
    assert release.simulated
    assert (release.sigma, release.steps) == (record_privacy(CONFIG).multiplier, record_privacy(CONFIG).steps)
