"""A PostgreSQL server of the tests' own: made in a temporary folder, started and stopped."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from tests.absent import absent

OPTIONS = "-c listen_addresses=127.0.0.1 -c fsync=on -c max_connections=60"


def find_programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl`; Debian keeps them out of the path."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


class Postgres:
    """One server with one empty database."""

    def __init__(self, folder: Path) -> None:
        programs = find_programs()
        if programs is None:
            absent("no PostgreSQL found; install it with `apt-get install postgresql`")
        self._programs, self._data = programs, folder / "data"
        self._log = folder / "log"
        # the server refuses to run as root
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
            for each in folder.parents:
                if each.stat().st_uid == 0 and str(each).startswith("/tmp/"):
                    each.chmod(each.stat().st_mode | 0o011)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = folder
        self._run("initdb", "-D", self._data, "-U", "shop", "-A", "trust", "-N")
        self.start()
        self.url = f"postgresql://shop@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *words: object) -> None:
        command = [str(self._programs / program), *map(str, words)]
        done = subprocess.run(
            command,
            user=self._user,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"{OPTIONS} -p {self.port} -k {self._folder}"
        self._run("pg_ctl", "-D", self._data, "-l", self._log, "-w", "-o", options, "start")

    def stop(self) -> None:
        """End the server and all connections at once."""
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")
