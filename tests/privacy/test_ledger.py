"""Every release is written before it leaves, and read back for what it guarantees."""

import math

import msgspec
import pytest

from paraaegis.config import Privacy
from paraaegis.errors import PrivacyError, RunError
from paraaegis.methods import METHODS
from paraaegis.privacy.budget import UpdateBudget, budget
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.privacy.guarantee import CLIENTS, HOLDERS, SERVER, mu_against
from paraaegis.privacy.ledger import VOTES, Ledger, Release, read_ledger, releases_of
from paraaegis.privacy.record_guarantee import guarantees
from paraaegis.runs.check import resolve
from paraaegis.runs.guarantees import run_guarantees
from toy import configure

TIGHT = ("privacy.calibration=tight", "privacy.epsilon=1.0", "privacy.clip=1.0")


def release(number=1, client="a", sigma=2.0, simulated=False, attempt=0, what="update"):
    return Release(round=number, client=client, what=what, server="noised", clients="noised", clip=1.0, sigma=sigma,
                   simulated=simulated, attempt=attempt)  # fmt: skip


def room_for(count, sigma=2.0):
    """A budget that pays for exactly so many releases."""
    limit = count / sigma**2
    return UpdateBudget(1.0, limit, epsilon_of(math.sqrt(limit), 1e-5), 1e-5, "unit: client")


def test_releases_are_in_the_file_before_record_returns(tmp_path):
    ledger = Ledger(path=tmp_path / "ledger.jsonl")
    for number in range(1, 4):
        ledger.record([release(number)])
        assert read_ledger(tmp_path / "ledger.jsonl") == [release(n) for n in range(1, number + 1)]


def test_a_ledger_goes_on_where_it_stopped(tmp_path):
    for number in range(1, 4):
        Ledger(room_for(3), tmp_path / "ledger.jsonl").record([release(number)])
    with pytest.raises(PrivacyError, match="budget of a is spent"):
        Ledger(room_for(3), tmp_path / "ledger.jsonl").record([release(4)])
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == 3


