"""`reward: python`: a user's file in the pool, its faults told before any work, and the worked example of docs/."""

import json
import textwrap
from pathlib import Path

import pytest

from dapo_cli.config.schema import PythonReward
from dapo_cli.errors import UserError
from dapo_cli.reward.modes import build_verifier
from dapo_cli.types import Case, Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]


def reward_file(folder: Path, source: str) -> str:
    path = folder / "my_reward.py"
    path.write_text(textwrap.dedent(source))
    return str(path)


def judged(path: str, *cases: Case, function: str = "verify", **limits: object) -> list[Verdict]:
    with build_verifier(PythonReward(path=path, function=function, **limits)) as pool:
        return pool.verify(cases)


def test_function_gets_prompt_completion_and_answer_and_may_return_either_type(tmp_path: Path):
    path = reward_file(
        tmp_path,
        """
        import dataclasses
        from helper import shout              # a neighbour of the file
        from dapo_cli.types import Outcome, Verdict

        @dataclasses.dataclass
        class Note:
            text: str

        def verify(prompt, completion, answer):
            print("printed in the worker")
            if prompt == "verdict":
                return Verdict(Outcome.RIGHT, shout(completion), Note("mine").text)
            return completion + prompt == answer
        """,
    )
    (tmp_path / "helper.py").write_text("def shout(text): return text.upper()\n")
    verdicts = judged(path, Case("b", "a", "ab"), Case("b", "a", "ba"), Case("verdict", "x", ""))
    assert verdicts == [
        Verdict(Outcome.RIGHT, None, "function"),
        Verdict(Outcome.WRONG, None, "function"),
        Verdict(Outcome.RIGHT, "X", "mine"),
    ]


def test_faults_of_single_cases_fail_alone(tmp_path: Path):
    path = reward_file(
        tmp_path,
        """
        import os, time, numpy
        def judge(prompt, completion, answer):
            match completion:
                case "raise": return {}["absent"]
                case "none": return None
                case "float": return 1.0
                case "exit": os._exit(1)
                case "hang": time.sleep(60)
                case "memory": return len(bytearray(4 << 30)) > 0
                case "numpy": return numpy.float64(1) == 1
            return True
        """,
    )
    texts = ["ok", "raise", "none", "float", "exit", "hang", "memory", "numpy", "also ok"]
    verdicts = judged(path, *(Case("", text, "") for text in texts), function="judge", timeout_s=1.0, workers=1)
    assert {text: verdict.rule for text, verdict in zip(texts, verdicts, strict=True)} == {
        "ok": "function",
        "raise": "error:KeyError",
        "none": "error:TypeError",
        "float": "error:TypeError",
        "exit": "crash",
        "hang": "timeout",
        "memory": "memory",
        "numpy": "function",
        "also ok": "function",
    }
    assert [verdict.outcome is Outcome.FAILED for verdict in verdicts] == [
        verdict.rule != "function" for verdict in verdicts
    ]


def test_the_first_error_is_shown_once_from_the_files_first_frame(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = reward_file(tmp_path, "def verify(prompt, completion, answer):\n    return {}[completion]\n")
    judged(path, *(Case("", str(number), "") for number in range(40)), workers=2)
    shown = capfd.readouterr().err
    assert shown.startswith(
        f"reward.path={path}: a verdict failed. The first error:\nTraceback (most recent call last)"
    )
    assert [line.strip() for line in shown.splitlines() if "File " in line] == [f'File "{path}", line 2, in verify']
    assert shown.count("KeyError") == 1


def test_the_run_keeps_the_file_it_began_with(tmp_path: Path):
    dies = "import os\ndef verify(prompt, completion, answer):\n    return completion != 'die' or os._exit(1)\n"
    path = reward_file(tmp_path, dies)
    with build_verifier(PythonReward(path=path, workers=1, timeout_s=0.5)) as pool:
        pool.wait_until_ready()
        reward_file(tmp_path, "def verify(prompt, completion, answer): return False\n")
        verdicts = pool.verify([Case("", "die", ""), Case("", "then a new worker judges", "")])
    assert [verdict.outcome for verdict in verdicts] == [Outcome.FAILED, Outcome.RIGHT]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def verify(:\n", "line 1: not Python"),
        ("import re\nprint(nothing)\n", "line 2: loading it raised NameError"),
        ("import no_such_module_here\n", "line 1: loading it raised ModuleNotFoundError"),
        ("def verfy(prompt, completion, answer): return True\n", "defines none of that name (it defines verfy)"),
        ("verify = 3\n", "defines none of that name"),
        ("\0", "not Python"),
    ],
)
def test_a_file_that_cannot_serve_is_a_user_error(tmp_path: Path, source: str, message: str):
    with pytest.raises(UserError) as told, build_verifier(PythonReward(path=reward_file(tmp_path, source))) as pool:
        pool.wait_until_ready()
    assert message in str(told.value) and "my_reward.py" in str(told.value)


def test_an_absent_file_is_a_user_error(tmp_path: Path):
    for path in (tmp_path / "absent.py", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            build_verifier(PythonReward(path=str(path)))


def test_the_documented_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    examples = ROOT / "docs" / "examples"
    rows = [json.loads(line) for line in (examples / "sql_responses.jsonl").read_text().splitlines()]
    cases = [Case(row["prompt"], row["response"], row["answer"]) for row in rows]
    verdicts = judged(str(examples / "sql_reward.py"), *cases, Case(cases[0].prompt, "```sql\nSELECT 1\n```", "SELEC"))
    assert [verdict.outcome is Outcome.RIGHT for verdict in verdicts[:-1]] == [row["correct"] for row in rows]
    assert verdicts[-1].rule == "error:OperationalError"
    assert list(tmp_path.iterdir()) == []
