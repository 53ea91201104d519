"""`dapo eval` as a user runs it: the shipped model, kills, a run's checkpoints, a server."""

import csv
import filecmp
import io
import json
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from dapo_cli.cli.app import run as run_command
from dapo_cli.data.arithmetic import problems
from tests.unit.endpoint_server import endpoint_server

DATA = Path(__file__).parents[3] / "shared" / "data"
PLAIN = ["--no-chat-template", "--instruction", "none"]
# Small batches, so that there is something to interrupt; top_p 1, so that the model errs.
SMALL = ["shipped:tiny-arithmetic", "-k", "4", "--top-p", "1", *PLAIN, "rollout.max_batch_completions=12"]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Done:
    """`dapo ARGUMENTS` in this process, which has loaded torch already."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run_command([str(argument) for argument in arguments], debug=False)
    return Done(status, out.getvalue(), err.getvalue())


def dapo(*arguments: object) -> list[str]:
    """The same as a process, to be killed."""
    return [sys.executable, "-m", "dapo_cli", *map(str, arguments)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """30 sums of the held-out side, with the number of their terms as level."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [
        {"question": f"{problem.expression}=?", "answer": str(problem.answer), "level": len(problem.terms)}
        for problem in problems(5, 30, held_out=True, min_terms=3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory, data) -> Path:
    """An evaluation that nothing interrupts."""
    folder = tmp_path_factory.mktemp("reference") / "evaluation"
    done = run("eval", *SMALL, "--data", data, "-o", folder)
    assert done.returncode == 0, done.stderr
    assert "avg@4" in done.stdout and "by level" in done.stdout and str(folder.name) in done.stdout
    assert "--max-tokens 20480 lowered to" in done.stderr
    return folder


def results(folder: Path, name: str = "results.json") -> dict:
    return json.loads((folder / name).read_text())


def assert_same(one: Path, other: Path) -> None:
    for name in ("generations.jsonl", "results.json", "problems.csv"):
        assert filecmp.cmp(one / name, other / name, shallow=False), name


def test_the_figures_are_those_of_the_stored_generations(reference, data):
    rows = [json.loads(line) for line in (reference / "generations.jsonl").read_text().splitlines()]
    questions = [json.loads(line)["question"] for line in data.read_text().splitlines()]
    assert [row["question"] for row in rows] == [question for question in questions for _ in range(4)]
    assert [row["sample_index"] for row in rows] == [0, 1, 2, 3] * 30
    by_problem = {question: [row for row in rows if row["question"] == question] for question in questions}
    rights = [sum(row["outcome"] == "right" for row in own) for own in by_problem.values()]
    found = results(reference)
    figures = {name: figure["value"] for name, figure in found["figures"].items() if isinstance(figure, dict)}
    assert 0 < figures["avg@4"] < 1
    assert figures["avg@4"] == pytest.approx(sum(rights) / 120)
    assert figures["pass@4"] == pytest.approx(sum(right > 0 for right in rights) / 30)
    assert figures["length_mean"] == pytest.approx(sum(row["tokens"] for row in rows) / 120)
    assert figures["no_answer"] == pytest.approx(sum(row["extracted"] is None for row in rows) / 120)
    assert sum(own["problems"] for own in found["parts"]["level"].values()) == 30
    manifest = results(reference, "manifest.json")
    assert manifest["recipe"]["top_p"] == 1.0 and manifest["data"][0]["prompts"] == 30
    assert manifest["model"]["files"]["model.safetensors"]


