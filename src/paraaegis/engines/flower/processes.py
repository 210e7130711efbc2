"""A trial federation on one machine: a real SuperLink and SuperNodes, with TLS and authentication."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeAlias

import tomli_w

from paraaegis.engines.flower.certificates import make_certificates, make_node_key
from paraaegis.errors import RunError

HOST = "127.0.0.1"
CONNECTION = "trial"
START, STOP = 180.0, 15.0  # seconds that a process may take to start and to stop
_CONNECTED = b"SuperNode ID"  # in a node's log once the SuperLink has accepted it
_MARK = "PARAAEGIS_TRIAL"  # in the environment of every process of a trial
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}


def _settings(name: str, folder: Path) -> str:
    return f'name="{name}" folder="{folder}" simulation=true'


Settings: TypeAlias = Callable[[str, Path], str]  # a node's --node-config from its name and folder


class FlowerProcesses:
    """A SuperLink and SuperNodes, one node per client folder, with the --node-config that `settings` gives.

    Stopped when the context exits.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, Path], settings: Settings = _settings) -> None:
        self._folder, self.nodes, self._settings = folder.resolve(), dict(nodes), settings
        self._port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # Flower runs its tools
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(self._folder / "flwr"), "PATH": path}
        self.keys: dict[str, tuple[Path, Path]] = {}
        self._begins: dict[str, int] = {}  # where in its log each process was last started

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _hold(self._folder)
        try:
            self._prepare()
            self.start_link()
            for name in self.nodes:
                self.register(name)
                self.start_node(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self) -> None:
        for name in ("flwr", "logs"):
            (self._folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.authority, self._certificate, self._key = make_certificates(self._folder / "tls", HOST)
        connection = {"address": f"{HOST}:{self._port}", "root-certificates": str(self.authority)}
        content = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (self._folder / "flwr" / "config.toml").write_text(tomli_w.dumps(content))
        self.keys = {name: make_node_key(self._folder / "nodes", name) for name in self.nodes}

    def start_link(self) -> None:
        """Start the SuperLink and wait until it responds."""
        files = ["--ssl-ca-certfile", self.authority, "--ssl-certfile", self._certificate, "--ssl-keyfile", self._key]
        options = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        options += ["--database", str(self._folder / "flwr" / "superlink.db")]  # remembers nodes after a restart
        self._start("superlink", [_tool("flower-superlink"), *files, *options, "--host", HOST, "--port", self._port])
        until = time.monotonic() + START
        while not self._healthy():
            self.check_alive("superlink")
            if time.monotonic() > until:
                raise RunError(f"the SuperLink did not respond within {START:.0f} s; see {self._log('superlink')}")
            time.sleep(0.2)

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority))
        address = f"https://{HOST}:{self._port}/health"
        with suppress(OSError), urllib.request.urlopen(address, context=context, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def register(self, name: str) -> None:
        """Register a node's public key with the SuperLink, which rejects all other nodes."""
        self.flwr("supernode", "register", str(self.keys[name][1]), CONNECTION)

    def start_node(self, name: str) -> None:
        """Start a SuperNode for a client's name and folder."""
        config = self._settings(name, self.nodes[name].resolve())
        options = ["--root-certificates", self.authority, "--auth-supernode-private-key", self.keys[name][0]]
        ports = ["--superlink", f"{HOST}:{self._port}", "--port", free_port()]
        self._start(name, [_tool("flower-supernode"), *ports, *options, "--node-config", config])

    def bring_back(self, name: str, patience: float = START) -> None:
        """Restart a killed node, retrying until the SuperLink accepts it, which must first notice that it was gone."""
        until = time.monotonic() + patience
        while True:
            self.start_node(name)
            while self.processes[name].poll() is None:
                if name in self.connected():
                    return
                time.sleep(0.3)
            if time.monotonic() > until:
                self.check_alive(name)
            time.sleep(2)

    def connected(self) -> list[str]:
        """The nodes that the SuperLink has accepted since they were last started."""
        return [name for name in self.nodes if name in self._begins and _CONNECTED in self._said(name)]

    def _said(self, name: str) -> bytes:
        with self._log(name).open("rb") as log:
            log.seek(self._begins[name])
            return log.read()

    def run(self, app: Path, settings: Mapping[str, str]) -> str:
        """Start a run of an app; return its id."""
        run_config = " ".join(f'{key}="{value}"' for key, value in settings.items())
        answer = self.flwr("run", str(app.resolve()), CONNECTION, "--run-config", run_config, "--format", "json")
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """A run's status, for example running, finished:completed or finished:failed."""
        runs = self.flwr("list", CONNECTION, "--run-id", run, "--format", "json")["runs"]
        return str(runs[0]["status"])

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a Flower command; return the JSON that it prints, if any.

        It does not run in the user's working folder: Flower takes a connection's name for an app if a folder there has
        that name.
        """
        done = subprocess.run(  # noqa: S603
            [_tool("flwr"), *arguments],
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        start = done.stdout.find("{")
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        if done.returncode or not answer.get("success", True):
            text = answer.get("error-message") or done.stdout + done.stderr
            raise RunError(f"flwr {arguments[0]} failed: {text.strip()[-2000:]}")
        return answer

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop one process and everything it started."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP)
        _end_marked(self._mark(name))
        process.wait()

    def family(self, name: str) -> list[int]:
        """The ids of a process and all it started, found by their mark, since Flower gives them their own sessions."""
        return _marked(self._mark(name))

    def _mark(self, name: str) -> str:
        return f"{self._folder}:{name}\0"

    def close(self) -> None:
        """Stop everything."""
        # The SuperLink first: a server that saw its nodes leave one by one would drop them from its rounds.
        for name in ["superlink", *(name for name in self.processes if name != "superlink")]:
            self.stop(name)
        self._lock.close()

    def _start(self, name: str, command: list[Any]) -> None:
        with self._log(name).open("ab") as log:
            self._begins[name] = log.tell()
            self.processes[name] = subprocess.Popen(  # noqa: S603
                [str(part) for part in command],
                env=self.environment | {_MARK: f"{self._folder}:{name}"},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def check_alive(self, *names: str) -> None:
        """Raise if one of these processes (default: all) has ended, with the tail of its log."""
        for name in names or list(self.processes):
            if (code := self.processes[name].poll()) is not None:
                tail = self._log(name).read_text(errors="replace")[-2000:]
                raise RunError(f"{name} ended with status {code}:\n{tail}")

    def _log(self, name: str) -> Path:
        return self._folder / "logs" / f"{name}.log"


def sweep(folder: Path) -> None:
    """Stop processes that a killed trial left behind in this folder; refuses if a trial is running there."""
    if (folder / "lock").exists():
        _hold(folder.resolve()).close()


def _hold(folder: Path) -> IO[bytes]:
    """Lock the folder for one trial, as long as the file is open, and end leftover processes."""
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunError(f"another trial is running in {folder}; wait for it or choose another --out") from error
    _end_marked(f"{folder}:")
    return lock


def _end_marked(text: str) -> None:
    """Kill marked processes until none is left: one may have started another meanwhile, and dying takes a moment."""
    until = time.monotonic() + STOP
    while (pids := _marked(text)) and time.monotonic() < until:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(text: str) -> list[int]:
    """The ids of trial processes whose mark starts with `text`."""
    mark, pids = f"{_MARK}={text}".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in entry.read_bytes():
                pids.append(int(entry.parent.name))
    return pids


def free_port() -> int:
    """A port that no process listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def check_installed() -> None:
    """Raise if Flower is not installed."""
    _tool("flower-superlink")


def _tool(name: str) -> str:
    """The path of a Flower program, next to our own interpreter."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RunError(f"{name} is not installed; run: pip install 'paraaegis[flower]'")
    return str(path)
