"""Starts a command once for each process of a run, by torchrun's own agent, and finds out what ended it.

Each process says in a file why it fails (`reporting_failure`), so that the user reads the first cause and not what
followed from it on the other ranks. Loads torch only to launch.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dapo_cli.config.schema import LaunchConfig
from dapo_cli.errors import (
    Diverged,
    ForPeople,
    OutOfSync,
    ProcessFailed,
    RankFailed,
    RunStopped,
    SelftestFailed,
    UserError,
)
from dapo_cli.interrupt import StopRequest, say_stopping, stop_with_parent

REPORTS = "DAPO_REPORTS"  # folder where launched processes leave their pids and failures
LAUNCHER = "DAPO_LAUNCHER"  # its process id
RESULT = "result.json"
RENDEZVOUS_S = 900
SHUTDOWN_S = 5  # what the others are given to end by themselves after one has failed
INTERRUPTED = 130

# What the other ranks see when one is gone; never the cause.
PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "connectFullMesh",
    "remote process exited",
    "communicator was aborted",
    "Broken pipe",
)


def started_by_launcher() -> bool:
    """Whether `launch`, torchrun, or what speaks its variables has started this process as one of a run's."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()


def check_launcher(config: LaunchConfig, *, single: bool) -> None:
    """Raises UserError where the recipe asks for another number of processes than this process's launcher started, or
    its learner is a `single` process."""
    asked, started = config.nodes * config.processes_per_node, int(os.environ["WORLD_SIZE"])
    if single and started > 1:
        raise UserError(
            f"learner single is one process, but a launcher started {started}: choose learner=fsdp or learner=deepspeed"
        )
    if asked not in (1, started):
        raise UserError(
            f"launch.nodes x launch.processes_per_node = {asked} processes, but a launcher started {started} (RANK, "
            "LOCAL_RANK and WORLD_SIZE are set): leave launch.* out under one, or unset these variables"
        )


