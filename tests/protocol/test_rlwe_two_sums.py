"""Two sums that differ by one client would give its update away: no server gets two, even with clients that help it."""

from dataclasses import replace

import numpy as np
import pytest

from attacks import unchecked
from hand import Hand, ended, uploads
from masked import RLWE, masked, opened, secret_of, steps_of
from paraaegis.errors import ConfigError, CryptoError, ProtocolError
from paraaegis.methods import method_of
from paraaegis.protocol.binding import prove_count
from paraaegis.protocol.messages import Aggregate, Upload
from toy import configure


def two_sets(playing, colluders):
    """The server and colluders ask for two sums over sets that differ by the victim: the difference is its secret.

    Every honest client answers once; colluders as often as they are asked. None where a sum does not open.
    """
    names = list(playing.silos)
    sent, _ = uploads(playing, 1)
    honest, helping, victim = names[:-colluders], names[-colluders:], names[0]
    half = len(honest) // 2
    secrets = []
    for chosen, asked in ((names, [victim, *honest[1:half]]), (names[1:], honest[half:])):
        among = {name: sent[name] for name in chosen}
        rows = playing.rows(1, among, asked)
        for name in helping:
            before = playing.states[name]
            rows |= playing.rows(1, among, [name])
            playing.states[name] = before
        try:
            secrets.append(secret_of(playing, rows))
        except CryptoError:
            return None
    return opened(playing, sent[victim].payload, secrets[0] - secrets[1], 1)


@pytest.mark.parametrize(("clients", "colluders"), [(5, 1), (7, 1), (10, 2)])
@pytest.mark.parametrize("checked", [True, False])
def test_two_sets_of_survivors_open_one_client_only_below_the_quorum_that_is_required(
    monkeypatch, clients, colluders, checked
):
    settings = [f"privacy.colluders={colluders}"]
    if not checked:
        unchecked(monkeypatch, "paraaegis.parts.Rlwe.check")
        settings.append(f"federation.quorum={(clients - colluders) // 2 + colluders}")
    playing, updates = masked("ckks-fedavg", clients, 60, *settings, rounds=1)
    found = two_sets(playing, colluders)
    if checked:
        assert found is None
    else:
        np.testing.assert_array_equal(found, steps_of(updates[0, 0], clients))


@pytest.mark.parametrize(("clients", "quorum", "colluders"), [(10, 5, 1), (9, 5, 1), (4, 2, 1), (5, 4, 3), (3, 2, 1)])
def test_a_quorum_that_two_sets_could_reach_or_with_one_honest_client_is_refused(clients, quorum, colluders):
    with pytest.raises(ConfigError, match="needs a quorum of"):
        masked("ckks-fedavg", clients, 60, f"federation.quorum={quorum}", f"privacy.colluders={colluders}")


@pytest.mark.parametrize("clients", range(3, 30))
def test_the_quorum_by_default_is_one_that_two_sets_cannot_reach(clients):
    config = configure("protect.method=ckks-fedavg", RLWE, f"federation.clients={clients}")
    playing = Hand(np.zeros((clients, 1, 4)), "protect.method=ckks-fedavg", RLWE)
    assert playing.parameters.quorum >= method_of(config).least_quorum(config)
    assert 2 * playing.parameters.quorum > clients + config.privacy.colluders


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
def test_a_client_gives_out_one_sum_of_shares_for_each_upload(method):
    playing, _ = masked(method)
    sent, _ = uploads(playing, 1)
    fewer = {name: sent[name] for name in list(sent)[:-1]}
    playing.rows(1, sent)
    for again in (sent, fewer):
        with pytest.raises(ProtocolError, match="received Survivors in phase 'shared'; expected phase 'sent'"):
            playing.rows(1, again, ["client-0"])


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback", "serial"])
def test_after_it_gave_out_shares_a_client_masks_nothing_more_in_this_round(method):
    playing, _ = masked(method)
    sent, _ = uploads(playing, 1)
    playing.rows(1, sent)
    for attempt in (0, 1, 2):
        with pytest.raises(ProtocolError, match="already"):
            playing.send("client-0", playing.begin(1, attempt=attempt))


@pytest.mark.parametrize("checked", [True, False])
def test_masking_an_update_again_for_another_set_would_give_one_client_away(checked):
    """Fresh secrets are no help: it is the sums that differ by one update."""
    playing, updates = masked(rounds=1)
    sums = []
    for attempt, left_out in enumerate(((), ("client-0",))):
        if not checked:
            playing.states = {name: replace(state, opened=0) for name, state in playing.states.items()}
        if checked and attempt:
            for name in playing.silos:
                with pytest.raises(ProtocolError, match="already released shares in round 1"):
                    playing.send(name, playing.begin(1, attempt=attempt))
            return
        sent, _ = uploads(playing, 1, attempt=attempt)
        kept = {name: one for name, one in sent.items() if name not in left_out}
        rows = playing.rows(1, kept, attempt=attempt)
        payload = playing.sum(1, kept).payload
        sums.append(opened(playing, payload, secret_of(playing, rows, 1, attempt), len(kept), 1, attempt))
    np.testing.assert_array_equal(sums[0] - sums[1], steps_of(updates[0, 0], 5))


