"""Alarms as health.jsonl tells of them: paired by hand, and shown by `dapo report` and `dapo diff`."""

from pathlib import Path

import pytest

from dapo_cli.cli.app import run
from dapo_cli.errors import UserError
from dapo_cli.report.diff import diff_runs
from dapo_cli.report.health import steps_of_alarms
from dapo_cli.report.page import page
from dapo_cli.report.results import compare_points
from dapo_cli.report.runs import read_run
from dapo_cli.report.study import read_study
from dapo_cli.tracking.health_file import Alarm, read_alarms
from tests.unit.report_folders import WINDOWS, health_event, recipe_with, signs_of, write_lines, write_run

COLLAPSE, RUNAWAY, DRIFT = "entropy_collapse", "length_runaway", "mismatch_drift"


def spans(file: Path, *events: dict) -> list[tuple[str, str, bool]]:
    write_lines(file, events)
    return [(alarm.rule, alarm.steps, alarm.on) for alarm in read_alarms(file) or ()]


def test_each_alarm_lasts_from_its_signs_to_its_own_rules_end(tmp_path: Path) -> None:
    events = [
        health_event(12, COLLAPSE, "began", since=9),
        health_event(13, RUNAWAY, "began", since=13),
        health_event(15, COLLAPSE, "ended", since=9),
        health_event(16, COLLAPSE, "began", since=16),
        health_event(16, COLLAPSE, "ended", since=16),
    ]
    assert spans(tmp_path / "health.jsonl", *events) == [
        (COLLAPSE, "steps 9 to 15", False),
        (RUNAWAY, "since step 13", True),
        (COLLAPSE, "step 16", False),
    ]


def test_a_rollback_is_an_alarm_by_itself_and_ends_none_of_before(tmp_path: Path) -> None:
    """An alarm began at step 2 and ended at 6; the next took the run from 9 back to 3, before that end, which cut it
    away: the first one is on again."""
    events = [
        health_event(2, COLLAPSE, "began", since=1),
        health_event(9, COLLAPSE, "rolled_back", since=5),
        health_event(7, COLLAPSE, "ended", since=1),
    ]
    rolled_back = (COLLAPSE, "steps 5 to 9, rolled back", False)
    assert spans(tmp_path / "health.jsonl", *events[:2]) == [(COLLAPSE, "since step 1", True), rolled_back]
    assert spans(tmp_path / "health.jsonl", *events) == [(COLLAPSE, "steps 1 to 7", False), rolled_back]


@pytest.mark.parametrize(("event", "told"), [("began", "was on already"), ("ended", "was not on")])
def test_what_does_not_pair_is_named_with_its_line(tmp_path: Path, event: str, told: str) -> None:
    first = health_event(1, COLLAPSE if event == "began" else RUNAWAY, "began", 1)
    with pytest.raises(UserError, match=f"line 2: {COLLAPSE} {event}, but it {told}; restore the file"):
        spans(tmp_path / "health.jsonl", first, health_event(2, COLLAPSE, event, 1))


def test_an_alarm_keeps_what_was_said_when_it_was_raised(tmp_path: Path) -> None:
    file = tmp_path / "health.jsonl"
    began = health_event(12, COLLAPSE, "began", since=9)
    write_lines(file, [began, health_event(14, COLLAPSE, "ended", since=9) | {"message": "well again", "figures": {}}])
    assert read_alarms(file) == [
        Alarm(COLLAPSE, 9, 12, "note", began["message"], began["figures"], ended=14, rolled_back=False)
    ]


def test_no_file_is_not_no_alarm(tmp_path: Path) -> None:
    file = tmp_path / "health.jsonl"
    assert read_alarms(file) is None
    file.write_text('{"step": 3, "ru')  # being written
    assert read_alarms(file) == []


def test_an_unknown_event_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "health.jsonl"
    write_lines(file, [health_event(1, COLLAPSE, "began", 1), health_event(2, COLLAPSE, "paused", 1)])
    with pytest.raises(UserError, match="line 2: event is 'paused'"):
        read_alarms(file)


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """One run with two alarms, one without any, one that kept no such file; each of other recipes."""
    folders = {
        name: write_run(tmp_path / name, recipe_with(0, 4, algorithm__clip_high=clip), [(4, 0.5)])
        for name, clip in (("loud", 0.2), ("quiet", 0.28), ("old", 0.3))
    }
    events = [
        health_event(2, COLLAPSE, "began", 1),
        health_event(3, COLLAPSE, "ended", 1),
        health_event(3, DRIFT, "began", 3) | {"message": "KL is off by <much>"},
    ]
    write_lines(folders["loud"] / "health.jsonl", events)
    write_lines(folders["quiet"] / "health.jsonl", [])
    return folders


def html_of(*folders: Path) -> str:
    return page(compare_points(read_study(list(map(str, folders))), "eval/accuracy"), []).decode()


def test_the_page_lists_alarms_and_says_nothing_of_runs_without_the_file(runs: dict[str, Path]) -> None:
    html = html_of(*runs.values())
    assert "2 alarms in 1 of 2 runs." in html and "6 How to read this" in html
    for cell in ("<code>entropy_collapse</code>", "steps 1 to 3", "since step 3", "KL is off by &lt;much&gt;"):
        assert f"<td>{cell}</td>" in html
    quiet = html_of(runs["quiet"], runs["old"])
    assert "No alarm in 1 run." in quiet and "Table 5" not in quiet
    assert "4 How to read this" in html_of(runs["old"]) and "Health" not in html_of(runs["old"])


def test_the_terminals_report_lists_them_too(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", *map(str, runs.values())], debug=True) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Health: 2 alarms in 1 of 2 runs." in told
    assert "entropy_collapse (steps 1 to 3, note): policy/entropy fell from 0.5 to 0.1 nats" in told


def test_an_alarm_is_marked_on_the_figures_that_raised_it(runs: dict[str, Path]) -> None:
    (loud,) = read_study([str(runs["loud"])]).runs
    quiet = read_run(runs["quiet"], "quiet")
    marked = {key: steps_of_alarms([loud, quiet], key) for key in ("policy/entropy", "mismatch/kl", "judged/reward")}
    assert marked == {"policy/entropy": [2], "mismatch/kl": [3], "judged/reward": []}


@pytest.mark.parametrize("rule", WINDOWS)
def test_a_rule_s_figures_have_the_names_of_the_metrics_it_read(rule: str) -> None:
    read = {key for key in WINDOWS[rule] if key != "length/mean"}  # that one only says how long
    assert read <= signs_of(rule).figures.keys()


def test_diff_shows_the_alarms_of_both(runs: dict[str, Path]) -> None:
    found = diff_runs(runs["loud"], runs["quiet"]).results["health alarms"]
    assert found == ("entropy_collapse (steps 1 to 3); mismatch_drift (since step 3)", "none")
    assert diff_runs(runs["quiet"], runs["old"]).results["health alarms"] == ("none", None)
    assert "health alarms" not in diff_runs(runs["old"], runs["old"]).results