def test_two_evaluations_are_identical_and_another_seed_is_not(reference, data, tmp_path):
    assert run("eval", *SMALL, "--data", data, "-o", tmp_path / "again").returncode == 0
    assert_same(reference, tmp_path / "again")
    other = run("eval", *SMALL, "--data", data, "-o", tmp_path / "other", "--seed", "1", "--json")
    assert json.loads(other.stdout) == results(tmp_path / "other")
    assert results(tmp_path / "other")["figures"]["avg@4"] != results(reference)["figures"]["avg@4"]
    compared = run("eval", "--compare", reference, tmp_path / "other", "--json")
    found = json.loads(compared.stdout)
    difference = (
        results(tmp_path / "other")["figures"]["avg@4"]["value"] - results(reference)["figures"]["avg@4"]["value"]
    )
    assert found["difference"] == pytest.approx(difference)
    assert len(found["won"]) + len(found["lost"]) + found["tied"] == 30
    shown = run("eval", "--compare", reference, tmp_path / "other").stdout
    assert "B won" in shown and shown.startswith("differs: seed: 0 in A, 1 in B")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_interrupted_and_continued_equals_uninterrupted(reference, data, tmp_path, number):
    folder = tmp_path / "evaluation"
    command = dapo("eval", *SMALL, "--data", data, "-o", folder)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stored, deadline = folder / "generations.jsonl", time.monotonic() + 120
    while not stored.exists() or stored.stat().st_size == 0:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), errors
    assert not (folder / "results.json").exists()
    before = stored.read_bytes()
    stored.write_bytes(before + b'{"uid": "half a li')
    done = run("eval", *SMALL, "--data", data, "-o", folder)
    assert done.returncode == 0, done.stderr
    assert_same(reference, folder)
    again = json.loads((folder / "timings.jsonl").read_text().splitlines()[-1])
    assert again["problems"] == 30 - before.count(b"\n") // 4  # what was judged is not generated again


def test_a_changed_setting_is_refused_with_the_difference(reference, data):
    refused = run("eval", *SMALL, "--data", data, "-o", reference, "--temperature", "0.5", "--mode", "authors")
    assert refused.returncode == 2
    assert "temperature: 1.0 in the folder, 0.5 now" in refused.stderr
    assert "mode: math in the folder, authors now" in refused.stderr
    shorter = run("eval", *SMALL, "--data", data, "-o", reference, "--limit", "3")
    assert shorter.returncode == 2 and "limit: null in the folder, 3 now" in shorter.stderr


def test_rescoring_judges_what_is_stored(reference, tmp_path):
    (tmp_path / "mine.py").write_text("def short(prompt, completion, answer): return len(completion) < 40\n")
    own = f"{tmp_path}/mine.py:short"
    done = run("eval", "--rescore", reference, "--mode", "strict_boxed", "--mode", own, "--mode", "math")
    assert done.returncode == 0, done.stderr
    assert "math (stored)" in done.stdout and "strict_boxed" in done.stdout and "mine.py:short" in done.stdout
    assert results(reference, "results.strict_boxed.json")["figures"]["avg@4"]["value"] == 0
    assert results(reference, "results.math.json")["figures"] == results(reference)["figures"]
    rows = [json.loads(line) for line in (reference / "generations.jsonl").read_text().splitlines()]
    short = results(reference, "results.mine.py-short.json")["figures"]
    assert short["avg@4"]["value"] == pytest.approx(sum(len(row["text"]) < 40 for row in rows) / len(rows))
    assert "cons@4" not in short and "no_answer" not in short  # it tells no answers
    verdicts = (reference / "verdicts.mine.py-short.jsonl").read_text().splitlines()
    assert [json.loads(line)["uid"] for line in verdicts] == [row["uid"] for row in rows]


RUN = [
    "run.steps=3",
    "algorithm.groups_per_step=2",
    "algorithm.groups_per_update=2",
    "algorithm.samples_per_prompt=4",
    "sampler.max_prompts_per_round=6",
    "sampler.max_rounds=2",
    "optimizer.lr=0.01",
    "optimizer.warmup_steps=0",
    "data.prompts=64",
    "eval.data.prompts=8",
    "checkpoint.keep=2",
    "checkpoint.every=1",
]


