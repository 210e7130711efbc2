"""Colours and markers by method. The colours are Okabe and Ito's, which colour-blind readers can distinguish."""

from __future__ import annotations

STYLES = {
    "fedavg": ("#000000", "*"),
    "dp-fedavg": ("#999999", "v"),
    "varying-dp": ("#999999", "<"),
    "lwe-secagg": ("#999999", "s"),
    "serial": ("#CC79A7", "X"),
    "ckks-fedavg": ("#0072B2", "D"),
    "paraaegis-static": ("#E69F00", "o"),
    "paraaegis-dynamic": ("#56B4E9", "P"),
    "paraaegis-feedback": ("#009E73", "^"),
}
OTHER = ("#D55E00", "o")