def test_a_line_that_a_kill_cut_off_never_left_and_the_next_is_whole(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path=path).record([release(1), release(2)])
    path.write_bytes(path.read_bytes()[:-5])
    Ledger(path=path).record([release(3)])
    assert [one.round for one in read_ledger(path)] == [1, 3]


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b'{"round": "one"}\n', b"\xff\n"])
def test_a_damaged_ledger_is_refused(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    Ledger(path=path).record([release(1)])
    path.write_bytes(line + path.read_bytes())
    with pytest.raises(RunError, match="the privacy spent is unknown"):
        Ledger(path=path)


def test_a_ledger_that_is_cut_or_removed_while_it_is_in_use_is_not_filled_up(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(None, path)
    ledger.record([release(1)])
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RunError, match=r"shrank from .* bytes while it was in use, .* restore the file"):
        ledger.record([release(2)])
    assert path.stat().st_size == 40
    path.unlink()
    with pytest.raises(RunError, match=r"is missing, .* restore the file"):
        ledger.record([release(2)])
    assert not path.exists()


def test_seeded_noise_replayed_is_one_release_and_fresh_noise_a_second():
    seeded, fresh = Ledger(room_for(1)), Ledger(room_for(1))
    for _ in range(3):
        seeded.record([release(simulated=True)])
    fresh.record([release()])
    assert len(seeded.releases) == 1
    with pytest.raises(PrivacyError):
        fresh.record([release()])
    with pytest.raises(PrivacyError):  # another attempt has other noise, seeded or not
        seeded.record([release(simulated=True, attempt=1)])


def test_another_run_with_the_same_ledger_is_another_release():
    ledger = Ledger()
    for run in ("one", "two", "two"):
        ledger.record(releases_of([VOTES], "a", 1, run=run))
    assert [one.run for one in ledger.releases] == ["one", "two"]


def test_each_client_spends_its_own_budget():
    ledger = Ledger(room_for(2))
    for number in (1, 2):
        for client in "ab":
            ledger.record([release(number, client)])
    for client in "ab":
        assert ledger.refusal([release(3, client)])
    assert not ledger.refusal([release(3, "c")])
    assert ledger.share == pytest.approx(1.0)


def test_a_refusal_says_what_was_spent_and_what_would_fit():
    limit = 2.5 / 4
    ledger = Ledger(UpdateBudget(1.0, limit, epsilon_of(math.sqrt(limit), 1e-5), 1e-5, "unit: client"))
    ledger.record([release(1), ])  # fmt: skip
    ledger.record([release(2)])
    text = ledger.refusal([release(3)])
    assert f"ε = {epsilon_of(math.sqrt(0.5), 1e-5):.4g} at δ = 1e-05 (unit: client) of" in text
    assert "unit: client" in text
    assert "against" in text
    fits = float(text.split("σ = ")[1].split(")")[0])
    assert not ledger.refusal([release(3, sigma=fits * 1.001)])
    assert ledger.refusal([release(3, sigma=fits * 0.99)])


def test_the_worst_client_and_all_its_parts_count():
    several = [release(1, "a"), release(1, "b"), release(2, "b", sigma=1.0)]
    assert mu_against(SERVER, several, "client") == pytest.approx(math.sqrt(1 / 4 + 1))
    assert mu_against(SERVER, several, "client-replace") == pytest.approx(2 * math.sqrt(1 / 4 + 1))


@pytest.mark.parametrize("name", METHODS)
def test_every_guarantee_names_its_adversary_and_an_epsilon_its_unit(name):
    found = run_guarantees(configure(*TIGHT, f"protect.method={name}", "federation.min_samples=10")).guarantees
    assert [one.adversary for one in found] == 2 * [SERVER, CLIENTS, HOLDERS, "server with 1 client"]
    for one in found:
        assert one.why
        assert one.unit
        assert (one.epsilon is None) == (one.delta is None)
        assert (one.epsilon is None) == ("dp" not in one.kind)


def test_a_method_that_votes_never_gets_a_total_epsilon():
    for settings in ([], ["privacy.inside_clip=1.0"]):
        config = configure(*TIGHT, "protect.method=paraaegis-static", "federation.min_samples=10", *settings)
        assert {one.kind for one in run_guarantees(config).guarantees} <= {"simulated dp given the partition", "none"}


def test_seeded_noise_is_marked_as_a_simulation():
    config = configure(*TIGHT, "federation.min_samples=10")
    assert run_guarantees(config).simulation
    assert not run_guarantees(
        msgspec.structs.replace(config, privacy=msgspec.structs.replace(config.privacy, noise="secret"))
    ).simulation


def test_metrics_of_a_silos_own_data_and_sample_counts_are_said():
    told = [release(1), release(1, what="samples"), release(1, what="metrics")]
    why = guarantees(told, Privacy())[0].why
    assert "hold-out" in why
    assert "number of samples" in why


def test_processes_that_share_a_ledger_share_a_budget(tmp_path):
    first, second = (Ledger(room_for(2), tmp_path / "ledger.jsonl") for _ in range(2))
    first.record([release(1)])
    second.record([release(2)])
    for ledger in (first, second):
        with pytest.raises(PrivacyError):
            ledger.record([release(3)])
    assert [one.round for one in read_ledger(tmp_path / "ledger.jsonl")] == [1, 2]


@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_a_refusal_never_names_an_epsilon_without_adversary_and_unit(calibration):
    config = resolve(configure(*TIGHT[1:], f"privacy.calibration={calibration}", "privacy.sigma=0.01"), [10])
    text = Ledger(budget(config)).refusal([release(sigma=0.01)])
    assert "against everyone who reads its noised values" in text
    assert "unit: client" in text


def test_nothing_sent_is_no_epsilon_of_zero():
    for releases in ([], [release(what="votes")]):
        assert {one.kind for one in guarantees(releases, Privacy())} == {"nothing sent"}


def test_a_ledger_of_seeded_noise_claims_nothing_but_a_simulation():
    found = guarantees([release(simulated=True)], Privacy())
    assert {one.kind for one in found} == {"simulated dp"}
