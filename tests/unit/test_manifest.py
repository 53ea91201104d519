"""The manifest: names the code exactly, and tells what differs from what does not matter."""

import copy
import hashlib
import importlib.metadata
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.errors import UserError
from dapo_cli.tracking import manifest as manifest_module
from dapo_cli.tracking.manifest import build_manifest, differences, resumed
from dapo_cli.tracking.provenance import (
    Code,
    file_sha256,
    hub_model_record,
    model_folder_record,
    package_sha256,
    read_code,
    requirements,
    uncommitted,
)
from dapo_cli.tracking.run_folder import RunFolder
from dapo_cli.tracking.wandb_worker import run_id

RECIPE = {
    "run": {"dir": "runs/a", "seed": 0, "steps": 60, "threads": None},
    "model": {"path": "shipped:tiny", "revision": None},
    "data": {"paths": ["train.jsonl"]},
    "optimizer": {"lr": 1e-4},
    "checkpoint": {"every": 1},
    "tracking": {"wandb": "disabled"},
}


@pytest.fixture(scope="module")
def manifest():
    code = {"version": "0.1.0", "package_sha256": "a" * 64, "checkout": True, "commit": "b" * 40, "dirty": False}
    return build_manifest(
        recipe=RECIPE,
        origins={"run.seed": "default"},
        code=Code(code, b""),
        data=[{"path": "train.jsonl", "sha256": "c" * 64, "prompts": 30, "uids_sha256": "d" * 64}],
        model={"path": "models/tiny", "files": {"config.json": "e" * 64}},
        seeds={"run.seed": 0},
    )


def changed(manifest, *path, value):
    copied = copy.deepcopy(manifest)
    *parents, leaf = path
    node = copied
    for name in parents:
        node = node[name]
    node[leaf] = value
    return copied


DECISIVE = [
    (("recipe", "optimizer", "lr"), 3e-4, "optimizer.lr: 0.0001 in the run folder, 0.0003 now"),
    (("recipe", "run", "steps"), 80, "run.steps: 60 in the run folder, 80 now"),
    (("recipe", "run", "threads"), 1, "run.threads: null in the run folder, 1 now"),
    (("recipe", "run", "seed"), False, "run.seed: 0 in the run folder, false now"),
    (("recipe", "data", "paths"), [], "data.paths: [train.jsonl] in the run folder, [] now"),
    (("data", 0, "sha256"), "f" * 64, "data: train.jsonl has changed (sha256 cccccccccccc…, now ffffffffffff…)"),
    (("data", 0, "prompts"), 29, "data.prompts: 30 in the run folder, 29 now"),
    (("model", "files", "config.json"), "0" * 64, "model.files.config.json: eeeeeeeeeeee… in the run folder, 0000"),
    (("model", "files", "extra.bin"), "0" * 64, "model.files.extra.bin: not there in the run folder, 0000"),
    (
        ("code", "package_sha256"),
        "0" * 64,
        "code of dapo_cli: aaaaaaaaaaaa… (commit bbbbbbbbbbbb…) in the run folder, 000000000000… (commit bbb",
    ),
    (("packages", "torch"), "2.14.0", "torch: "),
]


@pytest.mark.parametrize(("path", "value", "line"), DECISIVE)
def test_what_decides_the_numbers_is_a_difference(manifest, path, value, line):
    lines = differences(manifest, changed(manifest, *path, value=value))
    assert any(line in found for found in lines), lines


def test_a_changed_file_is_named_once_wherever_it_lies(manifest):
    def data(*files, prompts=9, section="eval.data"):
        prints = [{"path": path, "sha256": content * 64} for path, content in files]
        return {"section": section, "source": "a folder", "prompts": prompts, "fingerprints": prints}

    def found(*records):
        sides = [{**manifest, "data": [records[0], own]} for own in records[1:]]
        return differences(*sides)

    train = data(("u/train.jsonl", "1"), section="data")
    before = data(("u/a.jsonl", "2"), ("u/b.jsonl", "3"))
    assert found(train, before, data(("v/a.jsonl", "2"), ("v/b.jsonl", "3"))) == []
    changed = "eval.data: v/b.jsonl has changed (sha256 333333333333…, now 444444444444…)"
    assert found(train, before, data(("v/a.jsonl", "2"), ("v/b.jsonl", "4"), prompts=8)) == [changed]
    gone = "eval.data: u/a.jsonl: 222222222222… in the run folder, not there now"
    assert found(train, before, data(("u/b.jsonl", "3"), prompts=5)) == [gone]
    reward = {"section": "reward", "path": "u/r.py", "sha256": "5" * 64}
    assert found(train, reward, {**reward, "sha256": "6" * 64}) == [
        "reward: u/r.py has changed (sha256 555555555555…, now 666666666666…)"
    ]
    assert found(train, before, reward)[-1].startswith("reward.sha256: not there in the run folder, 5555")


