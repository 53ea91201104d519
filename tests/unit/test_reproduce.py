"""What a rerun is made of, what is refused, and how two runs' figures are compared. No test here trains."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dapo_cli.cli.app import run
from dapo_cli.config.load import load_recipe, plain_tree
from dapo_cli.config.resolved import to_yaml
from dapo_cli.config.schema import HubData, PretrainedModel, Recipe
from dapo_cli.errors import UserError
from dapo_cli.reproduce.compare import RunComparison, compare_runs
from dapo_cli.reproduce.recorded import read_recorded
from dapo_cli.reproduce.verify import manifest_now, notes, refusals
from dapo_cli.reproduce.worktree import git_commands, recorded_code
from dapo_cli.tracking.manifest import ABSENT, Manifest, resumed
from dapo_cli.tracking.pins import pinned, recorded_commits
from dapo_cli.tracking.provenance import package_sha256, read_code, requirements
from dapo_cli.tracking.run_folder import RunFolder
from tests.unit.report_folders import write_lines
from tests.unit.test_manifest import checkout, git  # noqa: F401  (a fixture)

# Comparing ----------------------------------------------------------------------------------------------------------

METRICS: list[dict[str, Any]] = [
    {"step": 1, "sampler/prompts": 12, "policy/loss": 0.5, "policy/ratio_max": 1.0, "note": None},
    {"step": 2, "sampler/prompts": 8, "policy/loss": -0.25, "policy/ratio_max": 1.5, "note": None},
]
EVALS: list[dict[str, Any]] = [{"step": 0, "eval/accuracy": 0.5}, {"step": 2, "eval/accuracy": 0.75}]


def compared(
    tmp_path: Path,
    metrics: list[dict[str, Any]],
    evals: list[dict[str, Any]],
    *,
    steps: int = 2,
    eval_every: int = 2,
) -> RunComparison:
    """METRICS and EVALS as the recorded run, with the given ones as its rerun."""
    folders = [RunFolder(tmp_path / name) for name in ("recorded", "rerun")]
    for folder, lines, evaluations in zip(folders, (METRICS, metrics), (EVALS, evals), strict=True):
        folder.path.mkdir()
        write_lines(folder.metrics_file, lines)
        write_lines(folder.evals_file, evaluations)
    return compare_runs(folders[0], folders[1], steps, eval_every)


def test_equal_files_are_identical(tmp_path):
    found = compared(tmp_path, METRICS, EVALS)
    assert (found.steps, found.evaluations, found.differences, found.rounding) == (2, 2, [], None)


def test_the_first_difference_has_step_key_and_both_values(tmp_path):
    metrics = [METRICS[0], METRICS[1] | {"sampler/prompts": 9, "policy/loss": -0.3}]
    found = compared(tmp_path, metrics, EVALS)
    assert str(found.differences[0]) == "metrics.jsonl, step 2, sampler/prompts: 8 in the run folder, 9 now"
    assert len(found.differences) == 2 and found.rounding is None  # a count is no matter of rounding


def test_an_evaluation_before_the_first_step_comes_first(tmp_path):
    metrics = [METRICS[0] | {"policy/loss": 0.6}, METRICS[1]]
    found = compared(tmp_path, metrics, [{"step": 0, "eval/accuracy": 0.25}, EVALS[1]])
    assert [(each.file, each.step) for each in found.differences] == [("evals.jsonl", 0), ("metrics.jsonl", 1)]


def test_of_floats_alone_the_largest_relative_difference_is_told(tmp_path):
    metrics = [METRICS[0] | {"policy/loss": 0.5 + 1e-6}, METRICS[1] | {"policy/loss": -0.2}]
    found = compared(tmp_path, metrics, EVALS)
    assert found.rounding is not None and found.rounding.step == 2
    assert found.rounding.relative == pytest.approx(0.05 / 0.25)
    assert found.differences[0].relative == pytest.approx(2e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("key", "value"), [("policy/loss", "NaN"), ("note", 0), ("policy/ratio_max", 1), ("sampler/prompts", 12.0)]
)
def test_values_of_other_types_differ_and_are_no_rounding(tmp_path, key, value):
    found = compared(tmp_path, [METRICS[0] | {key: value}, METRICS[1]], EVALS)
    assert [(each.key, each.now) for each in found.differences] == [(key, value)]
    assert found.rounding is None


def test_a_lost_line_and_a_lost_key_differ(tmp_path):
    first = {key: value for key, value in METRICS[0].items() if key != "policy/loss"}
    found = compared(tmp_path, [first], EVALS)
    assert [(each.step, each.key, each.now) for each in found.differences] == [
        (1, "policy/loss", ABSENT),
        (2, "", ABSENT),
    ]


def test_later_steps_and_the_evaluation_after_a_shorter_run_do_not_count(tmp_path):
    found = compared(tmp_path, METRICS[:1], [EVALS[0], {"step": 1, "eval/accuracy": 0.9}], steps=1)
    assert (found.steps, found.evaluations, found.differences) == (1, 1, [])


def test_an_evaluation_that_both_must_have_made_counts(tmp_path):
    assert [str(each) for each in compared(tmp_path, METRICS, EVALS[:1]).differences] == [
        "evals.jsonl, step 2, the line: there in the run folder, not there now"
    ]


# Refusing -----------------------------------------------------------------------------------------------------------

SMALL = [
    "data=files",
    "eval.data=null",
    "algorithm.groups_per_step=2",
    "algorithm.groups_per_update=1",
    "run.threads=1",
]


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    file = tmp_path / "train.jsonl"
    rows = [{"prompt": f"{number}+1=?\n", "answer": str(number + 1)} for number in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def run_folder(tmp_path: Path, train_file: Path) -> RunFolder:
    """What a run of the quickstart's model on a file leaves after 3 steps, all but its results being real."""
    folder = RunFolder(tmp_path / "run")
    overrides = [*SMALL, f"data.paths=[{train_file}]", f"run.dir={folder.path}", "run.steps=3"]
    loaded = load_recipe("quickstart", overrides)
    folder.start(manifest_now(loaded), to_yaml(loaded), read_code().patch, requirements())
    write_lines(folder.metrics_file, [METRICS[0] | {"step": step} for step in (1, 2, 3)])
    return folder


