"""A run begins only with clients that are alike and prove what they say."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from five_clients import FEDAVG, LENGTH, STATIC, each_method, hand
from hand import Served, honest, served
from paraaegis.crypto.ratchet import Root
from paraaegis.errors import DriftError, ProtocolError
from paraaegis.protocol.client import start
from paraaegis.protocol.learner import CheckedLearner
from paraaegis.protocol.messages import Begin, RollCall, pack, unpack
from paraaegis.protocol.state import ServerState


@each_method
def test_a_model_that_drifted_stops_the_run_by_name(settings):
    playing = hand(*settings)

    def drift(client, request, answer):
        if client == "client-3" and isinstance(request, Begin) and request.round_id.number == 2:
            state = playing.states[client]
            playing.states[client] = replace(state, weights=state.weights + np.float32(1))
        return answer()

    with pytest.raises(
        DriftError, match=r"models, .* differ from the other clients' at client-3; nothing was aggregated"
    ):
        served(playing, drift)


def joins_with(playing, **changed):
    silo = playing.silos["client-2"]
    facts = msgspec.structs.replace(silo.learner.facts, **changed)
    playing.silos["client-2"] = replace(silo, learner=CheckedLearner(silo.name, lambda: silo.learner.made, facts))


def other_model(playing):
    joins_with(playing, model="0" * 64)


def other_length(playing):
    joins_with(playing, length=LENGTH + 1, model="1" * 64)


def other_key(playing):
    playing.silos["client-2"] = replace(playing.silos["client-2"], root=Root(bytes(32), bytes(16)))
    playing.states["client-2"] = start(playing.silos["client-2"])


def other_config(playing):
    playing.silos["client-2"] = replace(
        playing.silos["client-2"], parameters=replace(playing.parameters, config="0" * 64)
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (other_model, "first models"),
        (other_length, "first models"),
        (other_key, "keys, rosters or secret orders"),
        (other_config, "configurations"),
    ],
)
def test_a_client_unlike_the_others_stops_the_run_before_any_training(change, what):
    playing = hand(*STATIC)
    change(playing)
    with pytest.raises(DriftError, match=f"{what} differ from the other clients' at client-2"):
        served(playing)
    assert [learner.trained for learner in playing.learners.values()] == [0] * 5


def test_a_configuration_that_all_clients_but_not_the_server_have_stops_the_run():
    playing = hand(*STATIC)
    for client, silo in playing.silos.items():
        playing.silos[client] = replace(silo, parameters=replace(playing.parameters, config="0" * 64))
    with pytest.raises(
        DriftError,
        match="configurations differ from the other clients' at client-0, client-1, client-2, client-3, client-4",
    ):
        served(playing)


@pytest.mark.parametrize("silence", [None, "the power is out"])
def test_a_client_that_does_not_join_stops_the_run_with_its_reason(silence):
    def meddle(client, request, answer):
        return silence if client == "client-1" else answer()

    with pytest.raises(ProtocolError, match=f"not everyone joined: client-1: {silence or 'did not answer in time'}"):
        served(hand(FEDAVG), meddle)


def test_a_client_that_comes_back_with_other_data_stops_the_run():
    playing = hand(FEDAVG)
    state = ServerState(weights=dict.fromkeys(playing.silos, 11))
    with pytest.raises(ProtocolError, match="a different sample count: it had 11 and has 10 now"):
        Served(playing, honest, state).run()


def test_a_state_that_is_older_than_its_clients_is_refused():
    playing = hand(FEDAVG)
    served(playing)
    with pytest.raises(ProtocolError, match="client-0 has applied round 3, but the server's state ends at round 0"):
        served(playing)


def test_a_client_that_does_not_prove_its_sample_count_to_every_other_client_does_not_join():
    def meddle(client, request, answer):
        reply = unpack(answer())
        if client == "client-1" and isinstance(request, RollCall):
            proofs = {peer: proof for peer, proof in reply.proofs.items() if peer != "client-2"}
            reply = msgspec.structs.replace(reply, proofs=proofs)
        return pack(reply)

    with pytest.raises(ProtocolError, match="client-1 should prove its sample count to every other client"):
        served(hand(*STATIC), meddle)
