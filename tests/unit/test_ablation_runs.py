"""An ablation's runs with a stand-in for `dapo train`: order, failures, signals, going on, and the Slurm script."""

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from dapo_cli.ablation import devices
from dapo_cli.ablation.devices import places_for, visible_gpus
from dapo_cli.ablation.folder import AblationFolder
from dapo_cli.ablation.plan import read_plan
from dapo_cli.ablation.points import Ablation, Run, load_ablation
from dapo_cli.ablation.runner import Event, Runner
from dapo_cli.cli import ablate as command
from dapo_cli.cli import ablate_display
from dapo_cli.cli.ablate_display import PlainView
from dapo_cli.cli.app import run as run_dapo
from dapo_cli.errors import UserError
from dapo_cli.interrupt import stop_with_parent
from dapo_cli.tracking.files import read_lines
from tests.unit.report_folders import manifest_of

# What a run does, by its point: `broken` fails, `slow` works until a signal, `stubborn` does not stop at the first one.
STAND_IN = """\
import json, os, pathlib, signal, sys, time
overrides = dict(text.split("=", 1) for text in sys.argv[2:])
folder = pathlib.Path(overrides["run.dir"])
folder.mkdir(parents=True, exist_ok=True)
with open(folder / "starts.jsonl", "a") as starts:
    given = [os.environ["OMP_NUM_THREADS"], os.environ.get("CUDA_VISIBLE_DEVICES"), sys.argv[1:]]
    print(json.dumps(given), file=starts)
told, ready = [], False
def handle(number, frame):
    told.append(number)
    if "stubborn" not in str(folder):
        print("SIGTERM: stopped after step 1 of 2; the same command goes on.", flush=True)
        os._exit(3)
    if len(told) > 1:
        os._exit(130)
signal.signal(signal.SIGTERM, handle)
def write(name, *records):
    (folder / name).write_text("".join(json.dumps(record) + "\\n" for record in records))
if (template := pathlib.Path(sys.argv[0]).with_name("manifest.json")).exists():
    manifest = json.loads(template.read_text())
    for key in ("run.seed", "data.seed"):
        section, leaf = key.split(".")
        manifest["recipe"][section][leaf] = int(overrides[key])
    (folder / "manifest.json").write_text(json.dumps(manifest))
first = {"step": 1, "judged/accuracy": 0.5, "sampler/rollouts_total": 60}
write("metrics.jsonl", first)
print("Error: of a worker that is started again", flush=True)
if "broken" in str(folder) and not (folder.parent / "mended").exists():
    print("Error: recipe: no good\\nsome advice")
    sys.exit(2)
while ("slow" in str(folder) or "stubborn" in str(folder)) and not (folder.parent / "mended").exists():
    ready or (folder / "ready").touch()
    ready = True
    time.sleep(0.02)
write("metrics.jsonl", first, first | {"step": 2, "sampler/rollouts_total": 120})
seconds = {"seconds/step": 5, "seconds/evaluate": 2, "seconds/checkpoint": 1}
write("timings.jsonl", {"step": 1} | seconds, {"step": 2} | seconds)
if "silent" not in str(folder):
    write("evals.jsonl", {"step": 2, "eval/prompts": 9, "eval/accuracy": (1 + int(overrides["run.seed"])) / 4})
(folder / "export").mkdir()
"""


