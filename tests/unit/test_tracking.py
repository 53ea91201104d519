"""What a run leaves: figures worked by hand, and files that are byte for byte the same after a kill and a resume."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dapo_cli.config.schema import HealthAction
from dapo_cli.errors import UserError
from dapo_cli.health.event import EventKind, HealthEvent
from dapo_cli.tracking.console import console_tracker, evaluation_line, health_line
from dapo_cli.tracking.file_tracker import FileTracker, choose_rollouts
from dapo_cli.tracking.files import append_line, json_line, read_lines, write_atomically
from dapo_cli.tracking.metrics import (
    in_order,
    length_metrics,
    repeated_ngram_share,
    rollout_metrics,
    step_metrics,
    verifier_metrics,
)
from dapo_cli.tracking.run_folder import MANIFEST_KEYS, RunFolder
from dapo_cli.tracking.summary import summary_lines
from dapo_cli.tracking.timings import RankTimings, peak_memory_bytes, step_timings
from dapo_cli.tracking.trackers import Trackers
from dapo_cli.types import Completion, Finish, Group, Outcome, Prompt, Rollout, Verdict
from tests.unit.report_folders import health_event

RIGHT, WRONG, FAILED = Outcome.RIGHT, Outcome.WRONG, Outcome.FAILED


def make_rollout(uid: str, index: int, outcome: Outcome, tokens: tuple[int, ...], penalty: float, cut: bool) -> Rollout:
    finish = Finish.LENGTH if cut else Finish.STOP
    completion = Completion(uid, index, tokens, tuple(-0.5 for _ in tokens), finish, f"{uid}/{index}")
    rule = "timeout" if outcome is FAILED else "answer_line"
    return Rollout(completion, Verdict(outcome, "7", rule), 1.0 if outcome is RIGHT else -1.0, penalty)


def make_group(uid: str, *outcomes: Outcome, tokens: tuple[int, ...] = (5, 6, 1)) -> Group:
    rollouts = (make_rollout(uid, index, outcome, tokens, 0.0, False) for index, outcome in enumerate(outcomes))
    return Group(Prompt(uid, f"{uid}=?\n", (4, 13), "7", "test"), tuple(rollouts))


def two_groups() -> list[Group]:
    """Four completions of 1, 2, 3 and 10 tokens; two right, one wrong, one failed and cut off."""
    first, second = make_group("p1", RIGHT, RIGHT), make_group("p2", WRONG, FAILED)
    first_rollouts = (
        make_rollout("p1", 0, RIGHT, (9,), 0.0, False),
        make_rollout("p1", 1, RIGHT, (9, 1), -0.25, False),
    )
    second_rollouts = (
        make_rollout("p2", 0, WRONG, (9, 8, 1), 0.0, False),
        make_rollout("p2", 1, FAILED, (3,) * 10, -1.0, True),
    )
    return [Group(first.prompt, first_rollouts), Group(second.prompt, second_rollouts)]


def test_rollout_metrics_by_hand():
    # rewards 1, 0.75, -1, -2
    assert rollout_metrics(two_groups()) == {
        "accuracy": 0.5,
        "reward": -0.3125,
        "length_penalty": -0.3125,
        "completed": 0.75,
        "truncated": 0.25,
    }


def test_length_metrics_by_hand():
    # lengths 1 2 3 10: the median lies between 2 and 3, p95 at place 2.85, that is 3 + 0.85 * 7
    by_hand = {"mean": 4.0, "p50": 2.5, "p95": pytest.approx(8.95), "max": 10}
    # a buffer that begins after 2 tokens holds the completions of 3 and of 10
    assert length_metrics(two_groups(), buffer_start=2) == by_hand | {"in_buffer": 0.5}
    assert length_metrics(two_groups(), buffer_start=None) == by_hand | {"in_buffer": None}


def test_verifier_metrics_by_hand():
    expected = {"right": 2, "wrong": 1, "failed": 1, "failed_timeout": 1, "failed_memory": 0, "failed_crash": 0}
    expected |= {"failed_error": 0, "failed_other": 0, "failed_share": 0.25}
    assert verifier_metrics(two_groups()) == expected


def test_nothing_to_measure_is_none_and_never_nan():
    metrics = step_metrics([], [], 2)
    assert metrics["judged/accuracy"] is metrics["length/p95"] is metrics["repetition/ngram_share"] is None
    assert metrics["verifier/failed"] == 0
    assert all(value is None or value == 0 for value in metrics.values())


def test_step_metrics_separate_judged_from_kept():
    first, second = two_groups()
    metrics = step_metrics(judged=[first, second], kept=[first], buffer_start=None)
    assert (metrics["judged/accuracy"], metrics["kept/accuracy"], metrics["kept/truncated"]) == (0.5, 1.0, 0.0)
    # only the ten equal tokens have 4-grams that repeat: 6 of 7, over 4 completions
    assert metrics["repetition/ngram_share"] == pytest.approx(6 / 7 / 4)


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [
        ((), 2, 0.0),
        ((1,), 2, 0.0),
        ((1, 2, 3, 4), 2, 0.0),
        ((7, 8, 7, 8, 7), 2, 0.5),
        ((5, 5, 5, 5, 5), 4, 0.5),
        ((1, 2, 1, 2), 3, 0.0),
    ],
)
def test_repeated_ngram_share_by_hand(tokens, n, share):
    assert repeated_ngram_share(tokens, n) == share


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_repeated_ngram_share_counts_what_occurred_before(tokens, n):
    ngrams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    before = sum(ngram in ngrams[:place] for place, ngram in enumerate(ngrams))
    assert repeated_ngram_share(tokens, n) == (before / len(ngrams) if ngrams else 0.0)


def test_in_order_depends_on_no_insertion_order_of_sections():
    figures = {"other/x": 1, "policy/loss": 2, "judged/reward": 3, "judged/accuracy": 4}
    assert list(in_order(figures)) == ["judged/reward", "judged/accuracy", "policy/loss", "other/x"]


def test_step_timings_by_hand():
    seconds = {"rollout": 2.0, "verify": 0.5, "score": 0.25, "update": 0.0, "step": 3.0}
    first, second = two_groups()
    timings = step_timings([RankTimings(seconds, 7, {})], [first, second], [first], [first], None)
    # 16 tokens generated, 3 trained on; no speed without time
    assert (timings["tokens_per_s/rollout"], timings["tokens_per_s/score"]) == (8.0, 12.0)
    assert timings["tokens_per_s/update"] is None
    assert timings["seconds/per_verdict"] == 0.125
    assert (timings["seconds/verify"], timings["seconds/step"], timings["memory/peak_bytes"]) == (0.5, 3.0, 7)
    assert not any(name.startswith("slowest_rank") for name in timings)


def test_step_timings_of_ranks_are_those_of_the_slowest():
    first, second = two_groups()
    fast = {"rollout": 1.0, "verify": 0.5, "score": 0.25, "update": 2.0, "step": 4.0}
    slow = {"rollout": 4.0, "verify": 0.3, "score": 0.25, "update": 1.0, "step": 4.0}
    ranks = [RankTimings(fast, 9, {"update": 3e12}), RankTimings(slow, 7, {"update": 1e12})]
    timings = step_timings(ranks, [first, second], [first], [first], device_peak=10e12)
    assert (timings["seconds/rollout"], timings["slowest_rank/rollout"]) == (4.0, 1)
    assert (timings["seconds/update"], timings["slowest_rank/update"]) == (2.0, 0)
    assert timings["tokens_per_s/rollout"] == 4.0
    assert timings["seconds/per_verdict"] == 0.125  # by the clock: the slowest rank takes 0.5 s for its share of 4
    assert timings["memory/peak_bytes"] == 9
    assert (timings["tflops_per_s/update"], timings["mfu/update"]) == (1.0, 0.1)  # 2e12 a rank in 2 s


def test_peak_memory_is_in_bytes():
    block = np.ones(30_000_000 // 8)
    assert 30_000_000 < peak_memory_bytes() < 2**40
    assert block[0] == 1


def test_json_lines_are_strict_and_exact():
    record = {"b": 0.1 + 0.2, "a": float("nan"), "c": [float("inf"), -float("inf")], "d": None, "e": np.float32(0.5)}
    line = json_line(record | {"text": "é\nx\udc80"})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    back = json.loads(line, parse_constant=pytest.fail)
    assert list(back) == ["b", "a", "c", "d", "e", "text"]
    assert back["b"] == 0.1 + 0.2 and back["d"] is None and back["e"] == 0.5
    assert (back["a"], *back["c"]) == ("NaN", "Infinity", "-Infinity")


def test_write_atomically_keeps_the_old_content_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    write_atomically(path, b"old")

    def full_disk(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new, longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


# Run folder -------------------------------------------------------------------------------------------------------


def track_steps(folder: RunFolder, steps: range, evaluate_at: tuple[int, ...] = ()) -> None:
    tracker = Trackers([FileTracker(folder, rollouts_per_step=3)])
    for step in steps:
        if step:
            outcomes = [RIGHT if (step + place) % 3 == 0 else WRONG for place in range(4)]
            groups = [make_group(f"s{step}", *outcomes)]
            tracker.rollouts(step, groups, {f"s{step}"})
            tracker.step(step, step_metrics(groups, groups, None))
            tracker.timings(step, {"seconds/step": step / 7})
        if step in evaluate_at:
            tracker.evaluation(step, {"eval/accuracy": step / 7, "eval/standard_error": None})
    tracker.close()


def contents(folder: RunFolder) -> dict[str, bytes]:
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@settings(max_examples=15)
@given(
    checkpoint=st.integers(0, 5),
    killed_after=st.integers(0, 6),
    torn=st.sampled_from([b"", b'{"st', b'{"step": 7}', b"\x00\x00"]),
)
def test_rewound_run_leaves_the_bytes_of_an_uninterrupted_one(tmp_path_factory, checkpoint, killed_after, torn):
    if killed_after < checkpoint:
        killed_after = checkpoint
    whole = RunFolder(tmp_path_factory.mktemp("whole"))
    broken = RunFolder(tmp_path_factory.mktemp("broken"))
    for folder in (whole, broken):
        folder.start({"run": 1}, "run: 1\n", b"")
    track_steps(whole, range(0, 7), evaluate_at=(0, 3, 6))
    track_steps(broken, range(0, killed_after + 1), evaluate_at=(0, 3, 6))
    for file in (broken.metrics_file, broken.timings_file, broken.evals_file):
        with open(file, "ab") as stream:
            stream.write(torn)
    (broken.rollouts / "step_000006.jsonl.tmp").write_bytes(b"{")

    broken.rewind(checkpoint)
    track_steps(broken, range(checkpoint + 1 if checkpoint else 0, 7), evaluate_at=(0, 3, 6))
    assert contents(broken) == contents(whole)


def test_rewind_refuses_metrics_that_lack_steps_of_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    track_steps(folder, range(1, 4))
    with pytest.raises(UserError, match="ends at step 3, though there is a checkpoint of step 5"):
        folder.rewind(5)


def test_rewind_names_an_unreadable_line(tmp_path):
    folder = RunFolder(tmp_path)
    track_steps(folder, range(1, 3))
    folder.metrics_file.write_bytes(b"oops\n" + folder.metrics_file.read_bytes())
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1"):
        folder.rewind(1)


@pytest.mark.parametrize("event", ["began", "rolled_back"])
def test_rewind_names_a_health_line_whose_step_is_no_number(tmp_path, event):
    folder = RunFolder(tmp_path)
    folder.health_file.write_text(json.dumps({"step": "two", "event": event}) + "\n")
    with pytest.raises(UserError, match=r"health\.jsonl, line 1: step is 'two', no number"):
        folder.rewind(0)


ROLLBACK = health_event(9, "entropy_collapse", "rolled_back", 7) | {"figures": {"to_step": 1, "lr_factor": 0.5}}


@pytest.mark.parametrize(
    "rollbacks",
    [
        None,
        {},
        [None],
        [ROLLBACK | {"figures": None}],
        [ROLLBACK, ROLLBACK | {"figures": {"to_step": 1, "lr_factor": ""}}],
        [ROLLBACK | {"step": "9"}],
        [{"event": "rolled_back", "step": 9, "figures": {"to_step": 1, "lr_factor": 0.5}}],
    ],
)
def test_damaged_rollbacks_of_a_manifest_are_named(tmp_path, rollbacks):
    folder = RunFolder(tmp_path)
    manifest = dict.fromkeys(MANIFEST_KEYS)
    folder.write_manifest(manifest | {"rollbacks": [ROLLBACK]})
    assert folder.read_manifest()["rollbacks"] == [ROLLBACK]
    folder.write_manifest(manifest | {"rollbacks": rollbacks})
    with pytest.raises(UserError, match=r"manifest\.json: unreadable \(rollbacks is no list"):
        folder.read_manifest()


def test_rewind_of_a_run_that_wrote_nothing(tmp_path):
    folder = RunFolder(tmp_path / "new")
    folder.start({"run": 1}, "", b"")
    folder.rewind(0)
    assert read_lines(folder.metrics_file) == []


def test_start_lays_out_the_folder_and_refuses_results_without_manifest(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "a b")
    assert not folder.started
    manifest = dict.fromkeys(MANIFEST_KEYS, "value")
    folder.start(manifest, "run:\n  seed: 1\n", b"diff")
    assert folder.started and folder.read_manifest() == manifest
    assert folder.patch_file.read_bytes() == b"diff"
    track_steps(folder, range(1, 2))
    folder.manifest_file.unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl but no manifest\.json"):
        folder.start({"seed": 1}, "", b"")


def test_the_lock_file_is_rewritten_only_for_other_packages(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.start({}, "", b"", b"a==1\n")
    folder.change_requirements(b"a==1\n", 2)
    assert not folder.until(2).path.exists()
    folder.change_requirements(b"a==2\n", 2)
    folder.change_requirements(b"a==3\n", 2)
    folder.change_requirements(b"a==4\n", 5)
    assert folder.requirements_file.read_bytes() == b"a==4\n"
    # No step was made with a==2, which another start replaced before the next one.
    assert folder.until(2).requirements_file.read_bytes() == b"a==1\n"
    assert folder.until(5).requirements_file.read_bytes() == b"a==3\n"
    folder.change({"later": 1}, "later", b"", 5)
    assert folder.until(5).recipe_file.read_bytes() == b"" and folder.until(5).manifest_file.exists()


def test_bad_manifests_are_user_errors(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match="no run folder"):
        folder.read_manifest()
    for damaged in ('{"a": ', "{}", "[]"):
        folder.manifest_file.write_text(damaged)
        with pytest.raises(UserError, match=r"manifest\.json: unreadable"):
            folder.read_manifest()


def test_a_file_in_place_of_the_run_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"run\.dir="), RunFolder(tmp_path / "file" / "run").lock():
        pass


HOLD_LOCK = """
    import os, sys, time
    from dapo_cli.tracking.run_folder import RunFolder
    with RunFolder(sys.argv[1]).lock():
        child = os.fork()
        if child == 0:
            print("held", os.getppid(), os.getpid(), flush=True)
        time.sleep(60)
