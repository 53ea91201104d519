"""The folder of an evaluation: whatever a kill leaves is read as far as it is whole."""

import json

import pytest

from dapo_cli.config.schema import StrictBoxedReward
from dapo_cli.data.questions import Message, Question
from dapo_cli.errors import UserError
from dapo_cli.evaluation.compare import compare
from dapo_cli.evaluation.records import Problem, Sample, judged_rows, problem_scores
from dapo_cli.evaluation.rescore import rescore
from dapo_cli.evaluation.results import csv_bytes, problem_row
from dapo_cli.evaluation.session import unfinished_batches
from dapo_cli.evaluation.store import MANIFEST_KEYS, EvaluationFolder, read_generations
from dapo_cli.types import Finish, Outcome, Prompt, Verdict

RIGHT, WRONG = Verdict(Outcome.RIGHT, "4", "box:text"), Verdict(Outcome.WRONG, "5", "box:number")


def problem(uid: str) -> Problem:
    return Problem(Question((Message("user", f"{uid}?"),), "4", "s", "w"), Prompt(uid, f"{uid}?\n", (1,), "4", "s"))


def judged(uid: str, verdicts=(RIGHT, WRONG), text: str = "the text\nof two lines\u2028é"):
    return judged_rows(problem(uid), [Sample(text, Finish.STOP, 3)] * len(verdicts), verdicts)


@pytest.fixture
def folder(tmp_path) -> EvaluationFolder:
    found = EvaluationFolder(tmp_path)
    found.append([judged("a"), judged("b")])
    found.append([judged("c")])
    return found


def test_what_is_stored_comes_back(folder):
    assert folder.recover(2) == {uid: judged(uid) for uid in "abc"}


def test_a_cut_at_any_byte_of_the_last_line_loses_its_problem_alone(folder):
    whole = folder.generations_file.read_bytes()
    start, last_line = whole.index(b'{"uid": "c"'), whole.rindex(b'{"uid": "c"')
    for cut in (start + 1, last_line - 1, *range(last_line, len(whole))):
        folder.generations_file.write_bytes(whole[:cut])
        assert list(folder.recover(2)) == ["a", "b"], cut
        assert folder.generations_file.read_bytes() == whole[:start]
    folder.append([judged("c")])
    assert folder.generations_file.read_bytes() == whole


def test_blocks_that_were_never_written_are_dropped_and_damage_elsewhere_is_told(folder):
    whole = folder.generations_file.read_bytes()
    folder.generations_file.write_bytes(whole + b"\0" * 40 + b"\n")
    assert list(folder.recover(2)) == ["a", "b", "c"]
    lines = whole.splitlines(keepends=True)
    for broken, where in (
        (lines[:1] + lines[2:], "line 2: completion 1 of a should be here"),
        (lines[:2] + lines[3:], "line 3: the first completion of another problem should be here"),
        ([*lines, *lines[:2]], "line 7: the first completion of another problem should be here"),
        ([lines[0], b"{}\n", *lines[2:]], "line 2: no judged completion (it has no uid)"),
    ):
        folder.generations_file.write_bytes(b"".join(broken))
        with pytest.raises(UserError, match=r"generations\.jsonl") as caught:
            folder.recover(2)
        assert where in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("text", 5, "its text is 5: must be a text"),
        ("answer", None, "its answer is null: must be a text"),
        ("extracted", [1], r"its extracted is \[1\]: must be a text or null"),
        ("tokens", None, "its tokens is null: must be a number"),
        ("tokens", True, "its tokens is true"),
        ("tokens", float("nan"), "its tokens is NaN"),
        ("sample_index", 0.0, "its sample_index is 0.0: must be a whole number"),
        ("outcome", "blub", 'its outcome is "blub": must be one of right, wrong, failed'),
        ("finish", None, "its finish is null: must be one of stop, length"),
    ],
)
def test_values_of_another_kind_are_told_by_their_line(folder, key, value, said):
    lines = folder.generations_file.read_bytes().splitlines(keepends=True)
    for number in (3, 6):  # the last one, too: a kill leaves no whole line of JSON behind that is no completion
        broken = lines.copy()
        broken[number - 1] = json.dumps({**json.loads(broken[number - 1]), key: value}).encode() + b"\n"
        folder.generations_file.write_bytes(b"".join(broken))
        with pytest.raises(UserError, match=rf"generations\.jsonl, line {number}: .*{said}"):
            folder.recover(2)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[1]",
        b"\xff",
        b'{"mode": 1, "figures": {}}',
        b'{"mode": "math"}',
        b'{"mode": "math", "figures": {"avg@2": 0.5}}',
        b'{"mode": "math", "figures": {"avg@2": {"value": null, "low": null, "high": null}}}',
    ],
)
def test_results_that_cannot_be_shown_are_told_before_anything_is_judged(folder, content):
    folder.results_file.write_bytes(content)
    with pytest.raises(UserError, match=r"results\.json: no results of an evaluation"):
        rescore(folder.path, StrictBoxedReward())
    assert not list(folder.path.glob("*strict_boxed*"))


