"""Accounting of a Slurm cluster in a lab: MariaDB and slurmdbd on the login node, with accounts, QOS and limits.

Both are programs of that host, and end with it.
"""

from __future__ import annotations

from tests.conftest import until
from tests.system.lab.hosts import Host

PROGRAMS = {"mariadbd": "mariadb-server-core", "sacctmgr": "slurm-client", "slurmdbd": "slurmdbd"}
"""Program -> Debian package."""
CONFIG = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=login
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
PrivateData=accounts,events,jobs,reservations,usage,users
MinJobAge=2
"""
"""Lines of slurm.conf. A job is forgotten by the queue at once: what is known of it then, the database knows."""
DBD_CONFIG = """
DbdHost=login
SlurmUser=root
AuthType=auth/munge
PidFile=/run/slurm/slurmdbd.pid
LogFile=/run/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
PrivateData=accounts,events,jobs,reservations,usage,users
"""
DATABASE = """
set -- mariadbd --no-defaults --user=root --datadir=/run/slurm/database --skip-networking --skip-grant-tables \\
    --socket=/run/mysqld/mysqld.sock --lc-messages-dir=/usr/share/mysql/english \\
    --innodb-flush-log-at-trx-commit=0 --innodb-log-file-size=16M --innodb-buffer-pool-size=16M
mkdir -p /run/slurm/database /run/mysqld
chmod 700 /run/slurm/database /run/mysqld
{ printf 'create database mysql;\\nuse mysql;\\n'; cat /usr/share/mysql/mysql_system_tables.sql; } | "$@" --bootstrap
exec "$@"
"""
"""With the tables of its own that `mariadb-install-db` makes: slurmdbd keeps a procedure in one. Who may use it is
who may open the socket."""
ACCOUNTS = """
add qos short MaxWall=00:30:00
add qos small MaxTRES=gres/gpu=2 Flags=DenyOnLimit
add account physics cluster=lab GrpTRES=gres/gpu=12
add account optics cluster=lab parent=physics QOS=normal,short,small DefaultQOS=normal
add account chemistry cluster=lab
add user ann account=optics cluster=lab
add cluster other
add account astronomy cluster=other
add user ann account=astronomy cluster=other
"""
"""What sacctmgr is told: two clusters share the database, as a site's do."""


def start_database(login: Host) -> None:
    """Before there is a controller: it registers its cluster and what of it is counted (gres/gpu)."""
    login.write("/etc/slurm/slurmdbd.conf", DBD_CONFIG)
    login.run(["chmod", "600", "/etc/slurm/slurmdbd.conf"], check=True)
    login.run(["sh", "-c", f"({DATABASE}) >/run/slurm/mariadbd.log 2>&1 </dev/null &"], check=True)
    until(lambda: login.run(["test", "-S", "/run/mysqld/mysqld.sock"]).returncode == 0, "MariaDB listens")
    login.run(["slurmdbd"], check=True)
    until(lambda: login.run(["sacctmgr", "-n", "show", "cluster"]).returncode == 0, "slurmdbd answers")


def add_accounts(login: Host) -> None:
    until(lambda: "gpu" in login.run(["sacctmgr", "-nP", "show", "tres"]).stdout, "the controller has registered")
    login.run(["sacctmgr", "-i"], input=ACCOUNTS.lstrip(), check=True)
