"""What reaches Weights & Biases, read back from the files that it leaves offline, and what its faults do to a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dapo_cli.config.schema import TrackingConfig, WandbMode
from dapo_cli.tracking import wandb_tracker
from dapo_cli.tracking.file_tracker import FileTracker
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.trackers import Trackers
from dapo_cli.tracking.wandb_tracker import WandbTracker
from dapo_cli.tracking.wandb_worker import MOST_CHARACTERS, Worker, completions_table, run_id
from tests.unit import report_folders
from tests.unit.test_tracking import run_tracker, step_figures
from tests.unit.wandb_file import artifacts, history, stored_records

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = TrackingConfig(wandb=WandbMode.offline)
KEY = "a" * 40


def manifest_of(steps: int, **more: object) -> dict:
    return report_folders.manifest_of(report_folders.recipe_with(5, steps)) | more


def start_folder(path: Path, manifest: dict) -> RunFolder:
    folder = RunFolder(path)
    folder.start(manifest, "run:\n  seed: 5\n", b"a patch", b"numpy==2.0\n")
    return folder


def stored_file(folder: RunFolder) -> Path:
    (stored,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    return stored


def test_offline_files_hold_figures_manifest_and_every_nth_sample(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("WANDB_DATA_DIR", raising=False)
    manifest = manifest_of(steps=40)  # a table every second step, then
    folder = start_folder(tmp_path, manifest)
    run_tracker(Trackers([FileTracker(folder, rollouts_per_step=3), WandbTracker(folder, manifest, OFFLINE)]))
    records = stored_records(stored_file(folder))

    (started,) = [record.run for record in records if record.HasField("run")]
    assert (started.run_id, started.display_name) == (run_id(manifest), tmp_path.name)
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert config["recipe"] == manifest["recipe"]

    rows = history(records)
    figures = {(row["step"], key): value for row in rows for key, value in row.items()}
    assert figures[0, "eval/accuracy"] == 0.461
    for step in (1, 2):
        metrics, timings = step_figures(step)
        expected = {key: value for key, value in (metrics | timings).items() if value is not None}
        assert {key: figures[step, key] for key in expected} == expected

    alerts = [record.alert for record in records if record.HasField("alert")]
    assert [(alert.title, alert.text, alert.level) for alert in alerts] == [
        ("verifier_failures began at step 2", "37 of 512 verdicts failed.", "WARN")
    ]

    (files,) = artifacts(records, "run-manifest")
    assert {name: file.read_bytes() for name, file in files.items()} == {
        name: (tmp_path / name).read_bytes()
        for name in ("manifest.json", "recipe.yaml", "code.patch", "requirements.lock")
    }
    assert all(file.is_relative_to(tmp_path) for file in files.values())

    (sampled,) = [row for row in rows if "rollouts.path" in row]
    table = json.loads((stored_file(folder).parent / "files" / sampled["rollouts.path"]).read_text())
    chosen = read_lines(folder.rollouts_file(2))
    assert sampled["step"] == 2 and len(chosen) == 3
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == chosen


def test_a_changed_manifest_is_another_version_of_the_same_runs_artifact(tmp_path: Path) -> None:
    digests = []
    for name, changes in (("a", []), ("b", []), ("c", ["optimizer.lr: 1 in the run folder, 2 now"])):
        manifest = manifest_of(4, resumes=[{"step": 2, "changes": changes}])
        folder = start_folder(tmp_path / name, manifest)
        Worker(folder, WandbMode.offline, "a-project").work([])
        found = [record.artifact for record in stored_records(stored_file(folder)) if record.HasField("artifact")]
        digests += [(artifact.name, artifact.digest) for artifact in found]
    assert digests[0] == digests[1] != digests[2] and digests[0][0] == digests[2][0]


def test_long_texts_lose_their_middle_in_a_table() -> None:
    text = "a" * MOST_CHARACTERS + "b" * 5
    table = completions_table([{"step": 1, "completion": text}, {"step": 1, "completion": text[5:]}])
    half = MOST_CHARACTERS // 2
    shortened = "a" * half + " [… 5 characters …] " + "a" * (half - 5) + "b" * 5
    assert [row[1] for row in table.data] == [shortened, text[5:]]


def test_a_wandb_that_fails_is_told_once_and_ends_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = TrackingConfig(wandb=WandbMode.offline, wandb_project="a/b")
    tracker = WandbTracker(start_folder(tmp_path, manifest_of(2)), manifest_of(2), config)
    tracker.process.wait(60)
    run_tracker(tracker)
    told = capfd.readouterr().err
    assert told.count("the run goes on") == 1 and "Traceback" not in told


def test_a_wandb_that_waits_for_ever_holds_up_no_step_and_not_the_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(wandb_tracker, "CLOSE_TIMEOUT_S", 0.5)
    tracker = WandbTracker(start_folder(tmp_path, manifest_of(2)), manifest_of(2), OFFLINE)
    assert (service := started_service(tracker.process.pid))
    os.kill(tracker.process.pid, signal.SIGSTOP)
    for step in range(200):  # more than a pipe holds
        tracker.step(step, {f"a/figure_of_a_long_name_{place}": 0.5 for place in range(50)})
    with pytest.warns(UserWarning, match="wandb: its process hung"):
        tracker.close()
    assert tracker.process.returncode == -signal.SIGKILL and gone(service)


def started_service(pid: int) -> int:
    """The process of wandb's service, once a worker has it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            if children := file.read_text().split():
                return int(children[0])
        time.sleep(0.05)
    raise AssertionError("no service")