def plan_of(folder: Path, *names: str, more: str = "") -> str:
    """A plan with a point for each name."""
    points = "".join(f"  - {{name: {name}, set: [data.seed={number}]}}\n" for number, name in enumerate(names))
    path = folder / "plan.yaml"
    path.write_text(f"recipe: quickstart\ndir: {folder / 'out'}\nkind: list\npoints:\n{points}{more}\n")
    return str(path)


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(STAND_IN)
    stand_in = partial(Runner, command=(sys.executable, "-S", str(tmp_path / "train.py")))
    monkeypatch.setattr(command, "Runner", stand_in)
    monkeypatch.setattr(command, "check_inputs", lambda runs: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def ablate(plan: str, *options: str) -> int:
    return run_dapo(["ablate", plan, *options], debug=False)


def events(folder: Path) -> list[tuple[str, str]]:
    """(run, event) of all runs, in the order of their times."""
    found = []
    for file in (folder / "out/points").glob("*/*.status.jsonl"):
        run = f"{file.parent.name}/{file.name.removesuffix('.status.jsonl')}"
        found += [(record["time"], run, record["event"]) for record in read_lines(file)]
    return [(run, event) for _, run, event in sorted(found)]


def write_manifest(folder: Path, plan: str) -> None:
    """What the stand-in's runs are told to leave as their manifests."""
    manifest = manifest_of(tree_of(load_ablation(read_plan(plan)).points[0]))
    (folder / "manifest.json").write_text(json.dumps(manifest))


def starts(folder: Path, run: str) -> int:
    return len((folder / "out" / "points" / run / "starts.jsonl").read_text().splitlines())


def test_a_failed_run_stops_no_other_and_is_left_out_until_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, "broken", "good", more="seeds: 2")
    write_manifest(tmp_path, plan)
    monkeypatch.setenv("COLUMNS", "200")
    assert ablate(plan, "--jobs", "1") == 1
    assert events(tmp_path) == [
        ("broken/seed_0", "started"),
        ("broken/seed_0", "failed"),
        ("good/seed_0", "started"),
        ("good/seed_0", "done"),
        ("broken/seed_1", "started"),
        ("broken/seed_1", "failed"),
        ("good/seed_1", "started"),
        ("good/seed_1", "done"),
    ]
    out = capsys.readouterr().out
    assert "failed       broken/seed_0: Error: recipe: no good (1 of 4)" in out
    table = [line.split() for line in out.splitlines() if line.split()[:1] in (["good"], ["broken"])]
    assert table == [["broken", "–", "–", "–", "–", "–"], ["good", "37.5", "±", "158.8", "25.0", "50.0", "–", "37.5"]]
    assert f"dapo report {tmp_path / 'out'} -o report.html" in out
    status = read_lines(tmp_path / "out/points/broken/seed_0.status.jsonl")[1]
    assert status["exit_code"] == 2 and status["message"] == "Error: recipe: no good"
    assert "some advice" in (tmp_path / "out/points/broken/seed_0.log").read_text()

    assert ablate(plan) == 1
    assert "2 of 4 runs are done, 2 failed before and left out" in capsys.readouterr().out
    assert starts(tmp_path, "broken/seed_0") == starts(tmp_path, "good/seed_0") == 1
    (tmp_path / "out/points/broken/mended").touch()
    assert ablate(plan, "--retry-failed") == 0
    assert starts(tmp_path, "broken/seed_0") == 2 and starts(tmp_path, "good/seed_0") == 1


def test_a_file_in_the_place_of_a_run_fails_that_run_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(tmp_path, "one", "other")
    blocked = tmp_path / "out/points/one/seed_0"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way")
    assert ablate(plan, "--jobs", "1") == 1
    assert [event for _, event in events(tmp_path)] == ["started", "failed", "started", "done"]
    assert "failed: one/seed_0" in capsys.readouterr().out and blocked.read_text() == "in the way"


def test_each_run_gets_its_recipe_seed_folder_and_threads(tmp_path: Path) -> None:
    assert ablate(plan_of(tmp_path, "one", "two", more="base: [run.threads=3]\nseeds: [5]")) == 0
    record = json.loads((tmp_path / "out/ablation.json").read_text())
    for number, name in enumerate(("one", "two")):
        folder = tmp_path / "out" / record["points"][number]["runs"][0]["dir"]
        threads, devices, (recipe, *overrides) = json.loads((folder / "starts.jsonl").read_text())
        assert (threads, devices) == ("3", "") and recipe.endswith("recipes/quickstart.yaml")
        own = ["run.seed=5", f"run.dir={tmp_path / 'out/points' / name / 'seed_5'}"]
        assert overrides == record["points"][number]["overrides"] + own
        assert overrides == ["run.threads=3", f"data.seed={number}", *own]
    assert (tmp_path / "out/plan.yaml").read_bytes() == (tmp_path / "plan.yaml").read_bytes()


