"""A fake of Vast.ai's API: a real HTTP server that rents out slices of machines, bills them, and errs as Vast.ai does.

    with FakeVast(tmp_path / "vast") as fake:
        run("gpuops", ..., env=fake.env)
        assert fake.running() == []

With a lab of tests/system/lab, as root, its instances are machines with an sshd: see container.py.
"""

from tests.fakes.runpod.faults import Fault
from tests.fakes.vast.fake import FakeVast
from tests.fakes.vast.records import Ask, Instance, Life

__all__ = ["Ask", "FakeVast", "Fault", "Instance", "Life"]
