"""A fake of RunPod's API: a real HTTP server that keeps pods, bills them, and errs as the service does.

    with FakeRunPod(tmp_path / "runpod") as fake:
        run("gpuops", ..., env=fake.env)
        assert fake.running() == []

What goes wrong is said with `fake.play(Fault(…))`: see faults.py for all that can. With a lab of tests/system/lab, as
root, its pods are machines with an sshd: see landscape.py.
"""

from tests.fakes.runpod.fake import FakeRunPod
from tests.fakes.runpod.faults import Fault, Life
from tests.fakes.runpod.records import Account, Cluster, Pod, Volume
from tests.fakes.runpod.requests import Request

__all__ = ["Account", "Cluster", "FakeRunPod", "Fault", "Life", "Pod", "Request", "Volume"]
