"""A fake of AWS: EC2, quotas, prices and S3 behind one HTTP address; moto keeps the books, the rest is here.

    with FakeAWS(tmp_path / "aws") as fake:
        fake.quota["us-east-1", "L-3819A6DF"] = 96
        run("gpuops", ..., env=fake.env)
        assert fake.left() == []

What goes wrong is said with `fake.play(Fault(…))`: see faults.py. With a lab of tests/system/lab, as root, its
instances are machines with an sshd, a metadata address and a power switch.
"""

from tests.fakes.aws.fake import FakeAWS
from tests.fakes.aws.faults import Fault
from tests.fakes.aws.pictures import Picture
from tests.fakes.aws.quotatable import QuotaRequest
from tests.fakes.aws.records import Instance, SpotRequest
from tests.fakes.aws.requests import Request

__all__ = ["FakeAWS", "Fault", "Instance", "Picture", "QuotaRequest", "Request", "SpotRequest"]
