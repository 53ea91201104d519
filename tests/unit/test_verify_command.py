"""`dapo verify` and `dapo audit` from outside."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dapo_cli.cli.app import run
from dapo_cli.tracking.audit import oddest
from dapo_cli.tracking.run_folder import RunFolder

ROWS = [
    {"response": "It is \\boxed{\\frac12}.", "answer": "0.5", "correct": True},
    {"response": "Answer: 41", "answer": "42", "correct": False},
    {"response": "Answer: 1,234", "answer": 1234, "correct": True},
    {"response": "I am not sure.", "answer": "7", "correct": True},
]
OUTCOMES = ["right", "wrong", "right", "wrong"]


def jsonl(path: Path, rows: list) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def table_row(output: str, first_cell: str) -> list[str]:
    (row,) = [line.split() for line in output.splitlines() if line.startswith(first_cell + " ")]
    return row


def test_one_line_a_row_in_order_with_accuracy_beside_labels(tmp_path: Path, capsys, wide):
    out = tmp_path / "out.jsonl"
    assert run(["verify", jsonl(tmp_path / "in.jsonl", ROWS), "-o", str(out), "--workers", "1"], debug=False) == 0
    verdicts = lines(out)
    assert [list(verdict) for verdict in verdicts] == [["correct", "outcome", "extracted", "rule", "seconds"]] * 4
    assert [verdict["outcome"] for verdict in verdicts] == OUTCOMES
    assert [verdict["correct"] for verdict in verdicts] == [outcome == "right" for outcome in OUTCOMES]
    assert [verdict["extracted"] for verdict in verdicts] == [r"\frac12", "41", "1,234", None]
    assert all(0 <= verdict["seconds"] < 5 for verdict in verdicts)
    # rows, right, wrong, failed, ms each, labelled, accuracy, false +, false -
    row = table_row(capsys.readouterr().out, "math")
    assert row[1:5] + row[6:] == ["4", "2", "2", "0", "4", "75.00%", "0", "1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_parquet_with_other_names_chat_messages_and_no_labels(tmp_path: Path, capsys, wide):
    rows = [
        {"text": [{"role": "assistant", "content": row["response"]}], "gold": {"value": str(row["answer"])}}
        for row in ROWS
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    columns = ["--response-column", "text", "--answer-column", "gold.value"]
    out = tmp_path / "out.jsonl"
    assert run(["verify", str(tmp_path / "in.parquet"), *columns, "-o", str(out)], debug=False) == 0
    assert [verdict["outcome"] for verdict in lines(out)] == OUTCOMES
    assert "accuracy" not in capsys.readouterr().out


def test_csv_with_labels_in_words_and_a_worked_reference(tmp_path: Path, capsys, wide):
    file = tmp_path / "in.csv"
    file.write_text('output,gts,is_correct\n"Answer: 72","6*12 = 72\n#### 72",True\n"Answer: 7",72,false\n')
    assert run(["verify", str(file), "--workers", "1"], debug=False) == 0
    row = table_row(capsys.readouterr().out, "math")
    assert row[1:5] + row[6:] == ["2", "1", "1", "0", "2", "100.00%", "0", "0"]


def test_an_interrupt_keeps_what_was_judged(tmp_path: Path):
    rows = [{"response": f"Answer: {number}", "answer": "1"} for number in range(5000)]
    file, out, reward = jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", tmp_path / "slow.py"
    reward.write_text(
        "import time\ndef verify(prompt, completion, answer):\n"
        "    return time.sleep(60 if completion == 'Answer: 4999' else 0) is None\n"
    )
    arguments = ["verify", file, "--mode", str(reward), "--timeout-s", "60", "--workers", "1", "-o", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "dapo_cli", *arguments], stderr=subprocess.PIPE, text=True)
    partial = tmp_path / "out.jsonl.partial"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (partial.exists() and partial.stat().st_size):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and str(partial) in error and not out.exists()
    assert all(verdict["outcome"] == "right" for verdict in lines(partial))


def test_the_file_behind_a_link_is_written_and_a_device_stays_one(tmp_path: Path, capsys, wide):
    file, real, link = jsonl(tmp_path / "in.jsonl", ROWS), tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.write_text("old")
    link.symlink_to(real)
    assert run(["verify", file, "-o", str(link)], debug=False) == 0
    assert link.is_symlink() and len(lines(real)) == 4
    assert run(["verify", file, "-o", "/dev/null"], debug=False) == 0
    assert Path("/dev/null").is_char_device()


def test_two_modes_show_where_they_differ(tmp_path: Path, capsys, wide):
    file, out = jsonl(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    assert run(["verify", file, "--mode", "authors", "--mode", "math", "-o", str(out)], debug=False) == 0
    output = capsys.readouterr().out
    assert [verdict["outcome"] for verdict in lines(out)] == ["wrong", "wrong", "right", "wrong"]
    assert "1 responses on which the modes differ" in output
    (difference,) = [line for line in output.splitlines() if line.startswith("1 ") and "0.5" in line]
    assert "right" in difference and "wrong - (none)" in difference and r"right \frac12 (box:number)" in difference


def test_own_function_as_a_mode(tmp_path: Path, capsys, wide):
    reward = tmp_path / "my_reward.py"
    reward.write_text("def short(prompt, completion, answer):\n    return len(completion) < 12\n")
    out = tmp_path / "out.jsonl"
    arguments = ["verify", jsonl(tmp_path / "in.jsonl", ROWS), "--mode", f"{reward}:short", "-o", str(out)]
    assert run(arguments, debug=False) == 0
    assert [verdict["correct"] for verdict in lines(out)] == [False, True, False, False]


def test_failures_are_counted_by_cause(tmp_path: Path, capsys, wide):
    reward = tmp_path / "my_reward.py"
    reward.write_text(
        "import time\ndef verify(prompt, completion, answer):\n"
        "    return time.sleep(9) if '41' in completion else True\n"
    )
    arguments = ["verify", jsonl(tmp_path / "in.jsonl", ROWS), "--mode", str(reward), "--timeout-s", "0.3"]
    assert run(arguments, debug=False) == 0
    output = capsys.readouterr().out
    assert "failed by timeout 1" in output
    assert table_row(output, reward.name)[1:5] == ["4", "3", "0", "1"]


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (["{"], [], "line 1: not JSON"),
        ([ROWS[0], {"answer": "1"}], [], "line 2: no response: response or completion"),
        ([ROWS[0], {"response": "x", "answer": None}], [], "line 2: no answer"),
        ([ROWS[0], {"response": "x", "answer": ["1", "2"]}], [], "line 2: 2 answers where one is expected"),
        ([ROWS[0], {"response": 3, "answer": "1"}], [], "line 2: the response is neither text nor chat messages"),
        ([ROWS[0] | {"correct": "yes"}], [], "line 1: the label is not true or false: 'yes'"),
        ([*ROWS, *[{"response": "x"}] * 9], [], "9 of 13 rows cannot be used"),
        (ROWS, ["--response-column", "respons"], "line 1: no response: respons is absent"),
        (ROWS, ["--label-column", "corect"], "line 1: no column corect"),
        (ROWS, ["--prompt-column", "promt"], "line 1: no column promt"),
        ([{"response": "x", "answer": ""}], [], "line 1: the answer is empty"),
        (
            ROWS,
            ["--mode", "maths"],
            "--mode maths: no such mode; did you mean math?; the modes are math, authors, strict_boxed",
        ),
        (ROWS, ["--mode", "absent.py"], "--mode absent.py: reward.path=absent.py: cannot be read"),
        (ROWS, ["--workers", "0"], "reward.workers = 0: must be at least 1"),
        (ROWS, ["--timeout-s", "0"], "reward.timeout_s = 0.0: must be above 0"),
        (ROWS, ["-o", "{in}"], "is the file that is read"),
        (ROWS, ["-o", "{folder}"], "is a folder"),
        (ROWS, ["-o", "{folder}/no/out.jsonl"], "cannot be written"),
    ],
)
def test_bad_input_is_told_before_anything_is_judged(tmp_path: Path, capsys, rows, options, said):
    file = jsonl(tmp_path / "in.jsonl", rows)
    options = [option.replace("{in}", file).replace("{folder}", str(tmp_path)) for option in options]
    assert run(["verify", file, *options], debug=False) == 2
    error = capsys.readouterr().err
    assert said in error and "data.paths" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_absent_and_empty_files(tmp_path: Path, capsys):
    assert run(["verify", str(tmp_path / "absent.jsonl")], debug=False) == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert run(["verify", str(tmp_path / "empty.jsonl")], debug=False) == 2
    parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    assert run(["verify", str(tmp_path / "other.parquet")], debug=False) == 2
    error = capsys.readouterr().err
    assert "there is no file" in error and "is empty" in error and "--response-column" in error


# dapo audit


def record(step: int, completion: str, outcome: str = "right", rule: str = "box:text", answer: str = "5") -> dict:
    return {
        "step": step, "uid": "u", "sample": 0, "prompt": "2+3=?", "completion": completion, "answer": answer,
        "outcome": outcome, "extracted": "5", "rule": rule, "reward": 1.0, "finish": "stop",
    }  # fmt: skip


WORKED = "We add two and three, which is five: \\boxed{5}"


def test_rarest_format_first_and_each_format_before_a_second_of_any():
    records = [record(step, WORKED) for step in range(1, 9)]
    records += [record(2, "\\boxed{5}"), record(7, "\\boxed{5}")]  # little working
    records += [record(3, WORKED, rule="box:symbolic", answer="10/2")]
    found = [(finding.record["step"], finding.format, finding.alike) for finding in oddest(records, 5)]
    assert found == [
        (3, ("box:symbolic", "answer unlike the reference"), 1),
        (7, ("box:text", "little working (under 20 characters)"), 2),
        (8, ("box:text",), 8),
        (2, ("box:text", "little working (under 20 characters)"), 2),
        (7, ("box:text",), 8),
    ]


def test_audit_shows_a_run_and_refuses_what_is_none(tmp_path: Path, capsys, wide):
    folder = RunFolder(tmp_path / "run")
    folder.rollouts.mkdir(parents=True)
    folder.write_rollouts(1, [record(1, WORKED), record(1, "\\boxed{6}", outcome="wrong")])
    assert run(["audit", str(folder.path)], debug=False) == 0
    output = capsys.readouterr().out
    assert WORKED in output and "boxed{6}" not in output and "1 of 1 stored completions judged right" in output
    assert run(["audit", str(folder.path), "--outcome", "wrong"], debug=False) == 0
    assert "boxed{6}" in capsys.readouterr().out
    assert run(["audit", str(folder.path), "--outcome", "odd"], debug=False) == 2
    assert run(["audit", str(tmp_path)], debug=False) == 2
    assert "no stored completions" in capsys.readouterr().err
