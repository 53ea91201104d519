"""`dapo report`: the right numbers from run folders written by hand, and a plain word on every run it cannot use."""

import csv
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from dapo_cli.cli.app import run
from dapo_cli.report.curves import curve, smoothed
from dapo_cli.report.figures import (
    COLOURS,
    curves_figure,
    histogram,
    ledger_bins,
    ledger_figure,
    outcome_figure,
    points_drawn,
)
from dapo_cli.report.formats import scale_of
from dapo_cli.report.health import alarm_lines
from dapo_cli.report.page import page
from dapo_cli.report.provenance import warnings
from dapo_cli.report.results import compare_points
from dapo_cli.report.runs import read_run
from dapo_cli.report.statistics import Basis, Estimate
from dapo_cli.report.study import read_study
from dapo_cli.report.tables import curves_csv, results_csv
from dapo_cli.report.words import headline, statements
from tests.unit.report_folders import (
    WINDOWS,
    eval_line,
    health_event,
    manifest_of,
    recipe_with,
    step_line,
    write_lines,
    write_plan,
    write_run,
)

HIGHER = {"algorithm__clip_high": 0.28}
CHANGED = {"algorithm.clip_high": [0.2, 0.28]}


@pytest.fixture
def ablation(tmp_path: Path) -> Path:
    """Three rungs over two seeds, 4 steps each; the last rung judges twice as many completions a step."""
    folder = tmp_path / "study"
    dynamic = HIGHER | {"sampler__dynamic": True}
    points = [
        ("base", {}, (0.40, 0.50), 5),
        ("clip", HIGHER, (0.45, 0.56), 5),
        ("dynamic", dynamic, (0.60, 0.64), 10),
    ]
    for name, changed, accuracies, prompts in points:
        for seed, accuracy in enumerate(accuracies):
            steps = [step_line(step, prompts=prompts, reward=0.1 * step) for step in range(1, 5)]
            place = folder / "points" / name / f"seed_{seed}"
            write_run(place, recipe_with(seed, 4, **changed), [(0, 0.2), (2, 0.3), (4, accuracy)], steps)
    plan = [
        {"name": "base", "label": "naive GRPO"},
        {"name": "clip", "label": "+ clip-higher", "changed": CHANGED},
        {"name": "dynamic", "changed": CHANGED | {"sampler.dynamic": [False, True]}},
    ]
    return write_plan(folder, plan, kind="ladder")


def report(*arguments: object) -> int:
    return run(["report", *map(str, arguments)], debug=True)


def rows_of(table: bytes) -> dict[str, dict[str, str]]:
    return {row["point"]: row for row in csv.DictReader(io.StringIO(table.decode()))}


def looked(ablation: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """The warnings, a line each, and results.csv by point."""
    results = compare_points(read_study([str(ablation)]), "eval/accuracy")
    return "\n".join(warnings(results.study)), rows_of(results_csv(results))


def test_the_table_holds_the_worked_numbers(ablation: Path) -> None:
    _, rows = looked(ablation)
    assert list(rows) == ["base", "clip", "dynamic"]
    expected = {
        # 12.706205 * s / sqrt(2), which of two values is 12.706205 * half their distance
        ("base", "mean"): 0.45,
        ("base", "mean_low"): 0.45 - 12.706205 * 0.05,
        ("clip", "mean"): 0.505,
        ("clip", "to_baseline"): 0.055,  # 0.05 and 0.06
        ("clip", "to_baseline_high"): 0.055 + 12.706205 * 0.005,
        ("dynamic", "to_baseline"): 0.17,  # 0.20 and 0.14
        ("dynamic", "to_before"): 0.115,  # 0.15 and 0.08
        ("dynamic", "to_before_low"): 0.115 - 12.706205 * 0.035,
        ("dynamic", "seed_1"): 0.64,
        ("base", "rollouts"): 80,  # 4 steps of 5 prompts of 4
        ("dynamic", "rollouts"): 160,
        ("base", "rollouts_in_common"): 80,
        ("dynamic", "mean_at_common_rollouts"): 0.3,  # spent at step 2
        ("base", "seconds"): 6.0,  # 4 times 2 s less 0.5 s of evaluating
        ("base", "step"): 4,
        ("base", "judged/reward"): 0.4,  # the last step: a tenth of 4 is less than one
        ("base", "length/mean"): 34.0,
        ("base", "sampler/informative_rate"): 0.5,
    }
    for (point, column), value in expected.items():
        assert float(rows[point][column]) == pytest.approx(value, abs=1e-6), (point, column)
    assert rows["base"]["to_baseline"] == rows["base"]["to_before"] == ""
    assert rows["clip"]["to_baseline_distinguishable"] == "no"
    assert rows["clip"]["mean_over"] == "seeds" and rows["clip"]["to_baseline_count"] == "2"


def test_curves_csv_holds_every_step_and_what_was_spent(ablation: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(curves_csv(read_study([str(ablation)])).decode())))
    assert len(rows) == 3 * 2 * 5
    chosen = [row for row in rows if row["point"] == "dynamic" and row["seed"] == "1"]
    assert [row["rollouts"] for row in chosen] == ["0", "40", "80", "120", "160"]
    assert [row["eval/accuracy"] for row in chosen] == ["0.2", "", "0.3", "", "0.64"]
    assert [row["seconds"] for row in chosen] == ["0.0", "1.5", "3.0", "4.5", "6.0"]