def gone(pid: int) -> bool:
    """Whether a process ends; one that nobody waits for stays a zombie."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


HANGING = """
import sys, threading
from dapo_cli.tracking import wandb_worker
wandb_worker.GIVE_UP_S = 0.5
wandb_worker.Worker.work = lambda self, messages: threading.Event().wait()
wandb_worker.main(sys.argv[1], "offline", "a-project")
"""


def test_the_process_gives_up_on_a_wandb_that_never_finishes(tmp_path: Path) -> None:
    start_folder(tmp_path, manifest_of(2))
    command = [sys.executable, "-c", HANGING, str(tmp_path)]
    process = subprocess.Popen(command, env=environment(tmp_path), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    service = started_service(process.pid)
    os.kill(service, signal.SIGSTOP)  # as deaf to its parent's end as one that waits for its server
    _, told = process.communicate(timeout=60)  # the pipe's other ends are closed, too: none is left that holds it
    assert process.returncode == 1 and b"not done" in told and gone(service)


UNREACHABLE = """
import sys
from dapo_cli.tracking import wandb_worker
from dapo_cli.tracking.wandb_tracker import check_login
check_login()
wandb_worker.INIT_TIMEOUT_S = 1.0
wandb_worker.main(sys.argv[1], "online", "a-project")
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Without a key, a login or settings of the machine's own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "NETRC", "XDG"))}
    return kept | {"HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def test_a_server_that_cannot_be_reached_leaves_the_files_for_a_later_sync(tmp_path: Path) -> None:
    start_folder(tmp_path / "run", manifest_of(2))
    result = subprocess.run(
        [sys.executable, "-c", UNREACHABLE, str(tmp_path / "run")],
        input='{"step": 1, "judged/accuracy": 0.5}\n{"step": 2, "judged/accuracy": NaN}\n',
        env=environment(tmp_path, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY=KEY),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the run goes on") == 1 and "wandb sync" in result.stderr
    rows = history(stored_records(stored_file(RunFolder(tmp_path / "run"))))
    assert {row["step"] for row in rows if "judged/accuracy" in row} == {1, 2}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WANDB_MODE": "offline"}, "wandb has no API key"),
        ({"WANDB_API_KEY": "short"}, "WANDB_API_KEY invalid"),
    ],
)
def test_an_online_run_without_a_key_is_refused_before_any_work(tmp_path: Path, variables, told: str) -> None:
    arguments = ["train", "quickstart", f"run.dir={tmp_path / 'run'}", "tracking.wandb=online", "model.path=nowhere"]
    result = subprocess.run(
        [sys.executable, "-m", "dapo_cli", *arguments],
        env=environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert told in result.stderr and "tracking.wandb=offline" in result.stderr and "wandb login" in result.stderr
    assert not (tmp_path / "run").exists()
