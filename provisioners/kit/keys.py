"""Key pairs: ours, by which we log in, and those of a machine's first minutes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuops.core.errors import Rejected, Unknown, UsageError
from gpuops.core.files import create_once


class KeyPair(NamedTuple):
    private: str
    """OpenSSH's own text."""
    public: str
    """`ssh-ed25519 AAAA…`, without a comment."""

    @property
    def packed(self) -> str:
        """The private half as one word."""
        return base64.b64encode(self.private.encode()).decode()


def generate_key_pair() -> KeyPair:
    """A fresh ed25519 pair."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = Ed25519PrivateKey.generate()
    private = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return KeyPair(private.decode(), _public_half(private))


def ensure_login_key(home: Path) -> tuple[Path, str]:
    """The path of our private key and its public half; made once, by the first command.

    Raises Rejected, UsageError.
    """
    path = home / "ssh" / "id_ed25519"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_once(path, generate_key_pair().private)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)  # which ssh asks of every private key
        public = _public_half(path.read_bytes())
    except ValueError as error:
        raise UsageError(
            f"{path} is damaged: it is no private key", "remove it while nothing is up: a new one is made"
        ) from error
    except OSError as error:
        raise Rejected(
            f"gpuops cannot keep its key in {path}: {error.strerror}", "see that it can be written"
        ) from error
    return path, public


def ensure_registered(
    public: str, name: str, listed: Callable[[], Mapping[str, str]], register: Callable[[str], object]
) -> str:
    """The name under which an account has a public key. It stays there, for all clusters of a home; another command may
    register it at the same time.

    name      under which it is registered where it is not there
    listed    asks for the account's public keys by their names, with comments or without
    register  registers it under a name
    """

    def find() -> str:
        wanted = public.split()[:2]
        return next((known for known, key in listed().items() if key.split()[:2] == wanted), "")

    if found := find():
        return found
    try:
        register(name)
    except (Rejected, Unknown):
        if found := find():
            return found
        raise
    return name


def _public_half(private: bytes) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    key = load_ssh_private_key(private, password=None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