def test_figures_of_steps_are_means_over_the_last_tenth(tmp_path: Path) -> None:
    steps = [step_line(step, entropy=float(step)) for step in range(1, 31)]
    write_run(tmp_path / "run", recipe_with(0, 30), [(0, 0.2), (30, 0.5)], steps)
    results = compare_points(read_study([str(tmp_path / "run")]), "eval/accuracy")
    assert results.points[0].training["policy/entropy"] == pytest.approx((28 + 29 + 30) / 3)


def test_whatever_is_in_timings_can_be_compared(ablation: Path) -> None:
    run = read_run(ablation / "points" / "base" / "seed_0", "base")
    assert run.series("seconds/step") == [(step, 2.0) for step in range(1, 5)]


def test_the_page_says_what_can_and_cannot_be_told_apart(ablation: Path) -> None:
    results = compare_points(read_study([str(ablation)]), "eval/accuracy")
    said = " ".join(headline(results))
    assert "that of “dynamic”: 62.0 %" in said
    assert "+17.0 points (95 % interval −21.1 to +55.1, paired over 2 seeds): not distinguishable from 0" in said
    assert "Not distinguishable from the baseline at 95 %: “+ clip-higher” and “dynamic”." in said
    assert "160 rollouts a run by “dynamic”, 80 by “naive GRPO”" in said
    assert "At 80 rollouts each, the highest mean is that of “+ clip-higher”: 50.5 %." in said
    assert statements(results)[1].count("not distinguishable") == 2  # to the baseline, and to the rung before


def test_a_difference_that_is_distinguishable_alone_is_bold(tmp_path: Path) -> None:
    for name, changed, accuracies in (("a", {}, (0.2, 0.3, 0.4)), ("b", HIGHER, (0.5, 0.61, 0.7))):
        for seed, accuracy in enumerate(accuracies):
            write_run(tmp_path / f"points/{name}/seed_{seed}", recipe_with(seed, 4, **changed), [(4, accuracy)])
    write_plan(tmp_path, [{"name": "a"}, {"name": "b", "changed": CHANGED}], seeds=(0, 1, 2))
    results = compare_points(read_study([str(tmp_path)]), "eval/accuracy")
    assert rows_of(results_csv(results))["b"]["to_baseline_distinguishable"] == "yes"
    html = page(results, []).decode()
    assert html.count('class="number told"') == 1 and "+30.3 [+28.9, +31.8]</td>" in html
    assert "Distinguishably above the baseline at 95\u00a0%: “b”." in html


