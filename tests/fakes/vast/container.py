"""An instance as a machine of a lab: Vast.ai's own first process and sshd, and ports that lead there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.runpod.container import LOOK_S, Container
from tests.fakes.runpod.images import PATH
from tests.fakes.runpod.landscape import Landscape
from tests.system.lab import disk

LAUNCH = Path(__file__).with_name("launch.sh")
BASHRC = '[ -e ~/.no_auto_tmux ] || { echo "you are in tmux"; exec sleep infinity; }\n'
"""Vast.ai's images of a login; where a file says so, without it."""


class VastContainer(Container):
    """Whose first process, once ended, is not started again."""

    first_ended = False

    def _keep(self, boot: int, wiped: bool) -> None:
        try:
            if wiped or not self.disk.exists():
                self._lay()
            self.first_ended = False
            if self._start(boot):
                while self._alive(boot):
                    self._landscape.wait(LOOK_S)
                self.first_ended = boot == self._boots and not self._landscape.closed
        except (AssertionError, OSError, RuntimeError) as error:
            if boot == self._boots and not self._landscape.closed:
                self._landscape.complain(f"instance {self._pod.name}: {error!r}")

    def _lay(self) -> None:
        super()._lay()
        upper = self.disk / "upper"
        disk.write(upper, {
            "root/.bashrc": BASHRC,
            "root/onstart.sh": str(self._pod.request.get("onstart") or ""),
            "opt/launch.sh": LAUNCH.read_text(),
        })  # fmt: skip

    def _first_process(self) -> dict[str, Any]:
        one: Any = self._pod
        added = {
            "CONTAINER_ID": one.id,
            "CONTAINER_API_KEY": one.key,
            "VAST_CONTAINERLABEL": f"C.{one.id}",
            "PUBLIC_IPADDR": self.address,
            "VAST_TCP_PORT_22": str(one.direct_port),
        }
        env = {"PATH": f"/usr/local/nvidia/bin:{PATH}", "HOME": "/root", "HF_HOME": "/srv/models", **one.env, **added}
        return {"env": env, "argv": ["bash", "/opt/launch.sh"], "folder": "/", "user": 0}


class VastLandscape(Landscape):
    container = VastContainer