def test_a_run_s_checkpoints_give_a_curve_that_ends_where_training_did(tmp_path):
    folder = tmp_path / "run"
    command = dapo("train", "quickstart", f"run.dir={folder}", *RUN)
    trained = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert trained.returncode == 0, trained.stderr
    # As the run itself evaluates: one completion at temperature 1, uncut, of its eval.data.
    own = ["-k", "1", "--top-p", "1", "--max-tokens", "80", "-o"]
    done = run("eval", folder, "--all-checkpoints", *own, tmp_path / "curve")
    assert done.returncode == 0, done.stderr
    assert "step 2" in done.stdout and "step 3" in done.stdout
    assert "temperature 1, top_p 1, at most 80 tokens" in done.stdout and "note:" not in done.stderr
    otherwise = run("eval", folder, "--limit", "1", "-k", "1", "--max-tokens", "70", "-o", tmp_path / "otherwise")
    assert otherwise.stderr.startswith(
        "note: eval.data: sampled by temperature 1, top_p 0.7, at most 70 tokens; the run's own evaluations by its "
        "eval.sampling, temperature 1, top_p 1, at most 80 tokens\n"
    )
    points = list(csv.DictReader((tmp_path / "curve" / "curve.csv").read_text().splitlines()))
    evals = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == ["2", "3"]
    assert float(points[1]["avg@1"]) == evals[-1]["eval/accuracy"]
    assert float(points[1]["length_mean"]) == evals[-1]["eval/length_mean"]
    export = run("eval", folder / "export", "--data", "arithmetic", *ARITHMETIC, *PLAIN, *own, tmp_path / "export")
    assert export.returncode == 0, export.stderr
    figures = results(tmp_path / "export")["figures"]
    assert figures == results(tmp_path / "curve" / "step_000003")["figures"]
    single = run("eval", folder, "--step", "2", *own, tmp_path / "two")
    assert single.returncode == 0, single.stderr
    assert_same_generations(tmp_path / "two", tmp_path / "curve" / "step_000002")
    assert "there are 2, 3" in run("eval", folder, "--step", "1").stderr
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["eval"]["sampling"]["top_k"] = 2  # which is no option of dapo eval
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    cut = run("eval", folder, "--limit", "1", *own, tmp_path / "cut")
    assert cut.returncode == 0 and results(tmp_path / "cut")["top_k"] == 2, cut.stderr


ARITHMETIC = ["data.held_out=true", "data.prompts=8", "data.max_prompt_tokens=32"]


def assert_same_generations(one: Path, other: Path) -> None:
    assert filecmp.cmp(one / "generations.jsonl", other / "generations.jsonl", shallow=False)


def test_a_server_s_model_is_evaluated_alike_and_goes_on_where_it_stopped(tmp_path):
    sums = tmp_path / "sums.jsonl"
    rows = [{"question": f"{number}+{number + 1}=?", "answer": str(2 * number + 1)} for number in range(12)]
    sums.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with endpoint_server() as server:
        arguments = ["eval", "some/model", "--engine", server.url, "--data", sums, "-k", "4", "--instruction", "none"]
        whole = run(*arguments, "-o", tmp_path / "whole")
        assert whole.returncode == 0, whole.stderr
        assert len(server.requests) == 12
        assert 0 < results(tmp_path / "whole")["figures"]["avg@4"]["value"] < 1
        server.failures = [400]
        refused = run(*arguments, "-o", tmp_path / "part")
        assert refused.returncode == 2 and "refuses with 400" in refused.stderr
        server.unknown = {"top_k"}
        assert run(*arguments, "-o", tmp_path / "part").returncode == 0
        assert results(tmp_path / "part", "manifest.json")["not_sent"] == ["top_k", "min_p", "repetition_penalty"]
        assert_same(tmp_path / "whole", tmp_path / "part")
        bodies = [body for _, _, body in server.requests]
        assert {body["model"] for body in bodies} == {"some/model"}
        papers = {"temperature": 1.0, "top_p": 0.7, "max_tokens": 20480}
        assert all(papers.items() <= body.items() for body in bodies)
        assert run(*arguments, "-o", tmp_path / "whole").returncode == 0  # all is there
        assert len(server.requests) == len(bodies)


def test_several_sets_go_to_folders_of_their_own(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "others.jsonl"
    other.write_text('{"question": "1+2=?", "answer": "3"}\n{"question": "4-2=?", "answer": "2"}\n')
    done = run("eval", *SMALL, "--data", data, "--data", other, "--limit", "2")
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "evals").iterdir())
    assert [folder.name.rpartition("-")[0] for folder in folders] == ["tiny-arithmetic-others", "tiny-arithmetic-sums"]
    assert [results(folder)["problems"] for folder in folders] == [2, 2]