def test_a_manifest_without_prompts_is_told(folder):
    for content in ("[1]", "5", json.dumps({key: {} for key in MANIFEST_KEYS})):
        folder.manifest_file.write_text(content)
        with pytest.raises(UserError, match=r"manifest\.json: (unreadable|names no recipe)"):
            rescore(folder.path, StrictBoxedReward())


def test_the_number_of_samples_shows_in_the_file(folder):
    assert {uid: len(rows) for uid, rows in read_generations(folder.generations_file)[0].items()} == dict.fromkeys(
        "abc", 2
    )


def test_the_finished_file_is_in_the_order_of_the_data(tmp_path, folder):
    other = EvaluationFolder(tmp_path / "other")
    other.path.mkdir()
    for uid in "cab":
        other.append([judged(uid)])
    other.put_in_order([judged(uid) for uid in "abc"])
    assert other.generations_file.read_bytes() == folder.generations_file.read_bytes()


def test_batches_that_are_not_done_are_generated_whole():
    problems = [problem(uid) for uid in "abcdefg"]
    again = [each.prompt.uid for each in unfinished_batches(problems, {"a", "b", "c", "d", "g"}, together=3)]
    assert again == ["d", "e", "f"]
    assert [each.prompt.uid for each in unfinished_batches(problems, {"a", "c"}, together=1)] == list("bdefg")


def table(path, rights: dict[str, int]):
    scores = problem_scores(
        [judged(uid, [RIGHT] * right + [WRONG] * (4 - right)) for uid, right in rights.items()], lambda pairs: []
    )
    path.write_bytes(csv_bytes([problem_row(score) for score in scores]))
    return path


def test_a_comparison_by_hand(tmp_path):
    a = table(tmp_path / "a.csv", {"s": 1, "q": 2, "r": 4, "p": 0})
    b = table(tmp_path / "b.csv", {"s": 3, "r": 3, "q": 2, "p": 4})
    found = compare(a, b, common=False)
    assert (found.mean_a, found.mean_b, found.difference) == (7 / 16, 12 / 16, 5 / 16)
    assert [(pair.uid, pair.a, pair.b) for pair in found.won] == [("p", 0.0, 1.0), ("s", 0.25, 0.75)]
    assert [pair.uid for pair in found.lost] == ["r"] and found.tied == 1
    assert found.low < found.difference < found.high
    swapped = compare(b, a, common=False)
    assert swapped.difference == -found.difference and [pair.uid for pair in swapped.lost] == ["p", "s"]


def test_a_problem_s_line_has_shares_by_the_figures_names_and_counts_apart():
    failed = Verdict(Outcome.FAILED, None, "timeout")
    (score,) = problem_scores([judged("a", [RIGHT, WRONG, failed, RIGHT])], lambda pairs: [])
    row = problem_row(score)
    assert {name: row[name] for name in ("avg@4", "pass@2", "cons@4", "verifier_failed", "truncated")} == {
        "avg@4": 0.5, "pass@2": 5 / 6, "cons@4": 1.0, "verifier_failed": 0.25, "truncated": 0.0
    }  # fmt: skip
    assert [row[f"num_{name}"] for name in ("samples", "right", "verifier_failed", "no_answer")] == [4, 2, 1, 0]


def test_rows_with_other_columns_stand_in_one_table():
    assert csv_bytes([{"step": 1, "a": 2}, {"step": 2, "b": None, "c": 0.5}]) == b"step,a,b,c\n1,2,,\n2,,,0.5\n"


