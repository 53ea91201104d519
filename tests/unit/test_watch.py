"""`dapo watch`: dots by hand, a frame from run folders in every state, and the command on a terminal and in a pipe."""

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dapo_cli.cli.app import run
from dapo_cli.errors import UserError
from dapo_cli.tracking.lock import hold_lock, lock_held
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.watch.frame import frame
from dapo_cli.watch.plot import Bounds, bounds_of, line, marks
from dapo_cli.watch.snapshot import Activity, Snapshot, read_snapshot
from tests.unit.report_folders import WINDOWS, health_event, recipe_with, step_line, write_lines, write_run

ROOT = Path(__file__).resolve().parents[2]
UNIT = Bounds(0, 1, 0, 1)


# Dots --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "columns", "rows", "drawn"),
    [
        ([(0, 0), (1, 0)], 3, 1, ["⣀⣀⣀"]),
        ([(0, 1), (1, 1)], 3, 1, ["⠉⠉⠉"]),
        ([(0, 0), (0, 1)], 2, 2, ["⡇ ", "⡇ "]),
        ([(1, 0), (1, 1)], 2, 2, [" ⢸", " ⢸"]),
        ([(0, 0), (1, 1)], 2, 2, [" ⡜", "⡜ "]),  # eight dots high, four wide: two dots up for each across
        ([(0.4, 0.45)], 3, 3, ["   ", " ⠄ ", "   "]),  # the third of six dots across, the seventh of twelve down
        ([], 2, 1, ["  "]),
    ],
)
def test_lines_by_hand(points, columns: int, rows: int, drawn: list[str]) -> None:
    assert line(points, UNIT, columns, rows) == drawn


def test_each_dot_of_a_character_has_its_own_bit() -> None:
    # the numbers of Unicode's dots, from the top: left column 1 2 3 7, right column 4 5 6 8
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    drawn = [line([(x, 3 - y)], Bounds(0, 1, 0, 3), columns=1, rows=1)[0] for x, y in places]
    assert [ord(character) - 0x2800 for character in drawn] == [1 << dot for dot in range(8)]


def test_marks_lie_where_the_line_does() -> None:
    points = [(0, 0), (5, 10), (10, 5)]
    assert marks(points, Bounds(0, 10, 0, 10), columns=11, rows=3) == {(0, 2), (5, 0), (10, 1)}


def test_equal_values_lie_in_the_middle() -> None:
    assert bounds_of([(1, 4.0), (2, 4.0)], 0, 2) == Bounds(0, 2, 2.0, 6.0)
    assert bounds_of([(1, 0.0)], 0, 1) == Bounds(0, 1, -1.0, 1.0)
    assert bounds_of([(1, -2.0), (3, 4.0)], 0, 3) == Bounds(0, 3, -2.0, 4.0)


numbers = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30), st.integers(1, 20), st.integers(1, 6))
def test_every_point_is_drawn_and_nothing_outside(points, columns: int, rows: int) -> None:
    bounds = bounds_of(points, min(x for x, _ in points), max(x for x, _ in points))
    drawn = line(points, bounds, columns, rows)
    assert [len(row) for row in drawn] == [columns] * rows
    dots = {
        (2 * column + x, 4 * row + y)
        for row, text in enumerate(drawn)
        for column, character in enumerate(text)
        for x, bits in enumerate(((1, 2, 4, 64), (8, 16, 32, 128)))
        for y, bit in enumerate(bits)
        if character != " " and (ord(character) - 0x2800) & bit
    }
    assert marks(points, bounds, 2 * columns, 4 * rows) <= dots


# States ------------------------------------------------------------------------------------------------------------


def unfinished(path: Path, steps: int = 2, of: int = 4, **changed: object) -> RunFolder:
    """A run in its middle; a step takes 2 s."""
    recipe = recipe_with(0, of, **changed) | {"model": {"path": "a/model"}}
    write_run(path, recipe, [(0, 0.25), (2, 0.5)], [step_line(step) for step in range(1, steps + 1)])
    (path / "export").rmdir()
    amend(path, command=["dapo", "train", "my_recipe.yaml", "run.steps=4"])
    return RunFolder(path)


def amend(path: Path, **entries: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | entries))


def snapshot_of(path: Path) -> Snapshot:
    snapshot = read_snapshot(path)
    assert snapshot is not None
    return snapshot