def test_attempts_of_one_round_do_not_add_up_to_a_second_sum():
    """Clients that were not asked for shares may upload again, but they are too few to open anything."""
    playing, _ = masked("ckks-fedavg", 7, rounds=1)
    quorum, names = playing.parameters.quorum, list(playing.silos)
    sent, _ = uploads(playing, 1)
    playing.rows(1, sent, names[: quorum - 1])  # the last of the quorum colludes
    again = {}
    for name in names:
        try:
            again[name] = playing.send(name, playing.begin(1, attempt=1))
        except ProtocolError:
            continue
    assert all(isinstance(one, Upload) for one in again.values())
    assert list(again) == names[quorum - 1 :]
    assert len(again) < quorum
    with pytest.raises(ProtocolError, match="survivors and a share from each other"):
        playing.rows(1, again, [names[-1]], attempt=1)


def test_shares_of_an_earlier_attempt_are_gone():
    playing, _ = masked(rounds=1)
    old, _ = uploads(playing, 1)
    uploads(playing, 1, attempt=1)
    with pytest.raises(ProtocolError, match="Survivors does not belong here"):
        playing.rows(1, old)


def test_a_share_opens_in_its_own_attempt_only():
    playing, _ = masked()
    old, _ = uploads(playing, 1)
    sent, _ = uploads(playing, 1, attempt=1)
    mixed = {**sent, "client-3": old["client-3"]}
    assert ended(playing, playing.survivors(1, mixed, "client-0", attempt=1))


@pytest.mark.parametrize("numbers", [(0,), (0, 1), (1, 2, 3, 4)])
def test_shares_are_given_out_for_no_set_below_the_quorum_or_without_oneself(numbers):
    playing, _ = masked()
    sent, _ = uploads(playing, 1)
    state = playing.states["client-0"]
    with pytest.raises(ProtocolError, match="survivors"):
        playing.rows(1, {f"client-{i}": sent[f"client-{i}"] for i in numbers}, ["client-0"])
    assert playing.states["client-0"] is state


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_second_run_from_the_same_model_is_a_second_sum_unless_privacy_attempts_forbids_it(attempts):
    """Clients whose training repeats itself send the same update; `privacy.attempts` counts answers over all runs."""
    playing, updates = masked("ckks-fedavg", 5, 60, f"privacy.attempts={attempts}", rounds=1)
    sums = []
    for run, left_out in (("a", ()), ("b", ("client-0",))):
        start_again(playing, run)
        replies, _ = uploads(playing, 1)
        if attempts == 1 and run == "b":
            assert all("1 times on this state of the model" in reply.declined for reply in replies.values())
            return
        kept = {name: one for name, one in replies.items() if name not in left_out}
        secret = secret_of(playing, playing.rows(1, kept))
        sums.append(opened(playing, playing.sum(1, kept).payload, secret, len(kept)))
    np.testing.assert_array_equal(sums[0] - sums[1], steps_of(updates[0, 0], 5))


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_round_declared_void_is_a_second_sum_unless_privacy_attempts_forbids_it(attempts):
    """The same within one run: the server keeps the sum of a round that it calls void."""
    playing, updates = masked("ckks-fedavg", 5, 60, f"privacy.attempts={attempts}", rounds=2)
    for learner, update in zip(playing.learners.values(), updates, strict=True):
        learner.train = lambda weights, _, update=update: (weights + update[0], {})  # repeats itself
    sums = []
    for number, left_out in ((1, ()), (2, ("client-0",))):
        replies, _ = uploads(playing, number, *[Aggregate(1, 0)] * (number - 1))
        if attempts == 1 and number == 2:
            assert all("1 times on this state of the model" in reply.declined for reply in replies.values())
            return
        kept = {name: one for name, one in replies.items() if name not in left_out}
        secret = secret_of(playing, playing.rows(number, kept), number)
        sums.append(opened(playing, playing.sum(number, kept).payload, secret, len(kept), number))
    np.testing.assert_array_equal(sums[0] - sums[1], steps_of(updates[0, 0], 5))


def start_again(playing, run):
    """Another run of the same configuration, with the same clients and their ledgers."""
    parameters = replace(playing.parameters, run=run)
    playing.parameters = parameters
    playing.silos = {name: replace(silo, parameters=parameters) for name, silo in playing.silos.items()}
    playing.states = {name: playing.joined(name) for name in playing.silos}
    playing._proofs = {name: prove_count(silo) for name, silo in playing.silos.items()}
