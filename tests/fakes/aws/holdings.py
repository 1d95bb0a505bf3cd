"""What there is in the account, told and set up from inside."""

from __future__ import annotations

from tests.fakes.aws import course, leftovers, quotas
from tests.fakes.aws.quotatable import QuotaRequest
from tests.fakes.aws.records import Instance, SpotRequest
from tests.fakes.aws.world import World

HOME = "us-east-1"


class Holdings:
    world: World

    def settle(self) -> None:
        with self.world.lock:
            course.settle(self.world)

    def instances(self) -> list[Instance]:
        """The living, in every region."""
        with self.world.lock:
            course.settle(self.world)
            return self.world.living()

    def instance(self, one: str) -> Instance:
        """Also one that ended."""
        self.settle()
        return self.world.instances[one]

    def spot_requests(self) -> list[SpotRequest]:
        self.settle()
        return list(self.world.spot_requests.values())

    def left(self) -> list[str]:
        """A sentence for everything tagged as gpuops's that is there, of any kind, in any region."""
        with self.world.lock:
            course.settle(self.world)
            return leftovers.tagged(self.world)

    def bucket(self, name: str, region: str = HOME) -> str:
        """Make one in S3; its name."""
        with self.world.lock:
            self.world.moto.s3.create_bucket(name, region)
        return name

    def objects(self, bucket: str) -> dict[str, bytes]:
        """What lies in a bucket."""
        with self.world.lock:
            keys = self.world.moto.s3.get_bucket(bucket).keys
            return {name: bytes(keys[name].value) for name in keys}

    def fresh_account(self) -> None:
        """Every quota as a new account has it: 0, and 5 of Standard."""
        self.world.quota.clear()
        self.world.quota.enough = None

    def decide(self, request: str | QuotaRequest, status: str = "APPROVED", value: float | None = None) -> None:
        """AWS decides about a request for quota; with `value` it grants that instead."""
        with self.world.lock:
            quotas.decide(self.world, request if isinstance(request, str) else request.id, status, value)

    def image(self, line: str = "", region: str = HOME) -> str:
        """The id of an image, by a part of its parameter or name."""
        found = [one for one in self.world.pictures if line in (one.line or one.name) and one.architecture != "arm64"]
        return found[0].id(region)