def interrupting(monkeypatch: pytest.MonkeyPatch, folder: Path, run: str, times: int) -> None:
    """Send SIGINT to this process as soon as a run is under way, as Ctrl-C does."""
    sent = []

    def refresh(self: PlainView) -> None:
        if (folder / "out/points" / run / "ready").exists() and len(sent) < times:
            sent.append(os.kill(os.getpid(), signal.SIGINT))

    monkeypatch.setattr(PlainView, "refresh", refresh)


def test_a_signal_lets_runs_save_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path, "good", "slow", "later")
    interrupting(monkeypatch, tmp_path, "slow/seed_0", times=1)
    assert ablate(plan, "-j", "1") == 3
    assert "SIGINT: stopped with 1 of 3 runs done; the same command goes on." in capsys.readouterr().err
    assert events(tmp_path)[-1] == ("slow/seed_0", "interrupted")
    (tmp_path / "out/points/slow/mended").touch()
    assert ablate(plan, "-j", "1") == 0
    assert [starts(tmp_path, f"{name}/seed_0") for name in ("good", "slow", "later")] == [1, 2, 1]
    assert events(tmp_path)[-4:] == [
        ("slow/seed_0", "started"),
        ("slow/seed_0", "done"),
        ("later/seed_0", "started"),
        ("later/seed_0", "done"),
    ]


def test_a_second_signal_ends_them_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, "stubborn", "later")
    interrupting(monkeypatch, tmp_path, "stubborn/seed_0", times=2)
    assert ablate(plan, "-j", "1") == 130
    assert events(tmp_path) == [("stubborn/seed_0", "started"), ("stubborn/seed_0", "interrupted")]


def test_a_run_that_someone_else_stops_is_tried_again_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, "slow", "good")

    def refresh(self: PlainView) -> None:
        ready = tmp_path / "out/points/slow/seed_0/ready"
        if ready.exists():
            os.kill(read_lines(tmp_path / "out/points/slow/seed_0.status.jsonl")[0]["pid"], signal.SIGTERM)
            ready.unlink()

    monkeypatch.setattr(PlainView, "refresh", refresh)
    assert ablate(plan, "-j", "1") == 1
    assert events(tmp_path)[1] == ("slow/seed_0", "failed")
    assert events(tmp_path)[-1] == ("good/seed_0", "done")
    (tmp_path / "out/points/slow/mended").touch()
    assert ablate(plan, "--retry-failed") == 0


def test_a_run_whose_parent_died_before_it_could_ask_to_be_told_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-S", "-c", "pass"], preexec_fn=partial(stop_with_parent, -1))
    assert done.returncode == 130


def test_the_closing_table_names_what_it_leaves_out_and_quotes_references(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, "good", "silent")
    Path(plan).write_text(Path(plan).read_text().replace("{name: good,", "{name: good, reference: 48.9,"))
    write_manifest(tmp_path, plan)
    monkeypatch.setenv("COLUMNS", "200")
    assert ablate(plan) == 0
    out = capsys.readouterr().out
    assert "silent/seed_0 is unfinished, and left out of the table: all 2 steps, but no evaluation after" in out
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["good"]]
    assert "25.0" in row and row[-1] == "48.9"


def test_a_folder_takes_one_process_and_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(tmp_path, "one", "two")
    with AblationFolder(tmp_path / "out").lock(shared=False):
        assert ablate(plan) == 2
    assert f"dir={tmp_path / 'out'}: in use by process {os.getpid()}" in capsys.readouterr().err
    assert ablate(plan) == 0
    assert ablate(plan_of(tmp_path, "one", "two", more="base: [optimizer.lr=1]")) == 2
    message = capsys.readouterr().err
    assert "holds an ablation that differs" in message and "give another dir" in message
    assert ablate(plan_of(tmp_path, "one", "two", "three", more="seeds: 2")) == 0
    assert starts(tmp_path, "one/seed_0") == 1 and starts(tmp_path, "three/seed_1") == 1