def now(folder: RunFolder, steps: int = 2) -> Manifest:
    """The manifest that a rerun would have."""
    recorded = read_recorded(folder.path, steps)
    return manifest_now(load_recipe(str(recorded.source.recipe_file), recorded.overrides(folder.path / "rerun")))


def test_a_shorter_rerun_of_the_same_run_is_refused_nothing(run_folder):
    recorded = read_recorded(run_folder.path, 2)
    assert refusals(recorded, now(run_folder)) == [] == notes(recorded, now(run_folder))


def test_a_changed_data_byte_is_refused_before_anything_runs(run_folder, train_file, capsys):
    data = train_file.read_bytes()
    train_file.write_bytes(data.replace(b"7+1", b"6+2"))
    target = run_folder.path.parent / "rerun"
    assert run(["reproduce", str(run_folder.path), "-o", str(target)], debug=False) == 2
    told = capsys.readouterr().err
    assert f"data: {train_file} has changed (sha256 " in told and "uids" not in told
    assert "--allow-changes" in told and not target.exists()


def test_each_kind_of_change_is_named(run_folder):
    rerun_manifest = now(run_folder)
    edited = run_folder.read_manifest() | {"python": "2.7.18", "processes": 4}
    edited["packages"] |= {"torch": "1.0.0"}
    edited["code"] |= {"patch_sha256": "a" * 64}
    edited["model"]["files"] |= {"config.json": "b" * 64}
    edited["recipe"]["optimizer"] |= {"lr": 0.5}
    edited["hardware"] |= {"cpu": "an abacus"}
    run_folder.write_manifest(edited)
    run_folder.requirements_file.write_text("left-pad==1.0.0\n" + run_folder.requirements_file.read_text())
    recorded = read_recorded(run_folder.path, None)
    found = refusals(recorded, rerun_manifest)
    for beginning in ("torch: 1.0.0", "python: 2.7.18", "processes: 4", "model.files.config.json", "optimizer.lr: 0.5"):
        assert [line for line in found if line.startswith(beginning)], beginning
    assert any("the manifest records aaaa" in line for line in found) and len(found) == 6
    told = notes(recorded, rerun_manifest)
    assert "left-pad: 1.0.0 in the run folder, not there now" in told
    assert any(line.startswith("hardware.cpu: an abacus in the run folder") for line in told)


def test_a_folder_that_is_there_is_left_alone(run_folder, capsys):
    target = run_folder.path.parent / "rerun"
    target.mkdir()
    (target / "mine").write_text("mine")
    assert run(["reproduce", str(run_folder.path), "-o", str(target)], debug=False) == 2
    assert "is there already" in capsys.readouterr().err and (target / "mine").read_text() == "mine"


