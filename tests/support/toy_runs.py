"""Runs with learners that take no time, and that stop where a test wants."""

import numpy as np

from toy import ToyLearner, configure


def toys(count=2, length=5):
    return {f"client-{i}": ToyLearner(np.full((1, length), i + 1.0)) for i in range(count)}


def toy_config(*settings):
    return configure("federation.clients=2", "federation.rounds=3", "protect.method=fedavg", *settings)


class StoppedError(Exception):
    pass


def stop_at(number):
    def on_record(line):
        if line.round == number:
            raise StoppedError

    return on_record