"""


def test_the_lock_names_its_holder_and_dies_with_it_though_a_forked_child_lives_on(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(HOLD_LOCK), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    child = None
    try:
        _, pid, child = holder.stdout.readline().split()
        with pytest.raises(UserError, match=f"in use by process {pid} "), RunFolder(tmp_path).lock():
            pass
        holder.kill()
        holder.wait()
        os.kill(int(child), 0)
        with RunFolder(tmp_path).lock():
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
        if child:
            os.kill(int(child), signal.SIGKILL)


def test_the_lock_can_be_taken_again_after_release(tmp_path):
    for _ in range(2):
        with RunFolder(tmp_path).lock():
            pass


# Sample of rollouts -----------------------------------------------------------------------------------------------


def test_chosen_rollouts_by_hand():
    groups = [make_group("a", RIGHT, RIGHT, WRONG), make_group("b", WRONG, RIGHT), make_group("c", WRONG, WRONG)]
    chosen = [rollout.completion.text for _, rollout in choose_rollouts(groups, 4)]
    assert chosen == ["a/0", "b/1", "a/2", "c/0"]


@given(
    rows=st.lists(st.lists(st.sampled_from([RIGHT, WRONG, FAILED]), min_size=2, max_size=5), max_size=8),
    count=st.integers(0, 24),
)
def test_chosen_rollouts_are_many_enough_different_and_show_the_right_ones(rows, count):
    groups = [make_group(f"g{place}", *outcomes) for place, outcomes in enumerate(rows)]
    chosen = [rollout for _, rollout in choose_rollouts(groups, count)]
    outcomes = [outcome for row in rows for outcome in row]
    assert len({rollout.completion.text for rollout in chosen}) == len(chosen) == min(count, len(outcomes))
    chosen_right = sum(rollout.verdict.outcome is RIGHT for rollout in chosen)
    assert chosen_right >= min((count + 1) // 2, outcomes.count(RIGHT))


def test_a_rollouts_file_holds_what_an_audit_needs(tmp_path):
    folder = RunFolder(tmp_path)
    FileTracker(folder, rollouts_per_step=2).rollouts(3, two_groups(), {"p1"})
    first, second = read_lines(folder.rollouts_file(3))
    assert first == {
        "step": 3,
        "uid": "p1",
        "sample": 0,
        "prompt": "p1=?\n",
        "completion": "p1/0",
        "answer": "7",
        "outcome": "right",
        "extracted": "7",
        "rule": "answer_line",
        "correctness": 1.0,
        "length_penalty": 0.0,
        "reward": 1.0,
        "finish": "stop",
        "tokens": 1,
        "mean_logprob": -0.5,
        "kept": True,
    }
    assert (second["uid"], second["kept"]) == ("p2", False)


def test_no_rollouts_are_stored_when_none_are_asked_for(tmp_path):
    folder = RunFolder(tmp_path)
    FileTracker(folder, rollouts_per_step=0).rollouts(1, two_groups(), set())
    assert not folder.rollouts.exists()


# Terminal, summary ------------------------------------------------------------------------------------------------

EVALUATION = {
    "eval/accuracy": 0.461,
    "eval/standard_error": 0.0312,
    "eval/prompts": 256,
    "eval/samples_per_prompt": 1,
}


def step_figures(step: int) -> tuple[dict, dict]:
    metrics = {
        "judged/accuracy": step / 10,
        "judged/reward": step / 5 - 1,
        "sampler/informative_rate": None if step == 1 else 0.75,
        "policy/entropy": 0.25,
        "length/mean": 33.25,
        "policy/updates": step - 1,
    }
    return metrics, {"seconds/step": 2.0 if step == 1 else 4.0, "seconds/evaluate": 0.5, "tokens_per_s/rollout": 5210.4}


BEGAN = HealthEvent(
    2, "verifier_failures", EventKind.began, 2, HealthAction.pause, "37 of 512 verdicts failed.", {"failed": 37}
)
ENDED = replace(BEGAN, step=3, event=EventKind.ended, message="its signs are gone.", figures={})


def run_tracker(tracker) -> None:
    tracker.evaluation(0, EVALUATION)
    for step in (1, 2):
        tracker.rollouts(step, two_groups(), set())
        metrics, timings = step_figures(step)
        tracker.step(step, metrics)
        if step == 2:
            tracker.health(BEGAN)
        tracker.timings(step, timings)
    tracker.close()


def test_without_a_terminal_a_step_is_one_aligned_line(capsys):
    run_tracker(console_tracker(10, Console(force_terminal=False)))
    evaluation, heading, first, alarm, second = capsys.readouterr().out.splitlines()
    assert alarm == (
        "warning, step 2: verifier_failures: 37 of 512 verdicts failed. The run pauses: remove the file `paused` in "
        "its folder to go on."
    )
    assert health_line(ENDED) == "step 3: verifier_failures: its signs are gone."
    assert evaluation == "held-out accuracy 46.1% ± 3.1 after step 0 (256 prompts, 1 sample each)"
    failing = evaluation_line(3, EVALUATION | {"eval/verifier_failed": 1200})
    assert failing == "held-out accuracy 46.1% ± 3.1 after step 3 (256 prompts, 1 sample each, 1,200 verdicts failed)"
    assert evaluation_line(0, EVALUATION | {"eval/verifier_failed": 0}) == evaluation
    assert heading.split() == ["step", "accuracy", "reward", "informative", "entropy", "length", "tokens/s", "ETA"]
    # 9 steps of 2 s to go, then 8 of 3 s
    assert first.split() == ["1/10", "10.0%", "-0.80", "-", "0.250", "33.2", "5,210", "0:18"]
    assert second.split() == ["2/10", "20.0%", "-0.60", "75%", "0.250", "33.2", "5,210", "0:24"]
    assert len(heading) == len(first) == len(second)


def test_on_a_terminal_the_last_figures_and_the_course_are_drawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    drawn = io.StringIO()
    run_tracker(console_tracker(10, Console(file=drawn, force_terminal=True, width=80, color_system=None)))
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn.getvalue()).rsplit("step 2/10", 1)[-1]
    assert "ETA 0:24" in last and "20.0%" in last and "5,210" in last and "▁▂" in last
    assert "held-out accuracy 46.1% ± 3.1 after step 0" in drawn.getvalue()
    assert "warning, step 2: verifier_failures: 37 of 512 verdicts failed" in drawn.getvalue()


def test_summary_is_read_from_the_files_alone(tmp_path):
    folder = RunFolder(tmp_path)
    tracker = FileTracker(folder, rollouts_per_step=1)
    run_tracker(tracker)
    assert "46.1% ± 3.1 (step 0)" in summary_lines(folder)[0] and "->" not in summary_lines(folder)[0]
    tracker.evaluation(2, EVALUATION | {"eval/accuracy": 0.82, "eval/standard_error": None})
    folder.export.mkdir()
    accuracy, training, idle, health, metrics, rollouts, model = summary_lines(folder)
    assert idle.endswith("1 of 2 steps found no informative group")
    assert accuracy.endswith("46.1% ± 3.1 (step 0) -> 82.0% (step 2)")
    assert training.endswith("2 steps in 0:05, 2.5 s a step, 5,210 tokens/s in rollouts")
    assert health.split(maxsplit=1) == ["health", "verifier_failures (since step 2)"]
    for event in (ENDED, replace(BEGAN, step=9, event=EventKind.rolled_back)):
        tracker.health(event)
    assert summary_lines(folder)[3].endswith("  verifier_failures (steps 2 to 3; steps 2 to 9, rolled back)")
    assert metrics.endswith("metrics.jsonl") and rollouts.endswith("rollouts/") and model.endswith("export/")


def test_summary_names_no_rollouts_where_none_are_stored(tmp_path):
    folder = RunFolder(tmp_path)
    run_tracker(FileTracker(folder, rollouts_per_step=0))
    assert not any(line.startswith("rollouts") for line in summary_lines(folder))


def test_summary_of_a_run_that_did_nothing(tmp_path):
    accuracy, training, health, *_ = summary_lines(RunFolder(tmp_path))
    assert health.split(maxsplit=1) == ["health", "no alarms"]
    assert "no evaluation" in accuracy and training.endswith("0 steps")


def test_a_reader_who_goes_away_does_not_end_the_run(tmp_path):
    script = (
        "from dapo_cli.tracking.console import tell\n"
        "import time\n"
        "for n in range(50): tell('x' * 4000); time.sleep(0.01)\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    command = f"{sys.executable} -c {shlex.quote(script)} | head -1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert (tmp_path / "done").exists()


def test_a_line_half_written_is_no_record_and_the_next_takes_its_place(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    append_line(file, {"step": 1})
    for stump in (b'{"step": 2, "lo', b'{"step": 2}'):  # a line is whole with its end alone
        with file.open("ab") as end:
            end.write(stump)
        assert read_lines(file) == [{"step": 1}]
    append_line(file, {"step": 3})
    assert read_lines(file, "step") == [{"step": 1}, {"step": 3}]
    with pytest.raises(UserError, match=r"lines\.jsonl, line 1: no loss"):
        read_lines(file, "loss")
    file.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"lines\.jsonl, line 2: no JSON record"):
        read_lines(file)


def test_a_finished_run_that_goes_on_with_changes_is_not_finished(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start({"first": 1}, "", b"")
    for _ in range(2):
        folder.export.mkdir()
        (folder.export / "weights").touch()
        assert folder.finished
        folder.change({"second": 2}, "", b"", step=2)
        assert not folder.finished and (tmp_path / "until_step_000002/export/weights").exists()