@pytest.mark.parametrize(("steps", "told"), [(4, "has 3 steps; give 1 to 3"), (0, "give 1 to 3")])
def test_steps_that_the_run_has_not_made_are_refused(run_folder, steps, told):
    with pytest.raises(UserError, match=told):
        read_recorded(run_folder.path, steps)


def change(folder: RunFolder, step: int, changes: list[str], **recipe: dict[str, Any]) -> Manifest:
    """Resume after `step` with changes, as `dapo train --allow-changes` writes it down."""
    old = folder.read_manifest()
    new = {
        **old,
        "command": [],
        "recipe": old["recipe"] | {key: old["recipe"][key] | value for key, value in recipe.items()},
    }
    manifest = resumed(old, new, step, changes)
    folder.change(manifest, "changed: true\n", b"", step)
    return old


def test_the_steps_before_a_change_are_of_the_recipe_before_it(run_folder):
    recipe_yaml = run_folder.recipe_file.read_text()
    before = change(run_folder, 2, ["optimizer.lr: 0.0002 in the run folder, 0.5 now"], optimizer={"lr": 0.5})
    change(run_folder, 2, ["optimizer.lr: 0.5 in the run folder, 0.1 now"], optimizer={"lr": 0.1})
    recorded = read_recorded(run_folder.path, 2)
    assert recorded.manifest == before and recorded.source.recipe_file.read_text() == recipe_yaml
    for steps in (3, None):
        with pytest.raises(UserError, match=r"changed after step 2.*\n  optimizer\.lr.*\n--steps 2 reproduces"):
            read_recorded(run_folder.path, steps)


def test_more_steps_alone_are_the_same_run(run_folder):
    change(run_folder, 2, ["run.steps: 2 in the run folder, 3 now"], run={"steps": 3})
    assert read_recorded(run_folder.path, None).source.path == run_folder.path


def rolled_back(folder: RunFolder, *spans: tuple[int, int]) -> None:
    """As if the run had gone back from the first step of each pair to the second, and on to step 9."""
    told = {"rule": "grad_norm_spike", "event": "rolled_back", "since": 4, "action": "rollback", "message": "back"}
    spanned = [{"step": step, "figures": {"to_step": to_step, "lr_factor": 0.5}} for step, to_step in spans]
    records = [told | each for each in spanned]
    folder.write_manifest(folder.read_manifest() | {"rollbacks": records})
    write_lines(folder.metrics_file, [METRICS[0] | {"step": step} for step in range(1, 10)])


@pytest.mark.parametrize(
    ("spans", "works"),
    [
        ([(6, 3)], [1, 2, 3, 6, 7, 8, 9]),
        ([(6, 3), (8, 5)], [1, 2, 3, 8, 9]),  # 6 and 7 are figures of after the second
        ([(8, 5), (6, 3)], [1, 2, 3, 8, 9]),
        ([(4, 2), (8, 6)], [1, 2, 4, 5, 6, 8, 9]),
        ([(12, 3)], [1, 2, 3]),
    ],
)
def test_a_rerun_must_come_to_the_rollbacks_that_its_steps_stand_behind(run_folder, spans, works):
    rolled_back(run_folder, *spans)
    for steps in range(1, 10):
        if steps in works:
            assert read_recorded(str(run_folder.path), steps).steps == steps
            continue
        remedy = [max(n for n in works if n < steps), *[n for n in works if n > steps][:1]]
        with pytest.raises(UserError, match=f"give {' or '.join(f'--steps {n}' for n in remedy)}$"):
            read_recorded(str(run_folder.path), steps)


def test_a_rerun_waits_and_stops_at_no_alarm(run_folder):
    manifest = run_folder.read_manifest()
    actions = {"entropy_collapse": "pause", "length_runaway": "stop", "grad_norm_spike": "rollback"}
    manifest["recipe"]["health"] |= {rule: {"action": action} for rule, action in actions.items()}
    run_folder.write_manifest(manifest)
    overrides = read_recorded(run_folder.path, None).overrides(run_folder.path / "again")
    assert [each for each in overrides if each.startswith("health.")] == [
        "health.entropy_collapse.action=note",
        "health.length_runaway.action=note",
    ]


def test_a_rollback_of_a_changed_recipe_is_none_of_the_recipe_before(run_folder):
    change(run_folder, 5, ["optimizer.lr: 0.0002 in the run folder, 0.5 now"], optimizer={"lr": 0.5})
    rolled_back(run_folder, (8, 3))
    assert read_recorded(str(run_folder.path), 3).steps == 3
    with pytest.raises(UserError, match=r"rolled back from step 8 to 3, .*; give --steps 3$"):
        read_recorded(str(run_folder.path), 5)


