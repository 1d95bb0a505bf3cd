"""A fake of Lambda Cloud's API: a real HTTP server that keeps instances, bills them, and errs as the service does.

    with FakeLambda(tmp_path / "lambda") as fake:
        run("gpuops", ..., env=fake.env)
        assert fake.running() == []

With a lab of tests/system/lab, as root, its instances are machines with a systemd and an sshd.
"""

from tests.fakes.lambdacloud.fake import FakeLambda, Fault, Instance

__all__ = ["FakeLambda", "Fault", "Instance"]