class TestBadRuns:
    """Whatever is wrong with a run is said, and the others are reported."""

    def test_missing(self, ablation: Path) -> None:
        (ablation / "points/clip/seed_1/manifest.json").unlink()
        said, rows = looked(ablation)
        assert "clip/seed_1 is missing: no manifest.json: never started." in said
        assert rows["clip"]["finished"] == "1" and float(rows["clip"]["to_baseline"]) == pytest.approx(0.05)
        assert rows["clip"]["mean_over"] == "prompts" and rows["clip"]["seed_1"] == ""

    def test_unfinished(self, ablation: Path) -> None:
        folder = ablation / "points/dynamic/seed_0"
        write_lines(folder / "metrics.jsonl", [step_line(step) for step in (1, 2)])
        (folder / "export").rmdir()
        said, rows = looked(ablation)
        assert "dynamic/seed_0 is unfinished: stopped after step 2 of 4." in said
        assert rows["dynamic"]["seed_0"] == "" and float(rows["dynamic"]["mean"]) == 0.64

    def test_last_evaluation_missing(self, ablation: Path) -> None:
        write_lines(ablation / "points/base/seed_0/evals.jsonl", [eval_line(0, 0.2), eval_line(2, 0.3)])
        assert "base/seed_0 is unfinished: all 4 steps, but no evaluation after the last one." in looked(ablation)[0]

    def test_failed(self, ablation: Path) -> None:
        folder = ablation / "points/clip/seed_0"
        write_lines(folder / "metrics.jsonl", [step_line(1)])
        (folder / "export").rmdir()
        status = folder.with_suffix(".status.jsonl")
        write_lines(status, [{"event": "started"}, {"event": "failed", "exit_code": 1, "message": "Error: no space"}])
        with status.open("a") as file:
            file.write('{"event": "sta')  # of a start that a power cut ended
        said = "clip/seed_0 is failed: exit code 1: Error: no space (stopped after step 1 of 4)."
        assert said in looked(ablation)[0]

    @pytest.mark.parametrize(
        ("name", "lines", "said"),
        [
            ("metrics.jsonl", ['{"step": 1', ""], "metrics.jsonl, line 1: no JSON record"),
            (
                "metrics.jsonl",
                [json.dumps(step_line(1)), json.dumps(step_line(1)), ""],
                "metrics.jsonl, line 2: step 1",
            ),
            ("metrics.jsonl", ['{"step": 1, "verifier/right": 3}', ""], "line 1: no sampler/rollouts_total"),
            (
                "evals.jsonl",
                ['{"step": 0, "eval/accuracy": "NaN", "eval/prompts": 9}', ""],
                "evals.jsonl, line 1: step 0",
            ),
            ("timings.jsonl", ["[]", ""], "timings.jsonl, line 1: no JSON record"),
            ("manifest.json", ["{}"], "manifest.json: unreadable"),
        ],
    )
    def test_damaged(self, ablation: Path, name: str, lines: list[str], said: str) -> None:
        (ablation / "points/base/seed_1" / name).write_text("\n".join(lines))
        found, rows = looked(ablation)
        assert "base/seed_1 is damaged: " in found and said in found
        assert rows["base"]["finished"] == "1" and rows["dynamic"]["finished"] == "2"

    def test_of_another_seed(self, ablation: Path) -> None:
        manifest = manifest_of(recipe_with(5, 4))
        (ablation / "points/base/seed_1/manifest.json").write_text(json.dumps(manifest))
        assert "run.seed is 5, the plan says 1" in looked(ablation)[0]

    def test_a_line_half_written_is_not_there_yet(self, ablation: Path) -> None:
        with open(ablation / "points/base/seed_1/metrics.jsonl", "a") as file:
            file.write('{"step": 5, "verif')
        assert looked(ablation)[1]["base"]["finished"] == "2"

    def test_ended_by_its_budget(self, ablation: Path) -> None:
        folder = ablation / "points/base/seed_0"
        recipe = recipe_with(0, 100, run__budget_rollouts=80)
        (folder / "manifest.json").write_text(json.dumps(manifest_of(recipe)))
        (folder / "export").rmdir()
        assert "base/seed_0 is unfinished: stopped after step 4 of 100." in looked(ablation)[0]
        (folder / "export").mkdir()
        said, rows = looked(ablation)
        assert "seed_0 is" not in said and rows["base"]["finished"] == "2"

    def test_none_finished(self, ablation: Path, tmp_path: Path) -> None:
        for file in ablation.glob("points/*/*/evals.jsonl"):
            write_lines(file, [eval_line(0, 0.2)])
        assert report(ablation, "-o", tmp_path / "r.html") == 0
        assert "No run of any point has come to its end yet" in (tmp_path / "r.html").read_text()
        rows = rows_of((tmp_path / "r_files" / "results.csv").read_bytes())
        assert all(row["mean"] == "" for row in rows.values())

    def test_none_begun(self, ablation: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for file in ablation.glob("points/*/*/manifest.json"):
            file.unlink()
        assert run(["report", str(ablation)], debug=False) == 2
        assert "no run has finished a step; base/seed_0: missing" in capsys.readouterr().err


class TestRunFolders:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> list[str]:
        """Two seeds of one recipe and two of another, in turn; where they save and how often is no difference."""
        folders = []
        for seed in (0, 1):
            for name, changed in (("a", {}), ("b", HIGHER)):
                recipe = recipe_with(seed, 4, run__dir=f"runs/{name}{seed}", checkpoint__every=1 + seed, **changed)
                accuracy = 0.3 + 0.1 * seed + 0.2 * (name == "b")
                folders.append(str(write_run(tmp_path / f"{name}{seed}", recipe, [(0, 0.1), (4, accuracy)])))
        return folders

    def test_runs_that_differ_in_the_seed_alone_are_one_point(self, runs: list[str]) -> None:
        study = read_study(runs)
        assert [[run.seed for run in point.runs] for point in study.points] == [[0, 1], [0, 1]]
        assert study.baseline is study.points[0]
        assert read_study(runs, baseline=runs[3]).baseline.name == runs[1]

    def test_what_was_changed_comes_from_the_recipes(self, runs: list[str]) -> None:
        results = compare_points(read_study(runs), "eval/accuracy")
        html = page(results, []).decode()
        assert "<code>algorithm.clip_high</code></td><td><code>0.2</code></td><td><code>0.28</code>" in html
        assert "checkpoint.every" not in html and "run.dir" not in html
        rows = rows_of(results_csv(results))
        assert float(rows[runs[1]]["to_baseline"]) == pytest.approx(0.2)
        assert rows[runs[1]]["to_baseline_over"] == "alike"  # 0.2 in both seeds

    def test_terminal(self, runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        assert report(*runs) == 0
        shown = capsys.readouterr().out
        assert "55.0 ± 63.5" in shown and "35.0 ± 63.5" in shown and "2 of 2" in shown

    def test_a_narrow_terminal_cuts_no_word(self, runs: list[str], capsys, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        assert report(*runs) == 0
        shown = capsys.readouterr().out
        assert "…" not in shown and "informative groups, %" in shown.replace("\u00a0", " ")

    def test_another_metric_needs_no_evaluation(self, runs: list[str], capsys) -> None:
        for folder in runs:
            (Path(folder) / "evals.jsonl").unlink()
            recipe = json.loads((Path(folder) / "manifest.json").read_text())["recipe"]
            recipe["eval"]["data"] = None
            (Path(folder) / "manifest.json").write_text(json.dumps(manifest_of(recipe)))
        assert run(["report", *runs], debug=False) == 2
        assert "--metric eval/accuracy: in no run" in capsys.readouterr().err
        assert run(["report", *runs, "--metric", "judged/acuracy"], debug=False) == 2
        assert "did you mean judged/accuracy?" in capsys.readouterr().err
        results = compare_points(read_study(runs), "judged/accuracy")
        assert float(rows_of(results_csv(results))[runs[0]]["mean"]) == pytest.approx(8 / 20)

    def test_one_point_alone_is_compared_with_nothing(self, runs: list[str], capsys, tmp_path: Path) -> None:
        assert report(runs[0]) == 0
        shown = capsys.readouterr().out
        assert "30.0 ± 9.1 (p)" in shown
        assert "Mean held-out accuracy at the end of training: 30.0 % (95 % interval " in shown
        assert report(runs[0], runs[2], "-o", tmp_path / "r.html") == 0
        seen = Page((tmp_path / "r.html").read_text())
        for word in ("baseline", "ifference to", "highest mean"):
            assert word not in shown and word not in seen.text, word
        assert f"{runs[0]} and 1 more" in seen.text and "Table 3. Every run" in seen.text
        row = rows_of(results_csv(compare_points(read_study(runs[:1]), "eval/accuracy")))[runs[0]]
        error = (0.3 * 0.7 / 99) ** 0.5
        assert float(row["mean_high"]) == pytest.approx(0.3 + 1.984217 * error, abs=1e-6)  # t of 99

    def test_what_cannot_be_compared_is_refused(self, runs: list[str], ablation: Path, tmp_path: Path, capsys) -> None:
        twin = write_run(tmp_path / "twin", recipe_with(0, 4), [(4, 0.3)])
        (tmp_path / "empty").mkdir()
        for arguments, said in (
            ([*runs, str(twin)], "the same recipe and seed"),
            ([str(tmp_path / "empty")], "neither a run folder (manifest.json) nor an ablation"),
            ([runs[0], str(ablation)], "is an ablation: give it alone"),
            ([*runs, "--baseline", "a7"], "--baseline a7: no such point"),
            ([*runs, "-o", str(tmp_path)], "is a folder; give a file"),
        ):
            assert run(["report", *arguments], debug=False) == 2
            assert said in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("{", "ablation.json: unreadable"),
            ("{}", "ablation.json: no points"),
            ('{"points": []}', "ablation.json: no name"),
        ],
    )
    def test_a_damaged_plan_is_refused(self, tmp_path: Path, content: str, said: str, capsys) -> None:
        (tmp_path / "ablation.json").write_text(content)
        assert run(["report", str(tmp_path)], debug=False) == 2
        assert said in capsys.readouterr().err


def test_the_baseline_of_a_plan_can_be_another_point(ablation: Path) -> None:
    results = compare_points(read_study([str(ablation)], "clip"), "eval/accuracy")
    differences = [result.to_baseline.mean if result.to_baseline else None for result in results.points]
    assert differences == [pytest.approx(-0.055), None, pytest.approx(0.115)]
    assert all(result.to_before is None for result in results.points)  # no ladder from there


def changed_manifest(folder: Path, *path: str, value: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    *parents, leaf = path
    node = manifest
    for name in parents:
        node = node[name]
    node[leaf] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            ("code", "commit"),
            "9" * 40,
            "Runs differ in commit: bbbbbbbbbb (base/seed_0, base/seed_1, clip/seed_0, clip",
        ),
        (("code", "package_sha256"), "9" * 64, "Runs differ in code (dapo_cli's sources)"),
        (("code", "dirty"), True, "Uncommitted changes to the code (code.patch in the run folder): dynamic/seed_1."),
        (("data",), [{"sha256": "9" * 64}], "Runs differ in data"),
        (("model", "files"), {"model.safetensors": "9" * 64}, "Runs differ in model"),
        (("packages", "torch"), "2.14.0", "Runs differ in package torch: 2.13.0 ("),
        (("hardware", "gpus"), ["H200"], "Runs differ in processor or GPU"),
        (("recipe", "algorithm", "samples_per_prompt"), 8, "the recipes of its runs differ in more than the seed"),
        (("resumes",), [{"step": 2, "changes": ["run.steps: 2 …"]}], "Resumed with another recipe, data or code"),
    ],
)
def test_what_the_runs_do_not_share_is_said(ablation: Path, path, value, said) -> None:
    changed_manifest(ablation / "points/dynamic/seed_1", *path, value=value)
    assert said in looked(ablation)[0]