def test_pairing_takes_out_how_hard_problems_are(tmp_path):
    """B solves each problem once more often than A: whatever is drawn, the difference is 1/4."""
    a = table(tmp_path / "a.csv", {f"p{n}": n % 4 for n in range(12)})
    b = table(tmp_path / "b.csv", {f"p{n}": n % 4 + 1 for n in range(12)})
    found = compare(a, b, common=False)
    assert (found.low, found.difference, found.high) == (0.25, 0.25, 0.25)


def test_other_problems_are_refused_unless_the_common_ones_are_asked_for(tmp_path):
    a, b = table(tmp_path / "a.csv", {"p": 1, "q": 2}), table(tmp_path / "b.csv", {"q": 3, "r": 3})
    with pytest.raises(UserError, match=r"1 in both, 1 only in .*a.csv \(p.*1 only in .*b.csv \(r") as caught:
        compare(a, b, common=False)
    assert "--common" in str(caught.value)
    found = compare(a, b, common=True)
    assert (found.problems, found.difference, found.only_a, found.only_b, found.low) == (1, 0.25, 1, 1, None)
    with pytest.raises(UserError, match="is not finished"):
        compare(unfinished(tmp_path / "x"), b, common=True)
    (tmp_path / "no.csv").write_text("uid,other\np,1\n")
    with pytest.raises(UserError, match="no table of judged problems"):
        compare(tmp_path / "no.csv", b, common=True)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["p,2,4,?", "q,5,4,?"], "line 3: .*num_right=5 of num_samples=4"),
        (["p,-5,4,?"], "line 2: .*num_right=-5 of num_samples=4"),
        (["p,0,0,?"], "line 2: .*num_right=0 of num_samples=0"),
        (["p,2,4,?", "q,1,4,?", "p,3,4,?"], "line 4: .*uid p is that of line 2"),
        (["p,2,4,?", "q,many,4,?"], "line 3: .*'many'"),
        (["p,2,4"], "line 2: .*it has no question"),
    ],
)
def test_a_table_that_no_evaluation_writes_is_told_by_its_line(tmp_path, lines, said):
    broken, whole = tmp_path / "broken.csv", table(tmp_path / "b.csv", {"p": 1, "q": 2})
    broken.write_text("\n".join(["uid,num_right,num_samples,question", *lines, ""]))
    for pair in ((broken, whole), (whole, broken)):
        with pytest.raises(UserError, match=f"broken.csv, {said}"):
            compare(*pair, common=True)


def unfinished(path):
    path.mkdir()
    EvaluationFolder(path).append([judged("p")])
    return path


def test_rows_are_plain_json(folder):
    row = json.loads(folder.generations_file.read_bytes().splitlines()[0])  # U+2028 ends no line of JSONL
    assert (row["question"], row["prompt"], row["outcome"], row["extracted"]) == ("a?", "a?\n", "right", "4")


def test_an_unfinished_evaluation_and_one_being_written_are_not_rescored(folder):
    manifest = {key: {} for key in ("recipe", "model", "code", "packages", "resumes")} | {"data": [{"prompts": 4}]}
    folder.manifest_file.write_text(json.dumps(manifest | {"recipe": {"k": 2}}))
    with pytest.raises(UserError, match="holds 3 whole problems of 4; go on with the evaluation first"):
        rescore(folder.path, StrictBoxedReward())
    with folder.lock(), pytest.raises(UserError, match=r"^-o=.*in use by process .*another -o"):
        rescore(folder.path, StrictBoxedReward())
    assert not list(folder.path.glob("*strict_boxed*"))


def test_a_comparison_says_what_was_measured_otherwise(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, recipe in zip(folders, ({"mode": "math", "k": 4}, {"mode": "authors", "k": 4, "seed": 1}), strict=True):
        folder.mkdir()
        table(folder / "problems.csv", {"p": 1, "q": 2})
        manifest = {key: {} for key in ("data", "model", "code", "packages", "resumes")} | {"recipe": recipe}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    said = ["mode: math in A, authors in B", "seed: not there in A, 1 in B"]
    assert compare(*folders, common=False).settings == said
    assert compare(folders[0], folders[0], common=False).settings == []
    rescored = table(folders[1] / "problems.math.csv", {"p": 1, "q": 2})
    (folders[1] / "results.math.json").write_text('{"mode": "math", "figures": {}}')
    assert compare(folders[0], rescored, common=False).settings == said[1:]
    (folders[1] / "manifest.json").unlink()
    assert "no manifest.json beside" in compare(*folders, common=False).settings[0]
