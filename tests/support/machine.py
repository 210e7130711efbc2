"""A machine for the cost model, with round figures."""

from paraaegis.planning.cost import Machine, MethodCost

LINE = (0.001, 1e-8, 0.002)


def method(encrypted, in_clear, votes=False, shares=0.0, exchanges=1):
    phases = dict.fromkeys(("vote", "protect", "combine", "reveal"), LINE)
    return MethodCost(
        encrypted=encrypted,
        in_clear=in_clear,
        votes=votes,
        exchanges=exchanges,
        phases=phases,
        crowd=LINE,
        share_up=shares,
        share_down=1.6 * shares,
        per_ciphertext=0 if encrypted == "none" else 4096,
        cipher_up=30_000.0,
        cipher_down=60_000.0,
    )


MACHINE = Machine(
    cores=2,
    profile="precise",
    header=500.0,
    seconds=12.0,
    methods={
        "fedavg": method("none", "all"),
        "dp-fedavg": method("none", "all"),
        "lwe-secagg": method("none", "all", shares=5000.0, exchanges=2),
        "serial": method("all", "none"),
        "ckks-fedavg": method("all", "none"),
        "paraaegis-static": method("elected", "rest", votes=True, exchanges=2),
        "paraaegis-feedback": method("elected", "none", votes=True, exchanges=2),
    },
)
