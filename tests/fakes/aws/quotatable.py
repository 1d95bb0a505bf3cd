"""AWS's quotas of running machines: codes and names, and which of them a type of machine draws on."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = {
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-417A185B": "Running On-Demand P instances",
    "L-6E869C2A": "Running On-Demand DL instances",
    "L-74FC7D96": "Running On-Demand F instances",
    "L-1945791B": "Running On-Demand Inf instances",
    "L-2C3B7624": "Running On-Demand Trn instances",
    "L-7295265B": "Running On-Demand X instances",
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
    "L-85EED4F7": "All DL Spot Instance Requests",
    "L-88CF9481": "All F Spot Instance Requests",
    "L-B5D1601B": "All Inf Spot Instance Requests",
    "L-6B0D517C": "All Trn Spot Instance Requests",
    "L-E3A00192": "All X Spot Instance Requests",
}
DEFAULTS = dict.fromkeys(NAMES, 0.0) | {"L-1216C47A": 5.0, "L-34B43A08": 5.0}
"""What a new account has, in vCPUs."""
OPEN = ("PENDING", "CASE_OPENED")

_ON_DEMAND = {
    "g": "L-DB2E81BA", "vt": "L-DB2E81BA", "p": "L-417A185B", "dl": "L-6E869C2A", "f": "L-74FC7D96",
    "inf": "L-1945791B", "trn": "L-2C3B7624", "x": "L-7295265B",
}  # fmt: skip
_SPOT = {
    "g": "L-3819A6DF", "vt": "L-3819A6DF", "dl": "L-85EED4F7", "f": "L-88CF9481", "inf": "L-B5D1601B",
    "trn": "L-6B0D517C", "x": "L-E3A00192", "p2": "L-7212CCBC", "p3": "L-7212CCBC", "p4": "L-7212CCBC",
    "p5": "L-C4BD4855",
}  # fmt: skip


def code(kind: str, market: str) -> str:
    """The quota that a type draws on; "": none, which is so for P6 on spot."""
    family = kind.partition(".")[0]
    letters = family[: next((at for at, sign in enumerate(family) if sign.isdigit()), len(family))]
    if market != "spot":
        return _ON_DEMAND.get(letters, "L-1216C47A")
    if letters == "p":
        return _SPOT.get(family[:2], "")
    return _SPOT.get(letters, "L-34B43A08")


class Quotas(dict[tuple[str, str], float | None]):
    """(region, code) -> vCPUs; what nobody set is `enough`. None: AWS has no applied value for it."""

    def __init__(self, enough: float = 1152.0) -> None:
        super().__init__()
        self.enough: float | None = enough
        """None: every quota is a new account's."""

    def __missing__(self, at: tuple[str, str]) -> float:
        return DEFAULTS[at[1]] if self.enough is None else self.enough


@dataclass
class QuotaRequest:
    id: str
    region: str
    code: str
    desired: float
    created: float
    """UTC seconds; may be set back."""
    status: str = "PENDING"
    updated: float = 0.0
    case: str = ""
