"""`paraaegis bench he|vote|round`: measure what protection costs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, print_json
from paraaegis.plural import plural

app = typer.Typer(help="Measure what protection costs on this machine.", no_args_is_help=True, suggest_commands=False)


_NAMES = {
    "authors": "the paper's authors' setting",
    "nvflare": "NVFlare's setting",
    "precise": "CKKS precise",
    "compact": "CKKS compact",
}
_MEASURES = {"time": "the time", "bytes": "the bytes up", "up": "the bytes up", "down": "the bytes down"}


def _times(ratio: dict[str, float]) -> str:
    """Ratios in words: `9.2 times the time and 12.8 times the bytes up`."""
    return " and ".join(f"{times:.3g} times {_MEASURES[what]}" for what, times in ratio.items())


def _progress(text: str) -> None:
    sys.stderr.write(f"measuring {text}\n")


@app.command("he", epilog="Example: paraaegis bench he --peers benchmarks/peers.py")
def he(
    values: Annotated[int, typer.Option(min=1, help="Values to encrypt for each of ten clients.")] = 524_288,
    repeats: Annotated[int, typer.Option(min=1, help="How often to measure; the fastest counts.")] = 3,
    peers: Annotated[
        Path | None, typer.Option(help="Other projects' settings. Default: benchmarks/peers.py if it exists.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare our encryption profiles with other projects' settings, on the same values; takes one to three minutes."""
    from paraaegis.bench.he import bench_he

    usual = Path("benchmarks/peers.py")
    bench = bench_he(values, repeats, peers or (usual if usual.is_file() else None), _progress)
    if as_json:
        print_json(bench)
        return
    names = ("encrypt", "add", "decrypt", "up", "down")
    sys.stdout.write(f"{'ns, bytes per value':20}" + "".join(f"{name:>9}" for name in names) + "  max error  peak MB\n")
    for one in bench.settings:
        costs = (one.encrypt_ns, one.add_ns, one.decrypt_ns, one.bytes_up, one.bytes_down)
        cells = "".join(f"{cost:9.2f}" if cost < 100 else f"{cost:9.0f}" for cost in costs)
        sys.stdout.write(f"{one.name:20}{cells}  {one.max_error:9.1e}  {one.peak_mb:7.0f}\n")
    ckks = {"authors": bench.ratio_vs_authors, "nvflare": bench.ratio_vs_nvflare}
    ratios = {"precise": {title: ratio for title, ratio in ckks.items() if ratio}, **bench.ratios}
    for ours, others in ratios.items():
        for title, ratio in others.items():
            sys.stdout.write(f"{_NAMES.get(title, title)} needs {_times(ratio)} of our {ours}\n")
    sys.stdout.write(f"all cores: {bench.ratio_all_cores['time']:.2f} times as fast as one\n")


@app.command("vote", epilog="Example: paraaegis bench vote --length 11191242 --ratio 0.1")
def vote(
    length: Annotated[int, typer.Option(min=1, help="Values in the model.")] = 11_191_242,
    ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of the values that is elected.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Measure voting and noise: seconds by phase and bytes, for one client and for a server with ten."""
    from paraaegis.bench.round import bench_vote

    bench = bench_vote(length, ratio)
    if as_json:
        print_json(bench)
        return
    for who, phases in (("client", bench.client), ("server", bench.server)):
        parts = "  ".join(f"{phase} {seconds:.3f}" for phase, seconds in phases.items())
        sys.stdout.write(f"{who}: {sum(phases.values()):.3f} s  ({parts})\n")
    sys.stdout.write(f"one ballot: {bench.bytes_ballot:,} bytes\n")


@app.command("round", epilog="Example: paraaegis bench round --set protect.cipher=rlwe")
def whole_round(
    batches: Annotated[int, typer.Option(min=1, help="Batches of ResNet-18 training to measure and scale.")] = 4,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Measure a client's protection on ResNet-18 as a share of its training time (3 epochs of 30 batches)."""
    from paraaegis.bench.round import BATCHES, EPOCHS, bench_round
    from paraaegis.learn.speed import seconds_a_batch

    _progress(f"{batches} batches of training")
    bench = bench_round(EPOCHS * BATCHES * seconds_a_batch(batches), progress=_progress, settings=settings or [])
    if as_json:
        print_json(bench)
        return
    sys.stdout.write(
        f"training {bench.train_seconds:.1f} s, measured on {plural(batches, 'batch', 'batches')} and scaled to "
        f"{EPOCHS} epochs of {BATCHES}; secret order, drawn meanwhile, {bench.order_seconds:.2f} s\n"
    )
    for ratio, share in bench.overhead.items():
        parts = "  ".join(f"{phase} {seconds:.2f}" for phase, seconds in bench.client_seconds[ratio].items())
        sys.stdout.write(
            f"r = {float(ratio):4.0%}: {share:6.2%} of training ({parts} s); server combines ten clients in "
            f"{bench.combine_seconds[ratio]:.2f} s\n"
        )