def test_a_recipe_that_changed_under_its_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [quickstart, _self_]\noptimizer: {lr: 1e-4}\n")
    plan = plan_of(tmp_path, "one", "two")
    Path(plan).write_text(Path(plan).read_text().replace("quickstart", "mine.yaml"))
    assert ablate(plan) == 0
    folder = tmp_path / "out/points/two/seed_0"
    (point,) = [point for point in load_ablation(read_plan(plan)).points if point.name == "two"]
    manifest = dict.fromkeys(("started", "data", "model", "code", "packages", "hardware", "resumes"))
    (folder / "manifest.json").write_text(json.dumps(manifest | {"recipe": tree_of(point)}))
    assert ablate(plan) == 0
    recipe.write_text("defaults: [quickstart, _self_]\noptimizer: {lr: 1e-3}\n")
    assert ablate(plan) == 2
    assert "two/seed_0: optimizer.lr: 0.0001 in the run folder, 0.001 now" in capsys.readouterr().err


def tree_of(point: object) -> dict:
    from dapo_cli.config.load import plain_tree

    return plain_tree(point.recipe.config)  # type: ignore[attr-defined]


def test_a_run_that_steps_ended_before_its_budget_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stand-in judges 120 completions in its 2 steps, and trains for 4 s: 2 x (5 - 2 - 1)."""
    cases = [("rollouts", 120, False), ("rollouts", 121, True), ("seconds", 4.0, False), ("seconds", 4.5, True)]
    for by, amount, warned in cases:
        more = f"base: [data.prompts=64]\nmatch: {{by: {by}, amount: {amount}}}"
        plan = Path(plan_of(tmp_path, "one", "two", more=more)).rename(tmp_path / f"{by}{amount}.yaml")
        plan.write_text(plan.read_text().replace("recipe: quickstart", "recipe: two_steps.yaml"))
        (tmp_path / "two_steps.yaml").write_text("defaults: [quickstart, _self_]\nrun: {steps: 2}\n")
        assert ablate(str(plan)) == 0
        spent = {"rollouts": "120 of 121 rollouts", "seconds": "4 of 4.5 seconds"}[by]
        assert (f"one/seed_0: ended by run.steps = 2 with {spent}" in capsys.readouterr().out) is warned
        (tmp_path / "out").rename(tmp_path / f"out_{by}{amount}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give one PLAN"),
        (["PLAN", "--dry-run", "--only", "one/seed_0"], "give one of ['--dry-run', '--only']"),
        (["PLAN", "--only", "one/seed_9"], "--only one/seed_9: no run of the plan; did you mean one/seed_0?"),
        (["PLAN", "--only", "one/seed_0"], "is not laid out for one/seed_0"),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    plan = plan_of(tmp_path, "one", "two")
    assert run_dapo(["ablate", *(plan if option == "PLAN" else option for option in options)], debug=False) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out" / "points").exists()


def test_dry_run_prints_points_and_changes_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate(plan_of(tmp_path, "one", "two", more="seeds: 3"), "--dry-run") == 0
    out = capsys.readouterr().out
    assert "2 points x 3 seeds (0, 1, 2), matched by 40 steps" in out
    assert out.count("changed") == 1 and "changed    data.seed: 0 -> 1" in out
    assert "overrides  data.seed=1 run.threads=1" in out
    assert not (tmp_path / "out").exists()


def test_list_names_shipped_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_dapo(["ablate", "--list"], debug=False) == 0
    assert "ablations/paper_ladder_quickstart " in capsys.readouterr().out


def test_places_for_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def places(ablation: Ablation, jobs: int | None, gpus: int) -> list[str | None]:
        """CUDA_VISIBLE_DEVICES of each place on a machine with 6 CPU cores."""
        found = places_for(ablation, jobs, [str(place) for place in range(gpus)], cpus=6)
        return [place.get("CUDA_VISIBLE_DEVICES") for place in found]

    def ablation_of(*base: str) -> Ablation:
        return load_ablation(read_plan(plan_of(tmp_path, "one", "two", more=f"base: [{', '.join(base)}]")))

    plain, threads = ablation_of(), ablation_of("run.threads=2")
    assert places(plain, None, 0) == [None] * 6
    assert places(threads, None, 0) == [None] * 3
    assert places(plain, 2, 0) == [None] * 2
    assert places(plain, None, 3) == ["0", "1", "2"]
    two_each = ablation_of("learner=fsdp", "launch.processes_per_node=2", "run.threads=4")
    assert places(two_each, None, 0) == [None]
    assert places(two_each, None, 5) == ["0,1", "2,3"]
    assert places(two_each, 3, 4) == ["0,1", "2,3", "0,1"]
    with pytest.raises(UserError, match=r"launch\.processes_per_node = 2"):
        places(two_each, None, 1)
    by_seconds = load_ablation(read_plan(plan_of(tmp_path, "one", "two", more="match: {by: seconds, amount: 9}")))
    assert places(by_seconds, None, 0) == [None] and places(by_seconds, None, 3) == ["0"]
    assert places(by_seconds, 2, 3) == ["0", "1"]
    servers = ablation_of("rollout=vllm_server", "'rollout.servers=[http://a:1]'")
    assert places(servers, None, 4) == ["0"]
    with pytest.raises(UserError, match="--jobs 2"):
        places(servers, 2, 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert visible_gpus() == ["3", "5"]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('printf "GPU 0: H200 (UUID: GPU-1)\\n  MIG 1g Device 0\\nGPU 1: H200 (UUID: GPU-2)\\n"', ["0", "1"]),
        ("echo no devices were found; exit 6", []),
        ("exec sleep 30", None),
    ],
)
def test_a_driver_that_does_not_answer_is_no_machine_without_gpus(
    script: str, found: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(devices, "LIST_LIMIT_S", 1)
    if found is not None:
        assert visible_gpus() == found
        return
    with pytest.raises(UserError, match=r"nvidia-smi --list-gpus has not answered for 1 s.*CUDA_VISIBLE_DEVICES"):
        visible_gpus()


class Array:
    """The Slurm script of a plan, its tasks run by bash with stand-ins for `dapo` and Slurm's commands."""

    def __init__(self, folder: Path, plan: str, *options: str) -> None:
        self.folder, self.script = folder, folder / "array.sbatch"
        assert ablate(plan, "--slurm", str(self.script), *options) == 0
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.record("scontrol", 'printf "%s\\n" "$@"')

    def record(self, name: str, body: str) -> Path:
        file = self.bin / name
        file.write_text(f'#!/bin/bash\n{{ {body}\n}} >> "{self.folder}/{name}.said"\n')
        file.chmod(0o755)
        return file

    def said(self, name: str) -> list[str]:
        file = self.folder / f"{name}.said"
        return file.read_text().splitlines() if file.exists() else []

    def task(self, number: int, dapo: Path) -> int:
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "DAPO": str(dapo), "SLURM_JOB_ID": "77"}
        environment["SLURM_ARRAY_TASK_ID"] = str(number)
        return subprocess.run(["bash", str(self.script)], env=environment, cwd="/", timeout=60).returncode


