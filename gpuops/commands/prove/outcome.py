"""How a scenario may end other than well: each is raised with one sentence."""

from __future__ import annotations


class Broken(Exception):
    """The contract is not kept: the sentence says which promise, and what was seen instead."""


class NotGuaranteed(Exception):
    """The provider cannot do this, and the provisioner has said so; or nobody can tell from outside."""


class Missing(Exception):
    """What the scenario acts on does not exist, since another scenario has failed; or the money ends first."""
