"""The facts of a checkup: what the agent's mode `checkup` prints about one place, parsed once into types.

A fact whose probe failed, or that a place does not have, keeps its default; a field of another type is a ValueError.
The agent's modules `checkup.host` and `checkup.gpu` write the document; field names are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct, field

from gpuops.transport import schema_types, schemas, validation

FAULT_SIGNS = ("ERR!", "Unknown Error", "requires reset", "GPU is lost")
"""What nvidia-smi prints in a column instead of a value where a GPU is broken."""


class MachineFacts(Struct, frozen=True):
    system: str = ""
    hostname: str = ""
    user: str = ""
    container: bool = False
    cores: int = 0
    """Cores that a process may use; 0 where that is unknown."""
    memory: int = 0
    """Bytes that a process may use; 0 where that is unknown."""


class PythonFacts(Struct, frozen=True):
    """One Python interpreter. `torch` and `cuda` are versions, or None where there is none."""

    path: str = "python"
    version: tuple[int, ...] = ()
    torch: str | None = None
    cuda: str | None = None
    ensurepip: bool = False
    """Whether it can make an environment by itself."""
    uv: bool = False
    """Whether `-m uv` works."""


class PythonsFacts(Struct, frozen=True):
    agent: PythonFacts | None = None
    """The Python that ran the checkup."""
    asked: str = ""
    """What `--python` named; empty without it."""
    found: list[PythonFacts] = []
    """Those that a run would choose from, best first; the one in `asked` alone, where it runs."""
    inner: str | None = None
    """The Python inside of `asked` where that is a folder: a path, or empty where there is none."""


class GpuFacts(Struct, frozen=True):
    """One line of nvidia-smi, as text; a value that a GPU does not have reads `[N/A]`."""

    index: str = ""
    name: str = ""
    driver: str = field(default="", name="driver_version")
    compute_cap: str | None = None
    """None where the driver does not know this column."""
    memory_total: str = field(default="", name="memory.total")
    memory_used: str = field(default="", name="memory.used")
    ecc: str = field(default="", name="ecc.errors.uncorrected.volatile.total")
    mig: str = field(default="", name="mig.mode.current")

    @property
    def title(self) -> str:
        return f"GPU {self.index} ({self.name})"

    @property
    def memory_mb(self) -> int:
        return _parse_count(self.memory_total)

    @property
    def used_mb(self) -> int:
        return _parse_count(self.memory_used)

    @property
    def memory_errors(self) -> int:
        """Errors since the last boot that the GPU's memory could not correct."""
        return _parse_count(self.ecc)

    @property
    def is_faulty(self) -> bool:
        values = [str(getattr(self, column)) for column in self.__struct_fields__]
        return any(sign in value for value in values for sign in FAULT_SIGNS)

    def as_hello(self) -> schemas.Gpu:
        """The GPU as a node's `hello` describes it, which the tables of torch builds take."""
        return schemas.Gpu(int(self.index or 0), self.name, self.driver, self.compute_cap or "")


class SmiFacts(Struct, frozen=True):
    """How nvidia-smi ended."""

    said: str = ""
    """The end of what it printed."""
    slow: bool = False
    """Whether it was stopped at its time limit."""


class NvidiaFacts(Struct, frozen=True):
    smi: SmiFacts | None = None
    """None where nvidia-smi is not installed."""
    gpus: list[GpuFacts] = []
    files: list[str] = []
    """`/dev/nvidia0`, … without the folder."""
    wsl: bool = False
    loaded: bool = False
    """Whether the driver's kernel module is loaded."""
    cards: int = 0
    """NVIDIA GPUs on the PCI bus, with or without a driver."""
    compat: bool = False
    """Whether NVIDIA's package of newer driver libraries is installed."""

    @property
    def has_hardware(self) -> bool:
        """Whether anything but nvidia-smi shows an NVIDIA GPU in the machine."""
        return bool(self.cards or self.files or self.loaded or self.wsl)