# The recorded code --------------------------------------------------------------------------------------------------


def with_code(run_folder: RunFolder, top: Path) -> RunFolder:
    """The run as if the scratch checkout's code had made it."""
    code = read_code(top / "dapo_cli")
    run_folder.write_manifest(run_folder.read_manifest() | {"code": code.record})
    run_folder.patch_file.unlink(missing_ok=True)
    if code.patch:
        run_folder.patch_file.write_bytes(code.patch)
    return run_folder


def test_the_recorded_code_comes_back_and_goes_again(run_folder, checkout):  # noqa: F811
    package = checkout / "dapo_cli"
    (package / "a.py").write_text("a = 2\n")
    (package / "new é.py").write_text("c = 3\n")
    recorded = read_recorded(with_code(run_folder, checkout).path, None)
    git(checkout, "checkout", "--quiet", ".")
    (package / "new é.py").unlink()
    (package / "sub" / "b.py").write_text("b = 9\n")
    git(checkout, "commit", "--quiet", "-am", "later")
    with recorded_code(recorded, package) as tree:
        assert package_sha256(tree / "dapo_cli") == recorded.manifest["code"]["package_sha256"]
        assert (tree / "dapo_cli" / "a.py").read_text() == "a = 2\n"
    assert not tree.exists()
    listed = subprocess.run(["git", "-C", str(checkout), "worktree", "list"], capture_output=True, check=True)
    assert len(listed.stdout.splitlines()) == 1
    assert git_commands(recorded)[0].endswith(recorded.manifest["code"]["commit"])
    assert str(recorded.source.patch_file) in git_commands(recorded)[1]


def test_code_that_does_not_come_back_is_refused(run_folder, checkout):  # noqa: F811
    package = checkout / "dapo_cli"
    (package / "a.py").write_text("a = 2\n")
    recorded = read_recorded(with_code(run_folder, checkout).path, None)
    patch = recorded.source.patch_file.read_bytes()
    recorded.source.patch_file.write_bytes(patch.replace(b"a = 2", b"a = 3"))
    with pytest.raises(UserError, match=r"code\.patch: sha256"), recorded_code(recorded, package):
        pass
    recorded.source.patch_file.write_bytes(patch)
    recorded.manifest["code"]["package_sha256"] = "0" * 64
    with pytest.raises(UserError, match="the run's were 000000000000"), recorded_code(recorded, package):
        pass
    recorded.manifest["code"]["commit"] = "1" * 40
    with pytest.raises(UserError, match="git worktree add"), recorded_code(recorded, package):
        pass
    with pytest.raises(UserError, match="is no git checkout"), recorded_code(recorded, run_folder.path / "dapo_cli"):
        pass


# The hub ------------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_keeps_the_commits_that_it_began_with():
    branches = ["model.revision=null", "data.revision=null", "eval.data.revision=v1"]
    loaded = load_recipe("dapo_qwen2_5_7b", branches)
    manifest = {
        "recipe": plain_tree(loaded.config),
        "model": {"hub_id": "Qwen/Qwen2.5-7B", "commit": "1" * 40},
        "data": [
            {"section": "data", "fingerprints": [{"path": "train", "sha256": "2" * 40}]},
            {"section": "eval.data", "fingerprints": [{"path": "test", "sha256": "3" * 40}]},
        ],
    }
    assert recorded_commits(manifest) == {
        "model.revision": "1" * 40,
        "data.revision": "2" * 40,
        "eval.data.revision": "3" * 40,
    }
    same = pinned(loaded.recipe, manifest)
    assert revisions(same) == ["1" * 40, "2" * 40, "3" * 40] and same.data.max_prompt_tokens == 2048
    other = load_recipe("dapo_qwen2_5_7b", [*branches, "model.path=o/other", "eval.data.revision=v2"]).recipe
    assert revisions(pinned(other, manifest)) == [None, "2" * 40, "v2"]


def revisions(recipe: Recipe) -> list[str | None]:
    assert isinstance(recipe.model, PretrainedModel)
    assert isinstance(recipe.data, HubData) and isinstance(recipe.eval.data, HubData)
    return [recipe.model.revision, recipe.data.revision, recipe.eval.data.revision]


def test_files_and_shipped_models_have_no_commits(run_folder):
    assert recorded_commits(run_folder.read_manifest()) == {}
    loaded = load_recipe(str(run_folder.recipe_file))
    assert pinned(loaded.recipe, run_folder.read_manifest()) == loaded.recipe