def test_an_extra_that_only_some_have_and_other_folders_are_no_difference(ablation: Path) -> None:
    changed_manifest(ablation / "points/dynamic/seed_1", "packages", "vllm", value="0.32.0")
    changed_manifest(ablation / "points/dynamic/seed_1", "data", value=[{"path": "else.jsonl", "sha256": "c" * 64}])
    assert looked(ablation)[0] == ""


def test_changes_that_the_plan_hides_are_said(ablation: Path) -> None:
    for folder in (ablation / "points/clip").iterdir():
        changed_manifest(folder, "recipe", "algorithm", "samples_per_prompt", value=8)
        changed_manifest(folder, "recipe", "eval", "every", value=4)
    said = looked(ablation)[0]
    assert "“+ clip-higher” differs from the baseline in what the plan does not name: algorithm.samples_per" in said
    assert "“+ clip-higher” is evaluated otherwise than the baseline: eval.every." in said


class Page(HTMLParser):
    """What a browser would fetch or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "style", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert('x')</script> & \"$x_{$\" _ </td>"


def test_the_page_needs_nothing_else_and_text_stays_text(ablation: Path, tmp_path: Path) -> None:
    plan = json.loads((ablation / "ablation.json").read_text())
    plan["name"] = plan["recipe"] = HOSTILE
    for point in plan["points"]:
        point["label"] = "_" + HOSTILE
        point["reference"] = 30
    (ablation / "ablation.json").write_text(json.dumps(plan))
    changed_manifest(ablation / "points/clip/seed_0", "packages", "torch", value=HOSTILE)
    assert report(ablation, "-o", tmp_path / "r.html") == 0
    html = (tmp_path / "r.html").read_text()
    seen = Page(html)
    assert not {"script", "link", "iframe", "object", "base"} & set(seen.tags)
    assert len(seen.sources) == 3 and all(source.startswith("data:image/png;base64,") for source in seen.sources)
    assert "http:" not in html and "https:" not in html and "@import" not in html and "url(" not in html
    assert seen.text.count(HOSTILE) > 10


def test_the_same_runs_give_the_same_bytes(ablation: Path, tmp_path: Path) -> None:
    assert report(ablation, "-o", tmp_path / "r.html") == 0
    names = ["curves.csv", "curves_over_rollouts.png", "curves_over_steps.png", "outcome.png", "results.csv"]
    assert sorted(path.name for path in (tmp_path / "r_files").iterdir()) == names
    again = compare_points(read_study([str(ablation)]), "eval/accuracy")
    for name, content in {
        "results.csv": results_csv(again),
        "curves.csv": curves_csv(again.study),
        "outcome.png": outcome_figure(again),
    }.items():
        assert (tmp_path / "r_files" / name).read_bytes() == content, name


def test_a_mean_at_equal_rollouts_needs_evaluations_near_there(tmp_path: Path) -> None:
    """The thriftier point ends at 400 rollouts; the other spends 800 and was evaluated at 0 and 800, then at 380 and
    420 too, between which a line is read."""
    base = [step_line(step, prompts=5) for step in range(1, 21)]
    write_run(tmp_path / "base", recipe_with(0, 20), [(0, 0.1), (20, 0.4)], base)
    steps = [step_line(step, prompts=5) for step in range(1, 41)]
    other = write_run(tmp_path / "other", recipe_with(0, 40), [(0, 0.1), (40, 0.9)], steps)
    for evals, there, words in (
        ([(0, 0.1), (40, 0.9)], "", "cannot be told: “OTHER” has a run without evaluations within 5 % of there"),
        ([(0, 0.1), (19, 0.5), (21, 0.6), (40, 0.9)], 0.55, "the highest mean is that of “OTHER”: 55.0 %"),
        ([(0, 0.1), (20, 0.3), (40, 0.9)], 0.3, "the highest mean is that of “BASE”: 40.0 %"),
    ):
        write_lines(other / "evals.jsonl", [eval_line(step, accuracy) for step, accuracy in evals])
        results = compare_points(read_study([str(tmp_path / "base"), str(other)]), "eval/accuracy")
        found = rows_of(results_csv(results))[str(other)]["mean_at_common_rollouts"]
        assert (found and pytest.approx(float(found))) == there
        said = words.replace("OTHER", str(other)).replace("BASE", str(tmp_path / "base"))
        assert said in " ".join(headline(results))


def test_a_plan_that_varies_a_list_hides_nothing(ablation: Path) -> None:
    for name, paths in (("base", ["a"]), ("clip", ["b", "c"])):
        for folder in (ablation / "points" / name).glob("seed_?"):
            changed_manifest(folder, "recipe", "data", value={"paths": paths})
    plan = json.loads((ablation / "ablation.json").read_text())
    plan["points"][1]["changed"] = CHANGED | {"data.paths": [["a"], ["b", "c"]]}
    (ablation / "ablation.json").write_text(json.dumps(plan))
    assert "clip-higher” differs" not in looked(ablation)[0]


@pytest.mark.parametrize("points", [1, 2])
def test_curves_of_one_step_are_laid_out_and_seen(tmp_path: Path, points: int, recwarn) -> None:
    folders = []
    for number in range(points):
        recipe = recipe_with(0, 1, algorithm__clip_high=0.2 + number)
        folders.append(str(write_run(tmp_path / str(number), recipe, [(0, 0.2), (1, 0.4)])))
    results = compare_points(read_study(folders), "eval/accuracy")
    assert outcome_figure(results)
    for over in ("step", "rollouts"):
        image = imread(io.BytesIO(curves_figure(results, over)))
        height, width = image.shape[:2]
        entropy = image[int(0.35 * height) : int(0.55 * height), : width // 2, :3]  # the second of three rows
        is_blue = np.all(np.abs(entropy - to_rgb(COLOURS[1])) < 0.02, axis=2)
        assert is_blue.any() == (points == 2)
    assert [str(warning.message) for warning in recwarn] == []


RIGHT = ([0.2, 0.3, 0.3, 0.4], [0.3, 0.3, 0.5, 0.8])  # shares of the prompts that are all solved, by seed and step


def test_a_ledger_adds_its_histogram(ablation: Path) -> None:
    assert ledger_figure(compare_points(read_study([str(ablation)]), "eval/accuracy")) is None
    for file in ablation.glob("points/*/*/metrics.jsonl"):
        seed = int(file.parent.name.removeprefix("seed_"))
        shares = [{"ledger/seen": 5, "ledger/share_0": 1 - right, "ledger/share_100": right} for right in RIGHT[seed]]
        write_lines(file, [step_line(step) | found for step, found in enumerate(shares, start=1)])
    results = compare_points(read_study([str(ablation)]), "eval/accuracy")
    bins = ledger_bins(results)
    assert bins == ["ledger/share_0", "ledger/share_100"]
    heights = [histogram(results.points[0].point, bins, last=last) for last in (False, True)]
    assert heights == [pytest.approx([75, 25]), pytest.approx([40, 60])]
    drawn = ledger_figure(results)
    assert drawn is not None
    assert "Difficulty of the prompts seen so far" in page(results, [("difficulty", drawn)]).decode()


def test_more_points_than_colours_are_drawn_in_part_and_said_so(tmp_path: Path) -> None:
    for number in range(10):
        recipe = recipe_with(0, 4, algorithm__clip_high=0.2 + number)
        write_run(tmp_path / f"points/p{number}/seed_0", recipe, [(0, 0.1), (4, 0.1 + 0.01 * number)])
    names = [{"name": f"p{number}", "changed": {"algorithm.clip_high": [0.2, 0.2 + number]}} for number in range(1, 10)]
    write_plan(tmp_path, [{"name": "p0"}, *names], seeds=(0,))
    results = compare_points(read_study([str(tmp_path)]), "eval/accuracy")
    assert [point.name for point in points_drawn(results)] == ["p0", "p3", "p4", "p5", "p6", "p7", "p8", "p9"]
    drawn = page(results, [("curves_over_steps", curves_figure(results, "step"))]).decode()
    assert "the baseline and the 7 of the highest mean are drawn; 2 more" in drawn


def test_curves_of_runs_that_spent_differently_meet_where_all_have_been(tmp_path: Path) -> None:
    """Seed 0 evaluates at 0 and 80 rollouts, seed 1 at 0, 40 and 120: both have been at 0, 40 and 80."""
    four = [step_line(step, prompts=5) for step in (1, 2, 3, 4)]
    three = [step_line(step, prompts=10) for step in (1, 2, 3)]
    runs = [
        read_run(write_run(tmp_path / "0", recipe_with(0, 4), [(0, 0.1), (4, 0.5)], four), "0"),
        read_run(write_run(tmp_path / "1", recipe_with(1, 3), [(0, 0.3), (1, 0.5), (3, 0.9)], three), "1"),
    ]
    found = curve(runs, "eval/accuracy", "rollouts")
    assert found is not None and found.x == [0, 40, 80] and found.count == 2
    assert found.mean == pytest.approx([0.2, 0.4, 0.6])  # (0.1, 0.3), (0.3, 0.5), (0.5, 0.7)
    assert found.low == pytest.approx([0.1, 0.3, 0.5]) and found.high == pytest.approx([0.3, 0.5, 0.7])


def test_a_terminal_is_told_the_latest_alarms_and_how_many_more_there_are(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", recipe_with(0, 4), [])
    on, *others = WINDOWS
    ended = [health_event(step, rule, event, step) for step, rule in enumerate(others) for event in ("began", "ended")]
    write_lines(folder / "health.jsonl", [health_event(1, on, "began", 1), *ended])
    lines = alarm_lines(read_run(folder, "run"))
    assert [line.partition(",")[0] for line in lines] == [
        f"run: {on} (since step 1",
        f"run: {others[4]} (step 4",
        f"run: {others[3]} (step 3",
        f"run: 3 alarms more in {folder / 'health.jsonl'}",
    ]


def test_of_single_steps_only_what_is_asked_for_is_kept(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", recipe_with(0, 1), []), "run", figures=["policy/entropy", "not/there"])
    assert run.steps == [{"step": 1, "sampler/rollouts_total": 20, "policy/entropy": 0.5}]


@pytest.mark.parametrize("steps", [24, 57, 240])
def test_running_means_are_those_of_the_steps_around(tmp_path: Path, steps: int) -> None:
    values = [0.1 + 0.01 * (step * 37 % 11) for step in range(steps)]
    values[5] = 1e12
    lines = [step_line(step + 1, entropy=value) for step, value in enumerate(values)]
    run = read_run(write_run(tmp_path / "run", recipe_with(0, steps), [], lines), "run")
    reach = steps // 24
    slow = [
        math.fsum(around) / len(around) for n in range(steps) if (around := values[max(0, n - reach) : n + reach + 1])
    ]
    found = smoothed(run, "policy/entropy")
    assert found == [(step + 1, pytest.approx(value, rel=1e-6)) for step, value in enumerate(slow)]
    assert {value for _, value in smoothed(run, "judged/reward")} == {-0.2}


def test_noisy_figures_are_running_means(tmp_path: Path) -> None:
    """24 steps: over 3 of them, at the ends over 2."""
    steps = [step_line(step, entropy=float(step % 3)) for step in range(1, 25)]
    found = curve([read_run(write_run(tmp_path / "0", recipe_with(0, 24), [(24, 0.5)], steps), "0")], "policy/entropy")
    assert found is not None and len(found.mean) == 24
    assert found.mean[0] == 1.5 and found.mean[1:-1] == pytest.approx([1.0] * 22) and found.mean[-1] == 1.0


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("eval/accuracy", "50.0 %"),
        ("sampler/informative_rate", "50.0 %"),
        ("ledger/share_to_25", "50.0 %"),
        ("policy/clip_high_of_positive", "50.0 %"),
        ("mismatch/ess", "50.0 %"),
        ("ledger/never_solved", "50.0 %"),
        ("policy/ratio_max", "0.500"),
        ("length/mean", "0.500 tokens"),
        ("rollouts", "0.500"),
    ],
)
def test_shares_are_read_in_percent(key: str, shown: str) -> None:
    assert scale_of(key, [0.5]).value(0.5) == shown


def test_columns_stand_digit_below_digit_and_no_zero_has_a_sign() -> None:
    wide, narrow = Estimate(-0.123, 0.111, 3, Basis.SEEDS), Estimate(-0.0001, 0.012, 3, Basis.SEEDS)
    scale = scale_of("eval/accuracy")
    assert scale.differences([wide, None, narrow]) == ["−12.3 [−23.4, −1.2]", "–", "\u2007\u20070.0 \u2007[−1.2, +1.2]"]
    assert scale.means([wide, narrow]) == ["−12.3 ± 11.1", "\u2007\u20070.0 ± \u20071.2"]