FREE = [
    (("recipe", "run", "dir"), "runs/b"),
    (("recipe", "checkpoint", "every"), 5),
    (("recipe", "tracking", "wandb"), "offline"),
    (("recipe", "run", "require_clean"), True),
    (("requirements_sha256",), "0" * 64),
    (("data", 0, "path"), "elsewhere/train.jsonl"),
    (("model", "path"), "elsewhere/tiny"),
    (("code", "commit"), "0" * 40),
    (("code", "dirty"), True),
    (("packages", "vllm"), "0.32.0"),
    (("started",), "2000-01-01"),
    (("command",), ["dapo"]),
    (("hardware", "cores"), 1000),
]


@pytest.mark.parametrize(("path", "value"), FREE)
def test_what_decides_no_number_is_no_difference(manifest, path, value):
    assert differences(manifest, changed(manifest, *path, value=value)) == []


def test_a_manifest_survives_its_file_without_a_difference(manifest, tmp_path):
    folder = RunFolder(tmp_path)
    folder.start(manifest, "", b"")
    assert folder.read_manifest() == manifest
    assert differences(folder.read_manifest(), manifest) == []


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats(allow_nan=False).map(lambda x: x + 0.0)
    | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("kl", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_list_of_plain_values_is_one_keys_value() -> None:
    old, new = {"data": {"paths": ["a", "b"]}, "files": [{"sha": 1}]}, {"data": {"paths": ["a"]}, "files": [{"sha": 2}]}
    assert manifest_module.changed(old, new) == {"data.paths": (["a", "b"], ["a"]), "files.0.sha": (1, 2)}


@given(TREES, TREES)
def test_two_trees_compare_equal_exactly_if_their_json_is(old, new):
    same = json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    assert (manifest_module.changed(old, new, "tree") == {}) == same


def test_a_resume_is_recorded_and_the_manifest_says_what_holds(manifest: dict) -> None:
    now = changed(manifest, "recipe", "optimizer", "lr", value=0.5) | {"started": "later", "command": ["dapo", "now"]}
    rolled_back = manifest | {"rollbacks": [{"step": 9}]}
    once = resumed(rolled_back, now, 12, ["optimizer.lr: …"])
    twice = resumed(once, now, 20, [])
    assert once["recipe"]["optimizer"]["lr"] == 0.5
    assert once["rollbacks"] == twice["rollbacks"] == [{"step": 9}]
    assert once["started"] == twice["started"] == manifest["started"]
    assert twice["resumes"] == [
        {"time": "later", "step": 12, "command": ["dapo", "now"], "processes": 1, "changes": ["optimizer.lr: …"]},
        {"time": "later", "step": 20, "command": ["dapo", "now"], "processes": 1, "changes": []},
    ]
    assert run_id(twice) == run_id(manifest) != run_id(now)


def test_no_environment_variable_gets_into_a_manifest(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "sekret-123")
    built = build_manifest(recipe={}, origins={}, code=read_code(), data=[], model={}, seeds={})
    assert "sekret-123" not in json.dumps(built)
    assert built["packages"]["torch"] and built["hardware"]["memory_bytes"] > 2**28


# Code ---------------------------------------------------------------------------------------------------------------


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A committed checkout with a package of two modules."""
    top = tmp_path / "check out"
    package = top / "dapo_cli"
    (package / "sub").mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    (package / "sub" / "b.py").write_text("b = 1\n")
    (top / "README.md").write_text("read me\n")
    (top / ".gitignore").write_text("ignored.py\n")
    git(top, "init", "--quiet")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "first")
    return top


def test_a_clean_checkout_is_its_commit(checkout):
    code = read_code(checkout / "dapo_cli")
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert code.record["commit"] == head.stdout.strip()
    assert (code.record["dirty"], code.record["untracked"], code.patch) == (False, [], b"")


def test_the_patch_rebuilds_what_ran_from_the_commit(checkout, tmp_path):
    package = checkout / "dapo_cli"
    clean = package_sha256(package)
    git(tmp_path, "clone", "--quiet", str(checkout), "clone")
    (package / "a.py").write_text("a = 2\n")
    (package / "sub" / "b.py").unlink()
    (package / "new é.py").write_text("c = 'é'\n")
    (package / "ignored.py.txt").write_text("not code")

    code = read_code(package)
    assert code.record["dirty"] and code.record["untracked"] == ["dapo_cli/new é.py"]
    assert code.record["patch_sha256"] == hashlib.sha256(code.patch).hexdigest()
    (tmp_path / "code.patch").write_bytes(code.patch)
    git(tmp_path / "clone", "apply", str(tmp_path / "code.patch"))
    assert package_sha256(tmp_path / "clone" / "dapo_cli") == code.record["package_sha256"] != clean


def test_a_change_of_the_docs_leaves_the_package_hash(checkout):
    before = read_code(checkout / "dapo_cli").record
    (checkout / "README.md").write_text("read me twice\n")
    after = read_code(checkout / "dapo_cli").record
    assert after["dirty"] and not before["dirty"]
    assert after["package_sha256"] == before["package_sha256"]


def test_moving_a_line_between_files_changes_the_package_hash(checkout):
    package = checkout / "dapo_cli"
    before = package_sha256(package)
    (package / "a.py").rename(package / "c.py")
    assert package_sha256(package) != before


def test_a_package_installed_inside_another_checkout_is_not_of_that_commit(checkout):
    installed = checkout / ".venv" / "lib" / "dapo_cli"
    installed.mkdir(parents=True)
    (installed / "a.py").write_text("a = 1\n")
    code = read_code(installed)
    assert not code.record["checkout"] and code.patch == b""


def test_a_checkout_without_a_commit_has_everything_in_its_patch(tmp_path):
    package = tmp_path / "dapo_cli"
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    git(tmp_path, "init", "--quiet")
    code = read_code(package)
    assert code.record["commit"] is None and code.record["dirty"]
    assert b"+a = 1" in code.patch


def test_uncommitted_names_what_makes_the_code_dirty(checkout):
    package = checkout / "dapo_cli"
    assert uncommitted(package) == []
    (package / "ignored.py").write_text("not code")
    (checkout / "notes.txt").write_text("not the package's")
    assert uncommitted(package) == [] and not read_code(package).record["dirty"]
    (package / "a.py").write_text("a = 2\n")
    (package / "sub" / "b.py").unlink()
    (package / "new é.py").write_text("c = 3\n")
    git(checkout, "add", "dapo_cli/a.py")
    assert uncommitted(package) == ["dapo_cli/a.py", "dapo_cli/sub/b.py", "dapo_cli/new é.py"]
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "second")
    assert uncommitted(package) == []


def test_code_that_no_commit_names_is_not_clean(tmp_path):
    package = tmp_path / "dapo_cli"
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    git(tmp_path, "init", "--quiet")
    with pytest.raises(UserError, match="without a commit"):
        uncommitted(package)


def test_the_lock_file_lists_what_can_be_imported():
    lines = requirements().decode().splitlines()
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))
    for name in ("torch", "transformers", "typing_extensions"):
        assert f"{name.replace('_', '-')}=={importlib.metadata.version(name)}" in lines


def test_the_manifest_holds_the_lock_file_s_hash(manifest):
    assert manifest["requirements_sha256"] == hashlib.sha256(requirements()).hexdigest()


# Model --------------------------------------------------------------------------------------------------------------


def test_a_model_folder_is_the_hash_of_what_loading_reads(tmp_path):
    for name in ("config.json", "model.safetensors", "chat_template.jinja", "README.md"):
        (tmp_path / name).write_text(name)
    record = model_folder_record(tmp_path)
    assert sorted(record["files"]) == ["chat_template.jinja", "config.json", "model.safetensors"]
    assert record["files"]["config.json"] == hashlib.sha256(b"config.json").hexdigest()


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_without_a_model_is_a_user_error(tmp_path, name):
    with pytest.raises(UserError, match=r"model\.path=.*no model files"):
        model_folder_record(tmp_path / name)


def test_another_hub_commit_is_another_model(manifest):
    old, new = ({**manifest, "model": hub_model_record("org/model", digit * 40)} for digit in "12")
    assert differences(old, new) == ["model.commit: 111111111111… in the run folder, 222222222222… now"]


def test_file_sha256_streams(tmp_path):
    data = bytes(range(256)) * 20_000
    (tmp_path / "large").write_bytes(data)
    assert file_sha256(tmp_path / "large") == hashlib.sha256(data).hexdigest()


def test_the_tracking_modules_load_neither_torch_nor_wandb():
    modules = "file_tracker, console, wandb_tracker, wandb_worker, summary, manifest, provenance, trackers"
    loaded = "'torch' in sys.modules or 'wandb' in sys.modules"
    script = f"import sys; from dapo_cli.tracking import {modules}; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