class DiskFacts(Struct, frozen=True):
    """The file system of one folder. Sizes in bytes; all 0 where the folder is not there."""

    of: str
    """`home`, `root`, `tmp`, `shm` or `node`."""
    path: str
    slow: bool = False
    """Whether df did not answer within its time limit."""
    there: bool = False
    source: str = ""
    mount: str | None = None
    kind: str = ""
    """The type of the file system."""
    writable: bool = False
    total: int = 0
    free: int = 0
    inodes: int = 0
    """0 where the file system has no fixed number of them."""
    inodes_free: int = 0


class LimitFacts(Struct, frozen=True):
    """Soft limits of a process; None: no limit, or unknown."""

    files: int | None = None
    locked: int | None = None
    """Bytes of locked memory."""


class NameFacts(Struct, frozen=True):
    name: str = ""
    addresses: list[str] = []
    """What the host's own name resolves to on the host."""


class SchedulerFacts(Struct, frozen=True):
    programs: list[str] = []
    job: str | None = None
    """The variable that a scheduler sets inside a job; None outside one."""


class LogindFacts(Struct, frozen=True):
    """What systemd does to a user's processes at the end of their last login."""

    runs: bool = False
    kills: bool = False
    spared: bool = False
    lingers: bool = False

    @property
    def kills_runs(self) -> bool:
        return self.runs and self.kills and not self.spared and not self.lingers


class LoginFacts(Struct, frozen=True):
    shell: str = ""
    said: str = ""
    """What its start-up files print."""
    slow: bool = False
    """Whether the shell did not end within its time limit."""


class VariableFacts(Struct, frozen=True):
    torchrun: list[str] = []
    """Names of set variables that torchrun obeys."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""


class Facts(Struct, frozen=True):
    """A whole checkup. None: the probe failed, or does not apply to the place."""

    machine: MachineFacts = MachineFacts()
    pythons: PythonsFacts | None = None
    nvidia: NvidiaFacts | None = None
    nvcc: str | None = None
    """The CUDA version of the compiler."""
    disks: list[DiskFacts] = []
    limits: LimitFacts = LimitFacts()
    name: NameFacts | None = None
    scheduler: SchedulerFacts = SchedulerFacts()
    logind: LogindFacts = LogindFacts()
    login: LoginFacts | None = None
    variables: VariableFacts = VariableFacts()
    infiniband: list[str] = []
    """Names of the adapters."""
    misspelt: list[str] = []
    """Files in ~/.ssh that look like authorized_keys misspelt."""
    busy: str | None = None
    """The run that is on."""
    failed: dict[str, str] = {}
    """Why a probe has no result, by its name."""


schema_types.prepare_shapes([*globals().values()])


def parse_facts(document: Mapping[str, object]) -> Facts:
    """The facts of a checkup's document. Raises ValueError where a field has another type."""
    facts: Facts = validation.convert(document, Facts)
    return facts


@dataclass(frozen=True)
class Checkup:
    """One place and the facts about it."""

    where: str
    facts: Facts
    reached: bool = False
    """Whether gpuops logged in there; otherwise it is this computer."""
    clock: tuple[float, float] | None = None
    """Lower and upper bound of the seconds to add to its clock to get ours; None where the clock is ours."""
    artefact: str = ""
    """Hash of the agent that its node runs; empty where there is none."""

    def disk(self, of: str) -> DiskFacts | None:
        """The disk of one folder: `home`, `root`, `tmp`, `shm` or `node`."""
        return next((disk for disk in self.facts.disks if disk.of == of), None)

    @property
    def gpus(self) -> list[GpuFacts]:
        return self.facts.nvidia.gpus if self.facts.nvidia else []

    @property
    def python(self) -> PythonFacts | None:
        """The Python that a run would use: the one asked for, otherwise the first with torch."""
        pythons = self.facts.pythons
        if pythons is None:
            return None
        candidates = pythons.found if pythons.asked else [python for python in pythons.found if python.torch]
        return candidates[0] if candidates else None


def _parse_count(text: str) -> int:
    """A number as nvidia-smi prints it; 0 for `[N/A]`."""
    number = text.partition(".")[0]
    return int(number) if number.isdecimal() else 0
