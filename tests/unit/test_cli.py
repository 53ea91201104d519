"""The `dapo` command from outside: output, exit codes, what it imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_cli.cli import train
from dapo_cli.cli.app import run
from dapo_cli.config.load import load_recipe
from dapo_cli.errors import ProcessFailed, RunStopped, UserError
from dapo_cli.tracking.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]


def dapo(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dapo_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=60)


def test_list_names_each_shipped_recipe_with_its_first_comment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "list"], debug=False) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("quickstart ")]
    assert "learns multi-step arithmetic" in line and "#" not in line
    assert all(line.endswith(".") for line in lines)
    (line,) = [line for line in lines if line.startswith("quickstart_revisit ")]
    assert line.endswith("right answer, are passed over for two epochs.")  # its second line


def test_cp_copies_and_never_overwrites_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "cp", "quickstart", str(tmp_path)], debug=False) == 0
    copy = tmp_path / "quickstart.yaml"
    assert copy.read_bytes() == (ROOT / "recipes/quickstart.yaml").read_bytes()
    copy.write_text("mine")
    assert run(["recipe", "cp", "quickstart", str(copy)], debug=False) == 2
    assert copy.read_text() == "mine" and "--force" in capsys.readouterr().err
    assert run(["recipe", "cp", "quickstart", str(copy), "--force"], debug=False) == 0
    assert copy.read_text() != "mine"
    assert run(["recipe", "cp", "quickstart", str(tmp_path / "other")], debug=False) == 0
    assert load_recipe(str(tmp_path / "other.yaml")).recipe == load_recipe("quickstart").recipe
    assert run(["recipe", "cp", "quickstrat", str(tmp_path)], debug=False) == 2
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_show_says_where_each_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "show", "quickstart", "optimizer.lr=1e-5"], debug=False) == 0
    lines = {line.strip() for line in capsys.readouterr().out.splitlines()}
    spaced = {" ".join(line.split()) for line in lines}
    assert {
        "lr: 1.0e-05 # override",
        "path: shipped:tiny-arithmetic # file quickstart.yaml",
        "clip_high: 0.28 # default",
    } <= {line.replace("1e-05", "1.0e-05") for line in spaced}


def test_validate_reports_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("defaults: [quickstart, _self_]\noptimizer: {lrr: 1}\n")
    model = tmp_path / "model.yaml"
    model.write_text("defaults: [quickstart, _self_]\nmodel: {path: shipped:tinny}\nrun: {steps: 0}\n")
    files = [str(bad), "quickstart", str(tmp_path / "gone.yaml"), str(model)]
    assert run(["recipe", "validate", *files], debug=False) == 2
    captured = capsys.readouterr()
    assert captured.out == "ok  quickstart\n"
    for words in ("optimizer.lrr", "gone.yaml: no such file", "run.steps = 0", "model.path = shipped:tinny"):
        assert words in captured.err
    assert run(["recipe", "validate", "quickstart"], debug=False) == 0


def test_keys_prints_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "keys", "optimizer"], debug=False) == 0
    out = capsys.readouterr().out
    assert "optimizer.lr  (a number; default 1e-06)" in out and "sampler" not in out


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (UserError("run.steps = x: must be a whole number"), 2, "Error: run.steps = x"),
        (RunStopped("stopped at step 3; run again to go on"), 3, "stopped at step 3"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_exit_codes(
    error: BaseException, status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("dapo_cli.config.load.load_recipe", fail)
    assert run(["recipe", "show", "quickstart"], debug=False) == status
    message = capsys.readouterr().err
    assert words in message and "Traceback" not in message
    assert ("--debug" in message) is (status == 1)
    run(["recipe", "show", "quickstart"], debug=True)
    assert ("Traceback" in capsys.readouterr().err) is (status != 130)


@pytest.mark.parametrize("arguments", [["nope"], ["recipe", "show"], ["recipe", "list", "--nope"], ["train"]])
def test_usage_errors_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments, debug=False) == 2
    assert "Usage: dapo" in capsys.readouterr().err


def test_debug_is_read_anywhere_on_the_line() -> None:
    for arguments in (["--debug", "recipe", "show", "gone"], ["recipe", "show", "gone", "--debug"]):
        result = dapo(*arguments)
        assert result.returncode == 2 and "Traceback" in result.stderr
    plain = dapo("recipe", "show", "gone")
    assert plain.returncode == 2 and "Traceback" not in plain.stderr and plain.stdout == ""


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dapo_cli", "recipe", "show", "quickstart"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1


HEAVY = ("torch", "transformers", "datasets", "pyarrow", "wandb", "math_verify", "sympy")
PROBE = """
import sys
from dapo_cli.cli.app import run
status = run(sys.argv[1:], debug=True)
print("LOADED", sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], (*HEAVY, "hydra", "omegaconf", "numpy", "rich")),
        (["train", "--help"], (*HEAVY, "hydra", "omegaconf", "numpy")),
        (["recipe", "list"], (*HEAVY, "hydra", "omegaconf", "numpy")),
        (["recipe", "show", "quickstart"], HEAVY),
        (["recipe", "validate", "quickstart"], HEAVY),
        (["recipe", "keys"], HEAVY),
        (["ablate", "--list"], HEAVY),
        (["ablate", "ablations/dynamic_sampling_by_time_quickstart", "--dry-run"], HEAVY),
    ],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], absent: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, env=environment, timeout=60
    )
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.rpartition("LOADED")[2]
    assert [name for name in absent if f"'{name}'" in loaded] == []


def test_shell_completion_loads_no_torch() -> None:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "_DAPO_COMPLETE": "complete_bash", "COMP_WORDS": "dapo recipe ",
        "COMP_CWORD": "2",
    }  # fmt: skip
    lines = ["import sys", "from dapo_cli.cli.app import run", "try: run([], debug=True)"]
    code = "\n".join([*lines, "finally: print('torch' in sys.modules)"])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert "validate" in result.stdout and result.stdout.endswith("False\n")


def test_a_save_that_was_cut_off_is_nothing_to_go_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ProcessFailed("process 1 ended")

    monkeypatch.setattr(train, "launch", fail)
    monkeypatch.setattr(train, "_read_inputs", lambda *_: None)
    folder = RunFolder(tmp_path)
    for saved, goes_on in (("step_000003.unfinished", False), ("step_000003", True)):
        (folder.checkpoints / saved).mkdir(parents=True)
        with pytest.raises(ProcessFailed) as told:
            train._launch(load_recipe("quickstart", [f"run.dir={tmp_path}"]), folder, [])
        assert ("goes on from the last checkpoint" in str(told.value)) is goes_on