def text_of(snapshot: Snapshot, width: int = 80, height: int = 24) -> str:
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(frame(snapshot, width, height))
    return captured.get()


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run")
    assert snapshot_of(folder.path).activity is Activity.STOPPED
    with folder.lock():
        assert snapshot_of(folder.path).activity is Activity.RUNNING
        assert "running, ETA 0:04" in text_of(snapshot_of(folder.path))  # 2 steps of 2 s
    assert snapshot_of(folder.path).activity is Activity.STOPPED
    folder.export.mkdir()
    finished = snapshot_of(folder.path)
    assert finished.activity is Activity.FINISHED and "ETA" not in text_of(finished) and " ago" not in text_of(finished)


def test_a_paused_run_says_what_it_waits_for_and_no_time_to_go(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run")
    folder.paused_file.touch()
    with folder.lock():
        paused = snapshot_of(folder.path)
        assert paused.activity is Activity.PAUSED and paused.activity.may_go_on
        text = text_of(paused, width=200)
        assert f"paused: remove {folder.paused_file} to go on" in text and "ETA" not in text and "running" not in text
    assert snapshot_of(folder.path).activity is Activity.STOPPED  # the next start removes the file


def test_without_locks_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unfinished(tmp_path / "run")
    folder.lock_file.touch()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert snapshot_of(folder.path).activity is Activity.UNKNOWN
    folder.export.mkdir()
    assert snapshot_of(folder.path).activity is Activity.FINISHED


def test_a_look_at_the_lock_keeps_no_run_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert lock_held(file) is False  # and makes none
    assert not file.exists()
    file.touch()
    descriptor = os.open(file, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # one who looks, and is slow at it
    assert lock_held(file) is False
    looking = threading.Timer(0.05, os.close, [descriptor])
    looking.start()
    with hold_lock(file, "run.dir"):
        assert lock_held(file) is True
    looking.join()


def test_a_run_may_begin_where_nothing_is_and_nowhere_else(tmp_path: Path) -> None:
    assert read_snapshot(tmp_path / "later") is None
    (tmp_path / "empty").mkdir()
    assert read_snapshot(tmp_path / "empty") is None
    (tmp_path / "starting").mkdir()
    with RunFolder(tmp_path / "starting").lock():
        (tmp_path / "starting" / "selftest.json").write_text("{}")
        assert read_snapshot(tmp_path / "starting") is None
    (tmp_path / "file").touch()
    for path, told in ((tmp_path, "no run folder"), (tmp_path / "file", "is a file")):
        with pytest.raises(UserError, match=told):
            read_snapshot(path)


def test_lines_half_written_and_lines_cut_by_a_resume(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run", steps=3)
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 4, "judged/acc')
    assert "step 3 of 4" in text_of(snapshot_of(folder.path))
    folder.rewind(1)
    rewound = text_of(snapshot_of(folder.path))
    assert "step 1 of 4" in rewound and "25.0% ± 4.4 (step 0)" in rewound and "(step 2)" not in rewound
    for file in (folder.metrics_file, folder.timings_file, folder.evals_file):
        file.unlink()
    nothing = text_of(snapshot_of(folder.path))
    assert "step 0 of 4" in nothing and "no evaluation recorded" in nothing and "no step finished yet" in nothing
    assert "no figure yet" in nothing


# Frames ------------------------------------------------------------------------------------------------------------


def test_a_frame_says_what_the_run_is_and_how_far_it_came(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run", run__budget_rollouts=160)
    amend(folder.path, algorithm={"line": "DAPO: the same algorithm"})
    for step in (1, 2):
        (folder.checkpoints / f"step_{step:06d}").mkdir(parents=True)
    (folder.checkpoints / "step_000003.unfinished").mkdir()
    text = text_of(snapshot_of(folder.path), width=120)
    for told in (
        "stopped",
        "step 2 of 4",
        "my_recipe.yaml, model a/model",
        "DAPO: the same algorithm",
        "25.0% ± 4.4 (step 0) -> 50.0% ± 5.0 (step 2)",
        "0:03, 1.5 s a step, checkpoint of step 2",  # without evaluations
        "25% of run.budget_rollouts=160",  # 2 steps of 20
        "accuracy 40.0%  ● held-out 50.0%",
        "reward -0.20",
        "informative 50%",
        "length 32.0",
        "tokens/s no figure yet",  # those folders have none
    ):
        assert told in text, told
    assert "health" not in text  # it kept no health.jsonl


def test_eta_counts_the_steps_since_the_last_resume(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run", steps=3, of=10)
    write_lines(folder.timings_file, [{"step": step, "seconds/step": 10.0**step} for step in (1, 2, 3)])
    amend(folder.path, resumes=[{"step": 1, "changes": []}])
    with folder.lock():
        assert "ETA 1:04:10" in text_of(snapshot_of(folder.path))  # (100 + 1000) / 2 s for each of 7 steps


def test_alarms_that_are_on_are_told_in_full_and_past_ones_shortly(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run")
    write_lines(folder.health_file, [])
    assert "no alarm" in text_of(snapshot_of(folder.path))
    events = [
        health_event(1, "entropy_collapse", "began", 1),
        health_event(2, "entropy_collapse", "ended", 1),
        health_event(2, "resampling_spiral", "began", 2),
    ]
    write_lines(folder.health_file, events)
    text = text_of(snapshot_of(folder.path))
    told = " ".join(text.split())  # in two lines
    assert "! alarm resampling_spiral since step 2, note: 10% of the groups were informative" in told
    assert "past alarms entropy_collapse (steps 1 to 2)" in text
    assert "informative ! 50%" in text and "entropy ! " not in text  # only what raised the one that is on
    write_lines(folder.health_file, events[:2])
    assert "no alarm now" in text_of(snapshot_of(folder.path))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (40, 12), (200, 60), (79, 10), (20, 5)])
def test_a_frame_fits_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    folder = unfinished(tmp_path / ("a_long_name_" * 8), steps=50, of=60)
    amend(folder.path, algorithm={"line": "not DAPO: " + "because " * 40})
    write_lines(folder.health_file, [health_event(9, rule, "began", 9) for rule in WINDOWS])
    lines = text_of(snapshot_of(folder.path), width, height).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert any("grad_nor" in line for line in lines)  # the latest alarm
    if height >= 24:
        assert sum("step 50" in line for line in lines) == 2  # the bar, and the axis below the panels
        assert "0.500" in "\n".join(lines)  # entropy's panel


# The command -------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}


def test_in_a_pipe_it_is_one_frame_of_plain_text_and_loads_nothing_heavy(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run")
    script = "import sys; from dapo_cli.cli.app import run; status = run(['watch', sys.argv[1]], debug=True)\n"
    script += "heavy = {'torch', 'transformers', 'wandb', 'matplotlib', 'omegaconf'} & set(sys.modules)\n"
    script += "sys.exit(status or ' '.join(heavy) or 0)"
    with folder.lock():
        command = [sys.executable, "-c", script, str(folder.path)]
        result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert "step 2 of 4" in result.stdout and "\x1b" not in result.stdout and len(result.stdout.splitlines()) <= 24


def test_a_terminal_without_utf_8_gets_ascii_marks(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run")
    command = [sys.executable, "-m", "dapo_cli", "watch", str(folder.path)]
    plain = environment() | {"PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    drawn = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60).stdout
    assert "?" not in drawn and "accuracy 40.0%  o held-out 50.0%" in drawn and "50.0% ~ 5.0 (step 2)" in drawn
    assert "*****" in drawn  # a line


def test_what_is_no_run_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", str(tmp_path / "gone"), "--once"], debug=False) == 2
    assert "no run has started there" in capsys.readouterr().err


class Terminal:
    """`dapo watch` on a terminal of 80 x 24."""

    def __init__(self, folder: RunFolder) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # whatever started the tests may ignore it
            os.execve(sys.executable, [sys.executable, "-m", "dapo_cli", "watch", str(folder.path)], environment())
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.seen = ""

    def read_until(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.seen:
            ready = select.select([self.descriptor], [], [], 1.0)[0]
            assert time.monotonic() < deadline, f"no {words!r} in {self.seen[-2000:]!r}"
            if not ready:
                continue
            self.seen += os.read(self.descriptor, 1 << 16).decode(errors="replace")

    def end(self) -> tuple[int, str]:
        """Exit code, and what stays on the screen."""
        with contextlib.suppress(OSError):  # the other end is closed
            self.read_until("\0")
        left = self.seen.rsplit("\x1b[?1049l", 1)[-1]  # the alternate screen is left
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", left)


def test_on_a_terminal_it_waits_follows_and_ends_with_the_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    terminal = Terminal(folder)
    terminal.read_until("no run yet")
    with folder.lock():
        for file in unfinished(tmp_path / "prepared", steps=4).path.glob("*.json*"):
            file.rename(folder.path / file.name)
        terminal.read_until("running")
        folder.export.mkdir()
    status, left = terminal.end()
    assert status == 0 and "finished" in left and "step 4 of 4" in left


def test_ctrl_c_leaves_the_last_frame_and_exits_0(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "run")
    with folder.lock():
        terminal = Terminal(folder)
        terminal.read_until("running")
        os.kill(terminal.pid, signal.SIGINT)
        status, left = terminal.end()
    assert status == 0 and "running" in left and "Traceback" not in terminal.seen