@pytest.mark.slow
def test_a_file_s_name_may_hold_what_a_recipe_takes_for_a_reference(data, tmp_path):
    for name in ("we${x}ird.jsonl", r"a\${b}\c.jsonl", r"\\${.jsonl"):
        (tmp_path / name).write_bytes(data.read_bytes())
        done = run("eval", *SMALL, "--limit", "1", "--data", tmp_path / name, "-o", tmp_path / "out" / name[0])
        assert done.returncode == 0, done.stderr


def test_tables_that_agree_get_no_interval(reference):
    said = run("eval", "--compare", reference, reference).stdout
    assert "tied 30; all problems agree" in " ".join(said.split()) and "[" not in said
    found = json.loads(run("eval", "--compare", reference, reference, "--json").stdout)
    assert (found["difference"], found["low"], found["high"]) == (0.0, None, None)


REFUSED = [
    (["eval"], "MODEL_OR_RUN is missing"),
    (["eval", "shipped:tiny-arithmetic"], "--data is missing"),
    (["eval", "shipped:tiny-arithmetic", "--data", "aime_2023"], "did you mean aime_2025"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--chat-template"], "has no chat template"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--all-checkpoints"], "no run folder"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--engine", "sglang"], "--engine sglang: must be"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--engine", "http://"], "--engine http://: must be"),
    (["eval", "m", "--data", "DATA", "--engine", "http://:8000/v1"], "--engine http://:8000/v1: must be"),
    (["eval", "m", "--data", "DATA", "--engine", "http://host:port"], "--engine http://host:port: must be"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--no-chat-template"], "by --instruction none"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--instruction", "authors"], "160: leave such prompts out"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--temperature", "0"], "the same completion each time"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--temperature", "1e-320"], "greedy) or at least 0.01"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--mode", "maths"], "did you mean math?"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "--dtype", "float8"], "--dtype float8: must be one of"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "optimizer.lr=1"], "dapo eval takes KEY=VALUE of"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "rollout.max_batch=1"], "no such key"),
    (["eval", "shipped:tiny-arithmetic", "--data", "DATA", "rollout.max_batch_completions=2"], "is below -k 32"),
    (["eval", "--rescore", "nowhere", "--mode", "math"], "there is no nowhere"),
    (["eval", "--compare", "nowhere", "nowhere"], "there is no nowhere"),
    (["eval", "--compare", "a", "b", "--rescore", "x"], "--compare and --rescore exclude each other"),
    (["eval", "--compare", "a", "b", "--data", "DATA"], "--compare does not read --data"),
    (["eval", "--compare", "a", "b", "-k", "32"], "--compare does not read -k"),
    (["eval", "some/model", "--compare", "a", "b"], "--compare does not read some/model"),
    (["eval", "--rescore", "a", "--mode", "math", "--seed", "1"], "--rescore does not read --seed"),
    (["eval", "some/model", "--rescore", "a", "--mode", "math"], "--rescore reads no some/model"),
    (["eval", "--rescore", "a", "--mode", "math", "data.split=x"], "--rescore reads no data.split=x"),
    (["eval", "some/model", "--common"], "--common is read by --compare alone"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_evaluated_is_told_before_anything_is_written(data, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    refused = run(*(data if argument == "DATA" else argument for argument in arguments))
    assert refused.returncode == 2 and said in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not DATA.exists(), reason="needs the data sets beside the checkout")
@pytest.mark.parametrize("name", ["gsm8k_test.jsonl", "amc23.jsonl", "aime-2024.parquet", "math500"])
def test_real_sets_are_asked_with_the_instruction_once(tmp_path, name):
    with endpoint_server() as server:
        server.failures = [400]  # it knows no mathematics
        asked = ["--engine", server.url, "--data", DATA / name, "--limit", "1", "-k", "1", "-o", tmp_path / "x"]
        refused = run("eval", "m", *asked)
    assert "refuses with 400" in refused.stderr
    question = server.requests[0][2]["messages"][-1]["content"]
    assert question.count("The last line of your response should be of the form Answer:") == 1