def launch(config: LaunchConfig, arguments: Sequence[str], threads: int | None, name: str = "dapo") -> Any:
    """Run `python ARGUMENTS` in every process of this node, to the end; nodes meet those of the same `name` alone.
    Returns what one process gave to `report_result`, None where none did.

    Ctrl-C and SIGTERM are passed on once, for the processes to stop in their own time; a second one ends all at once.
    Raises what the processes raised where it is meant for people, else ProcessFailed with the first cause.
    """
    with tempfile.TemporaryDirectory(prefix="dapo-launch-") as folder:
        reports = Path(folder)
        agent = _Agent(config, arguments, folder, name)
        environment = {
            REPORTS: folder,
            LAUNCHER: str(os.getpid()),
            "OMP_NUM_THREADS": str(threads or max(1, len(os.sched_getaffinity(0)) // config.processes_per_node)),
        }
        if config.max_restarts:
            # Else processes that start again meet the addresses of those before them ("connectFullMesh failed").
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if config.nodes > 1:
            told = f"waiting for {config.nodes} nodes at {config.rendezvous}, for at most {RENDEZVOUS_S // 60} minutes"
            print(told, file=sys.stderr, flush=True)
        with _passing_on(environment), _passing_signals_on(reports, config.processes_per_node):
            agent.start()
            while agent.is_alive():
                agent.join(timeout=0.1)
        if agent.error is not None:
            raise _cause(agent.error, reports, config)
        result = reports / RESULT
        return json.loads(result.read_text()) if result.exists() else None


class _Agent(threading.Thread):
    """torchrun's agent outside of the main thread, where it leaves signals alone."""

    def __init__(self, config: LaunchConfig, arguments: Sequence[str], folder: str, name: str) -> None:
        super().__init__(daemon=True)
        self.config, self.arguments, self.folder = config, arguments, folder
        self.run_id = hashlib.sha256(name.encode()).hexdigest()
        self.error: BaseException | None = None

    def run(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig as AgentConfig
        from torch.distributed.launcher.api import elastic_launch

        for name in ("torch.distributed.elastic", "torch.distributed.launcher"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        alone = self.config.nodes == 1
        settings = AgentConfig(
            min_nodes=self.config.nodes,
            max_nodes=self.config.nodes,
            nproc_per_node=self.config.processes_per_node,
            run_id=self.run_id,
            rdzv_backend="c10d",
            rdzv_endpoint=self.config.rendezvous or "localhost:0",
            rdzv_configs={"join_timeout": RENDEZVOUS_S},
            local_addr="localhost" if alone else None,
            max_restarts=self.config.max_restarts,
            shutdown_timeout=SHUTDOWN_S,
            logs_specs=DefaultLogsSpecs(log_dir=self.folder),
        )
        try:
            elastic_launch(settings, entrypoint=sys.executable)(*self.arguments)
        except BaseException as error:
            self.error = error


@contextlib.contextmanager
def _passing_on(environment: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _passing_signals_on(reports: Path, processes: int) -> Iterator[None]:
    """Once all processes of this node can stop in their own time (`accept_signals`); before, a signal ends them."""
    asked = False

    def handle(number: int, _frame: Any) -> None:
        nonlocal asked
        pids = [int(path.read_text()) for path in reports.glob("pid.*")]
        if asked or len(pids) < processes:
            shutil.rmtree(reports, ignore_errors=True)
            os._exit(INTERRUPTED)  # the processes die with this one
        asked = True
        say_stopping(signal.Signals(number).name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    previous = {number: signal.signal(number, handle) for number in StopRequest.SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def reports_failures() -> bool:
    """Whether `launch` of this module has started this process."""
    return REPORTS in os.environ


@contextlib.contextmanager
def reporting_failure() -> Iterator[None]:
    """Of a process that `launch` started: what is raised inside goes into its report, and ends it. Elsewhere: nothing.

    A process that comes up in a restart although the run ended on purpose leaves at once.
    """
    if not reports_failures():
        yield
        return
    reports, rank = Path(os.environ[REPORTS]), os.environ["RANK"]
    stop_with_parent(int(os.environ[LAUNCHER]), signal.SIGKILL)
    (reports / f"pid.{rank}").unlink(missing_ok=True)  # of an earlier attempt
    if any(report["kind"] for report in _reports(reports)):
        leave(1)
    try:
        yield
    except BaseException as error:
        report = {
            "time": time.time(),
            "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
            "rank": int(rank),
            "kind": type(error).__name__ if isinstance(error, (ForPeople, KeyboardInterrupt)) else None,
            "text": str(error.args[0] if error.args else error),
            "followed": isinstance(error, RankFailed) or any(sign in str(error) for sign in PEER_LOST),
            "traceback": "".join(traceback.format_exception(error)),
        }
        unfinished = reports / f"{rank}.tmp"
        unfinished.write_text(json.dumps(report))
        unfinished.rename(reports / f"failure.{rank}.{report['attempt']}")
        leave(1)


def report_result(result: Any) -> bool:
    """Hand a JSON-able result to the `launch` that started this process; False where none did."""
    if not reports_failures():
        return False
    (Path(os.environ[REPORTS]) / RESULT).write_text(json.dumps(result))
    return True


def leave(status: int) -> NoReturn:
    """End without the interpreter's clean-up: with threads of gloo about, it can abort, or wait for peers that are
    gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def accept_signals() -> None:
    """Of a process that `launch` started: from now on it stops in its own time where the launcher passes a signal."""
    if reports_failures():
        (Path(os.environ[REPORTS]) / f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))


def _reports(folder: Path) -> list[dict[str, Any]]:
    """Failures of the last attempt, those first that did not follow from another one."""
    reports = [json.loads(path.read_text()) for path in folder.glob("failure.*")]
    last = max((report["attempt"] for report in reports), default=0)
    return sorted(
        (report for report in reports if report["attempt"] == last or report["kind"]),
        key=lambda report: (report["kind"] is None, report["followed"], report["time"]),
    )


def _cause(error: BaseException, folder: Path, config: LaunchConfig) -> BaseException:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    if isinstance(error, RendezvousError):
        return UserError(
            f"launch.nodes = {config.nodes}: the nodes did not meet at launch.rendezvous = {config.rendezvous} "
            f"({type(error).__name__}): start the same command on each of them, and name one that all can reach"
        )
    if not isinstance(error, ChildFailedError):
        return error
    kinds = {
        kind.__name__: kind for kind in (UserError, Diverged, OutOfSync, RunStopped, SelftestFailed, KeyboardInterrupt)
    }
    first = next(iter(_reports(folder)), None)
    if first is not None and first["kind"]:
        return kinds[first["kind"]](first["text"])
    killed = {
        rank: failure
        for rank, failure in error.failures.items()
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
    }
    if first is None or (killed and first["followed"]):
        for rank, failure in sorted(killed.items(), key=lambda item: item[1].timestamp):
            name = signal.Signals(-failure.exitcode).name
            reason = "; where nobody sent that, memory ran out (see the kernel's log)" if name == "SIGKILL" else ""
            return ProcessFailed(f"rank {rank} (process {failure.pid}) was killed by {name}{reason}")
        return ProcessFailed(str(error))
    if first["followed"] and config.nodes > 1:
        return ProcessFailed(f"rank {first['rank']} lost a rank of another node, which says why ({first['text']})")
    return ProcessFailed(f"rank {first['rank']}:\n{first['traceback'].rstrip()}")