def test_the_slurm_array_has_a_task_for_each_run(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "one", "two", more="seeds: 2\nbase: [run.threads=3]")
    array = Array(tmp_path, plan, "--jobs", "2")
    assert subprocess.run(["bash", "-n", str(array.script)]).returncode == 0
    options = [line.split()[1] for line in array.script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--array=0-3%2", "--requeue", "--signal=B:USR1@300", "--cpus-per-task=5"} <= set(options)
    record = json.loads((tmp_path / "out/ablation.json").read_text())
    assert [point["name"] for point in record["points"]] == ["one", "two"]
    dapo = array.record("dapo", 'printf "%s\\n" "$PWD" "$@"')
    for number, run in enumerate(["one/seed_0", "two/seed_0", "one/seed_1", "two/seed_1"]):
        assert array.task(number, dapo) == 0
        assert array.said("dapo")[-5:] == [os.getcwd(), "ablate", plan, "--only", run]


@pytest.mark.parametrize(("status", "requeued"), [(3, True), (0, False), (1, False)])
def test_at_the_time_limit_a_task_is_told_to_save_and_requeued(tmp_path: Path, status: int, requeued: bool) -> None:
    array = Array(tmp_path, plan_of(tmp_path, "one", "two"))
    body = f'trap "echo told; exit {status}" TERM; kill -USR1 $PPID; for _ in {{1..3000}}; do sleep 0.02; done'
    assert array.task(0, array.record("dapo", body)) == status
    assert array.said("dapo") == ["told"]
    assert array.said("scontrol") == (["requeue", "77"] if requeued else [])


@pytest.mark.parametrize("status", [0, 1, 3])
def test_without_a_time_limit_nothing_is_requeued(tmp_path: Path, status: int) -> None:
    array = Array(tmp_path, plan_of(tmp_path, "one", "two"))
    assert array.task(1, array.record("dapo", f"exit {status}")) == status
    assert array.said("scontrol") == []


def test_one_run_alone_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(tmp_path, "one", "broken")
    assert ablate(plan, "--slurm", str(tmp_path / "x.sbatch")) == 0
    with AblationFolder(tmp_path / "out").lock(shared=True):  # another task
        assert ablate(plan, "--only", "one/seed_0") == 0
        assert ablate(plan, "--only", "broken/seed_0") == 1
        assert ablate(plan) == 2  # all of it needs the folder for itself
    (tmp_path / "out/points/broken/mended").touch()
    assert ablate(plan, "--only", "broken/seed_0") == 0
    assert ablate(plan, "--only", "one/seed_0") == 0 and "one/seed_0 is done" in capsys.readouterr().out
    assert starts(tmp_path, "one/seed_0") == 1 and starts(tmp_path, "broken/seed_0") == 2


def test_a_status_that_a_power_cut_left_half_written_is_gone_over(tmp_path: Path) -> None:
    """Its last whole event is that the run started; the next one takes the stump's place."""
    plan = plan_of(tmp_path, "one", "two")
    ablation, folder = load_ablation(read_plan(plan)), AblationFolder(tmp_path / "out")
    status = folder.status_file(Run(ablation.points[0], 0))
    status.parent.mkdir(parents=True)
    folder.note(Run(ablation.points[0], 0), "started")
    with status.open("a") as file:
        file.write('{"time": "2025-01-01", "event": "fai')
    assert ablate(plan) == 0
    assert starts(tmp_path, "one/seed_0") == 1
    assert [record["event"] for record in read_lines(status)] == ["started", "started", "done"]


def test_the_live_table_shows_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run is half through after a minute: a minute more for it, three for all; of one that failed, nothing."""
    ablation = load_ablation(read_plan(plan_of(tmp_path, "one", "two", more="match: {by: rollouts, amount: 400}")))
    folder, console = AblationFolder(tmp_path / "out"), Console(file=io.StringIO(), force_terminal=True, width=90)
    now = [1000.0]
    monkeypatch.setattr(ablate_display, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with closing(ablate_display.LiveView(ablation, folder, ablation.runs, console)) as view:
        first, second = ablation.runs
        view.started(first)
        metrics = folder.run_folder(first).metrics_file
        metrics.parent.mkdir(parents=True)
        metrics.write_text('{"step": 4, "judged/accuracy": 0.25, "sampler/rollouts_total": 200}\n{"step": 5')
        now[0] += 60

        def rows() -> list[list[str]]:
            plain = Console(file=io.StringIO(), width=90)
            plain.print(view.table())
            return [line.split() for line in plain.file.getvalue().splitlines()]  # type: ignore[attr-defined]

        assert rows() == [
            ["point", "seed", "step", "accuracy", "held-out", "ETA"],
            ["one", "0", "4/40", "25.0%", "-", "1:00"],
            ["two", "0", "0/40", "-", "-", "waiting"],
            ["0", "of", "2", "runs", "over,", "ETA", "of", "all", "3:00"],
        ]
        view.started(second)
        view.ended(second, Event.failed, "Error: [bold]no[/]")
        assert rows()[2:] == [
            ["two", "0", "0/40", "-", "-", "failed"],
            ["1", "of", "2", "runs", "over,", "ETA", "of", "all", "1:00"],
        ]
    assert "failed  two/seed_0: Error: [bold]no[/]" in console.file.getvalue()  # type: ignore[attr-defined]
