"""Logging in to hosts over SSH: whom to trust, how to get in, programs as byte streams.

`resolve_target` makes a Target of the host that a user typed. `scan_host_key` returns the key that it shows,
`known_keys` those that the user's known_hosts files expect. `connect` returns a Connection. `write_config` makes the
same hosts known to the system's `ssh`, to editors and to rsync. No login happens where the host key is not pinned in
the Target.
"""

from __future__ import annotations

from gpuops.transport.ssh.config_files import alias, command_line, remove_config, write_config
from gpuops.transport.ssh.connection import connect
from gpuops.transport.ssh.errors import Denied, HostKeyChanged
from gpuops.transport.ssh.host_keys import fingerprint
from gpuops.transport.ssh.host_resolution import parse_host_spec, resolve_target
from gpuops.transport.ssh.known_hosts_files import host_name as known_hosts_name
from gpuops.transport.ssh.known_hosts_files import known_keys, revoked_keys
from gpuops.transport.ssh.paramiko_transport import scan_host_key
from gpuops.transport.ssh.quoting import shell_line
from gpuops.transport.ssh.target import Target

__all__ = [
    "Denied",
    "HostKeyChanged",
    "Target",
    "alias",
    "command_line",
    "connect",
    "fingerprint",
    "known_hosts_name",
    "known_keys",
    "parse_host_spec",
    "remove_config",
    "resolve_target",
    "revoked_keys",
    "scan_host_key",
    "shell_line",
    "write_config",
]
