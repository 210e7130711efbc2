"""What `bench` prints says what was measured."""

from typer.testing import CliRunner

from paraaegis.bench.he import HeBench
from paraaegis.bench.round import RoundBench
from paraaegis.cli.app import app


def test_a_comparison_reads_as_a_sentence(monkeypatch):
    ratios = {"precise": {"time": 19.0, "up": 1.21}, "fedavg": {"up": 0.64, "down": 0.64}}
    bench = HeBench(
        values=1,
        settings=[],
        ratio_vs_authors={"time": 9.214, "bytes": 10.6},
        ratio_all_cores={"time": 1.8},
        ratios={"rlwe-wide": ratios},
    )
    monkeypatch.setattr("paraaegis.bench.he.bench_he", lambda *_: bench)
    lines = CliRunner().invoke(app, ["bench", "he"]).output.splitlines()
    assert "the paper's authors' setting needs 9.21 times the time and 10.6 times the bytes up of our precise" in lines
    assert "CKKS precise needs 19 times the time and 1.21 times the bytes up of our rlwe-wide" in lines
    assert "fedavg needs 0.64 times the bytes up and 0.64 times the bytes down of our rlwe-wide" in lines


def test_a_round_says_that_training_was_measured_on_few_batches_and_scaled(monkeypatch):
    bench = RoundBench(length=1, train_seconds=90.0, overhead={"0.1": 0.02}, client_seconds={"0.1": {"vote": 1.8}},
                       combine_seconds={"0.1": 1.0}, order_seconds=0.5)  # fmt: skip
    monkeypatch.setattr("paraaegis.learn.speed.seconds_a_batch", lambda _: 1.0)
    monkeypatch.setattr("paraaegis.bench.round.bench_round", lambda *_, **__: bench)
    for count, words in ((2, "2 batches"), (1, "1 batch")):
        out = CliRunner().invoke(app, ["bench", "round", "--batches", str(count)]).output
        assert f"training 90.0 s, measured on {words} and scaled to 3 epochs of 30" in out
