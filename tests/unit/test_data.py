"""Data: each format gives the same questions, each fault its words, and the counts add up."""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo_cli.cli import data as data_command
from dapo_cli.config.schema import ArithmeticData, DataConfig, FilesData, HubData, Instruction
from dapo_cli.data.answers import last_boxed, reference_answer
from dapo_cli.data.faults import RowFault
from dapo_cli.data.hub import resolve_revision
from dapo_cli.data.prompts import AUTHORS_INSTRUCTION, make_prompts
from dapo_cli.data.questions import DataReport, Message, Question, load_questions
from dapo_cli.errors import UserError

SHARED_DATA = Path(os.environ.get("DAPO_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
ROWS = [{"question": "1+1=?", "answer": "2"}, {"question": "3+4=?", "answer": "7"}]


def load(path: Path, **keys) -> tuple[list[Question], DataReport]:
    return load_questions(FilesData(paths=[str(path)], **keys))


def pairs(questions: list[Question]) -> list[tuple[str, str]]:
    return [(question.text, question.answer) for question in questions]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_jsonl(path: Path, rows: list) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: list) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def save_dataset(path: Path, rows: list) -> Path:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(str(path))
    return path


# Answers


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("42", "42"),
        ("  42 \n", "42"),
        (42, "42"),
        (27.0, "27"),
        (-3.0, "-3"),
        (0.5, "0.5"),
        (1e-07, "0.0000001"),
        ("27.0", "27"),
        ("2.70", "2.70"),
        (True, "True"),
        (["5"], "5"),
        ('["5"]', "5"),
        ("[1, 2]", "[1, 2]"),
        ("6 - 2 = 4 apples.\n#### 4", "4"),
        ("It costs\n#### 1,234,567", "1234567"),
        ("It costs\n#### -$1,080.50", "-$1080.50"),
        ("1,234", "1,234"),
        ("#### \\boxed{8}", "8"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("x \\in (0, 1]", "x \\in (0, 1]"),
        (None, ""),
        ("", ""),
        (" ", ""),
        ([], ""),
        (float("nan"), ""),
        (float("inf"), ""),
        ("Reasoning.\n####", ""),
    ],
)
def test_answer_column(value, answer):
    assert reference_answer(value, worked=False) == answer


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("First \\boxed{1}, then $\\boxed{\\text{(}{2}\\}}$.", "\\text{(}{2}\\}"),
        ("So $\\boxed{\\{1, 2\\}}$", "\\{1, 2\\}"),
        ("So $\\left\\{ \\boxed{x \\left\\{ y \\right.} z", "x \\left\\{ y \\right."),
        ("Thus $\\boxed 7$.", "7"),
        ("Thus $\\fbox{7}$.", "7"),
        ("#### Step 1\nwe add\n#### Step 2\nso \\boxed{9}.", "9"),
        ("3 + 4 = 7\n#### 7", "7"),
        ("42", "42"),
        ("-1/2", "-1/2"),
        ("The answer is 42", ""),
        ("see \\boxedanswer{4}", ""),
        ("so \\boxed{}", ""),
    ],
)
def test_worked_solution(solution, answer):
    assert reference_answer(solution, worked=True) == answer


def test_a_box_without_end_is_not_replaced_by_an_earlier_one():
    with pytest.raises(RowFault, match="no closing brace"):
        last_boxed("\\boxed{1} and so \\boxed{2")


@pytest.mark.parametrize("value", [["1", "2"], '["1", "2"]', {"a": 1}, b"4"])
def test_answers_that_are_none(value):
    with pytest.raises(RowFault):
        reference_answer(value, worked=False)


# Formats


VERL_ROWS = [
    {
        "prompt": [{"role": "user", "content": row["question"]}],
        "reward_model": {"ground_truth": row["answer"], "style": "rule"},
        "data_source": "sums",
    }
    for row in ROWS
]


def make_file(folder: Path, kind: str) -> Path:
    match kind:
        case "jsonl":
            return write_jsonl(folder / "d.jsonl", ROWS)
        case "jsonl, BOM, CRLF and blank lines":
            return write(folder / "d.jsonl", "\ufeff" + "\r\n\r\n".join(json.dumps(row) for row in ROWS))
        case "json":
            return write(folder / "d.json", json.dumps(ROWS, indent=2))
        case "json under data":
            return write(folder / "d.json", json.dumps({"version": 1, "data": ROWS}))
        case "jsonl called json":
            return write_jsonl(folder / "d.json", ROWS)
        case "csv":
            return write(folder / "d.csv", 'question,answer\n1+1=?,2\n"3+4=?",7\n')
        case "parquet":
            return write_parquet(folder / "d.parquet", ROWS)
        case "parquet of verl":
            return write_parquet(folder / "d.parquet", VERL_ROWS)
        case "jsonl of verl":
            return write_jsonl(folder / "d.jsonl", VERL_ROWS)
        case "save_to_disk":
            return save_dataset(folder / "d", ROWS)
        case "save_to_disk of verl":
            return save_dataset(folder / "d", VERL_ROWS)
        case "problem and solution":
            return write_jsonl(
                folder / "d.jsonl",
                [{"problem": row["question"], "solution": rf"So $\boxed{{{row['answer']}}}$."} for row in ROWS],
            )
    raise AssertionError(kind)


KINDS = [
    "jsonl",
    "jsonl, BOM, CRLF and blank lines",
    "json",
    "json under data",
    "jsonl called json",
    "csv",
    "parquet",
    "parquet of verl",
    "jsonl of verl",
    "save_to_disk",
    "save_to_disk of verl",
    "problem and solution",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_questions(tmp_path, kind):
    questions, report = load(make_file(tmp_path, kind))
    assert pairs(questions) == [("1+1=?", "2"), ("3+4=?", "7")]
    assert {question.source for question in questions} == {"sums" if "verl" in kind else "d"}
    assert (report.rows, report.duplicates, report.conflicting, report.kept) == (2, 0, 0, 2)


def test_uids_depend_on_question_and_answer_alone(tmp_path):
    uids = set()
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        uids.add(tuple(question.uid for question in load(make_file(tmp_path / kind, kind))[0]))
    assert len(uids) == 1
    base = Question((Message("user", "p\n\nq"),), "1", "s", "w")
    others = [
        Question((Message("user", "r"),), "1", "s", "w"),
        Question((Message("user", "p\n\nq"),), "2", "s", "w"),
        Question((Message("system", "p"), Message("user", "q")), "1", "s", "w"),
    ]
    assert len({question.uid for question in [base, *others]}) == 4
    assert len(base.uid) == 16 and int(base.uid, 16) >= 0


def test_columns_named_in_the_recipe(tmp_path):
    rows = [{"question": "no", "answer": "no", "meta": {"ask": "1+1=?", "key": {"gold": 2}}}]
    for path in (write_jsonl(tmp_path / "d.jsonl", rows), write_parquet(tmp_path / "d.parquet", rows)):
        questions, _ = load(path, prompt_column="meta.ask", answer_column="meta.key.gold")
        assert pairs(questions) == [("1+1=?", "2")]


def test_an_answer_goes_before_a_solution(tmp_path):
    row = {"problem": "q", "solution": r"\boxed{1} is a step", "answer": "2"}
    assert load(write_jsonl(tmp_path / "d.jsonl", [row]))[0][0].answer == "2"
    assert load(write_jsonl(tmp_path / "d.jsonl", [row | {"answer": None}]))[0][0].answer == "1"


def test_duplicates_and_conflicts_are_counted_and_the_first_answer_stays(tmp_path):
    rows = [("a", "1"), ("b", "2"), ("a", "1"), ("a", "9"), (" a ", "1"), ("c", "3"), ("b", "2")]
    path = write_jsonl(tmp_path / "d.jsonl", [{"question": text, "answer": answer} for text, answer in rows])
    questions, report = load(path)
    assert pairs(questions) == [("a", "1"), ("b", "2"), ("c", "3")]
    assert (report.rows, report.duplicates, report.conflicting, report.kept) == (7, 3, 1, 3)


def test_several_files_are_one_data_set(tmp_path):
    first = write_jsonl(tmp_path / "first.jsonl", ROWS)
    second = write_parquet(tmp_path / "second.parquet", [ROWS[1], {"question": "5+5=?", "answer": "10"}])
    questions, report = load_questions(FilesData(paths=[str(first), str(second)]))
    assert [question.source for question in questions] == ["first", "first", "second"]
    assert (report.rows, report.duplicates) == (4, 1)
    assert report.fingerprints == [
        (str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in (first, second)
    ]


def test_a_folder_is_fingerprinted_file_by_file(tmp_path):
    folder = save_dataset(tmp_path / "d", ROWS)
    hashes = dict(load(folder)[1].fingerprints)
    assert set(hashes) == {str(file) for file in folder.iterdir()}


def test_arithmetic():
    questions, report = load_questions(ArithmeticData(prompts=20, seed=3))
    assert len(questions) == report.kept == 20
    for question in questions:
        text = question.text.removesuffix("=?")
        assert sum(int(term) for term in text.replace("-", "+-").split("+")) == int(question.answer)
    assert load_questions(ArithmeticData(prompts=20, seed=3)) == (questions, report)
    assert load_questions(ArithmeticData(prompts=20, seed=4))[1].fingerprints != report.fingerprints
    with pytest.raises(UserError, match=r"data\.prompts=300"):
        load_questions(ArithmeticData(prompts=300, min_terms=2, max_terms=2))


# Bad input: file name, content, what the message must say


BAD_FILES = [
    ("d.jsonl", "", ["d.jsonl", "empty"]),
    ("d.jsonl", "\n\n", ["d.jsonl", "no rows"]),
    ("d.json", "[]", ["d.json", "no rows"]),
    ("d.json", '{"a": 1}', ["d.json", "list of objects"]),
    ("d.json", '[{"question": "q",]', ["d.json", "line 1", "not JSON"]),
    ("d.json", '[{"question": "q", "answer": 1}, 5]', ["d.json, item 2", "object"]),
    ("d.csv", "question,answer\n", ["d.csv", "no rows"]),
    ("d.csv", "question,answer,answer\na,b,c\n", ["twice", "answer"]),
    ("d.csv", 'question,answer\n"a\nb",1\nc,2,3\n', ["d.csv, line 4", "3 fields"]),
    ("d.csv", 'question,answer\na,1\n"b,2\n', ["d.csv, line 3", "not CSV"]),
    ("d.csv", 'question,answer\n"a\nb",\n', ["d.csv, line 2", "no answer", "answer is empty"]),
    ("d.csv", "text,answer\na,1\n", ["no column prompt or question or problem", "data.prompt_column", "text, answer"]),
    ("d.csv", "question,answers\na,1\n", ["did you mean answers?", "data.answer_column"]),
    ("d.csv", b"question,answer\na,1\n\xe9,2\n", ["d.csv, line 3", "UTF-8"]),
    ("d.jsonl", b'{"question": "a", "answer": 1}\n{"question": "\xe9", "answer": 2}\n', ["d.jsonl, line 2", "UTF-8"]),
    ("d.jsonl", '{"question": "a", "answer": 1}\n\n{"question": \n', ["d.jsonl, line 3", "not JSON"]),
    ("d.jsonl", '{"question": "a", "answer": 1}\n[1]\n', ["d.jsonl, line 2", "object is expected"]),
    (
        "d.jsonl",
        '{"question": "a", "answer": 1}\n{"question": "b"}\n',
        ["d.jsonl, line 2", "no answer", "correct or remove"],
    ),
    ("d.jsonl", '{"question": "a"}\n', ["d.jsonl, line 1", "no answer", "its columns are question"]),
    ("d.jsonl", '{"question": "a", "answer": null}\n', ["d.jsonl, line 1", "answer is None"]),
    ("d.jsonl", '{"question": "a", "answer": NaN}\n', ["d.jsonl, line 1", "answer is nan"]),
    ("d.jsonl", '{"question": "a", "answer": [1, 2]}\n', ["d.jsonl, line 1", "2 answers"]),
    ("d.jsonl", '{"question": "a", "solution": "It is four."}\n', ["d.jsonl, line 1", "####", "boxed"]),
    ("d.jsonl", '{"answer": "4"}\n', ["d.jsonl, line 1", "no question"]),
    ("d.jsonl", '{"question": " ", "answer": "4"}\n', ["d.jsonl, line 1", "no question", "empty"]),
    ("d.jsonl", '{"question": 5, "answer": "4"}\n', ["d.jsonl, line 1", "neither text nor chat"]),
    ("d.jsonl", '{"question": "\\ud800", "answer": "4"}\n', ["d.jsonl, line 1", "surrogate"]),
    ("d.jsonl", '{"prompt": [{"role": "user"}], "answer": "4"}\n', ["d.jsonl, line 1", "content"]),
    (
        "d.jsonl",
        '{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "answer": "4"}\n',
        ["d.jsonl, line 1", "assistant"],
    ),
    ("d.jsonl", '{"question": "a"}\n' * 12, ["12 of 12 rows", "line 1:", "line 5:", "and 7 more"]),
    ("d.jsonl", "[" * 100_000 + "\n", ["d.jsonl, line 1", "nested too deeply"]),
    ("d.parquet", "not parquet", ["d.parquet", "not a readable parquet file"]),
    ("d.txt", "1+1=2", ["d.txt", "unknown kind", ".jsonl"]),
    ("d", "1+1=2", ["no suffix"]),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD_FILES)
def test_bad_files(tmp_path, name, content, words):
    with pytest.raises(UserError) as raised:
        load(write(tmp_path / name, content))
    assert [word for word in words if word not in str(raised.value)] == []


def test_bad_parquet_rows_are_counted_from_one(tmp_path):
    path = write_parquet(tmp_path / "d.parquet", [*ROWS, {"question": "q", "answer": None}])
    with pytest.raises(UserError, match=r"d\.parquet, row 3: no answer"):
        load(path)
    with pytest.raises(
        UserError, match=r"no column answr \(did you mean answer\?\).*data\.answer_column.*question, answer"
    ):
        load(path, answer_column="answr")
    pq.write_table(pa.Table.from_pylist(ROWS).slice(0, 0), path)
    with pytest.raises(UserError, match="no rows"):
        load(path)


def test_a_truncated_parquet_file(tmp_path):
    path = write_parquet(tmp_path / "d.parquet", ROWS)
    write(path, path.read_bytes()[:-20])
    with pytest.raises(UserError, match="not a readable parquet file"):
        load(path)


def test_missing_paths(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(UserError, match=r"no file .*tran\.jsonl; did you mean .*train\.jsonl\?"):
        load(tmp_path / "tran.jsonl")
    with pytest.raises(UserError, match="working directory"):
        load(tmp_path / "elsewhere" / "x.jsonl")
    with pytest.raises(UserError, match=r"data\.paths: the list is empty"):
        load_questions(FilesData(paths=[]))


def test_folders_that_are_no_data_set(tmp_path):
    import datasets

    write_jsonl(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(UserError, match=r"not written by datasets\.save_to_disk: name its files: .*train\.jsonl"):
        load(tmp_path)
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS)})
    splits.save_to_disk(str(tmp_path / "dict"))
    with pytest.raises(UserError, match=r"several splits: give one of .*dict/train, .*dict/test"):
        load(tmp_path / "dict")
    assert len(load(tmp_path / "dict" / "train")[0]) == 2


# The hub


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        known = {"/api/datasets/o/sums": "a" * 40, "/api/datasets/o/sums/revision/v2": "b" * 40}
        body = json.dumps({"id": "o/sums", "sha": known.get(self.path)}).encode()
        self.send_response(200 if self.path in known else 404)
        if self.path not in known:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_hub_revisions_are_resolved_to_commits(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    assert resolve_revision(HubData(id="o/sums")) == "a" * 40
    assert resolve_revision(HubData(id="o/sums", revision="v2")) == "b" * 40
    with pytest.raises(UserError, match=r"data\.id=o/none.*the hub answers"):
        resolve_revision(HubData(id="o/none"))
    with pytest.raises(UserError, match=r"data\.id=a/b/c is no hub id"):
        resolve_revision(HubData(id="a/b/c"))
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="cannot be reached"):
        resolve_revision(HubData(id="o/sums"))
    assert resolve_revision(HubData(id="o/sums", revision="c" * 40)) == "c" * 40


def test_hub_data_sets_are_read_like_files(tmp_path, monkeypatch):
    """`load_dataset` takes a folder where it takes a hub id, so all but the network is the real thing."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "hub").mkdir()
    write_jsonl(tmp_path / "hub" / "train.jsonl", VERL_ROWS)
    config = HubData(id=str(tmp_path / "hub"), revision="c" * 40)
    questions, report = load_questions(config)
    assert pairs(questions) == [("1+1=?", "2"), ("3+4=?", "7")]
    assert questions[1].where == f"{config.id}[train], row 2"
    assert report.fingerprints == [(config.id, "c" * 40)]
    with pytest.raises(UserError, match=r"data\.split=tset.*cannot be loaded"):
        load_questions(HubData(id=config.id, revision=config.revision, split="tset"))


# Prompts


@pytest.fixture(scope="module")
def bos_eos_tokenizer():
    """One token a character; a BOS before and an EOS after bare texts, as some tokenizers add them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    special = ["<s>", "</s>", "<unk>", "<user>", "<assistant>"]
    vocabulary = {token: index for index, token in enumerate([*special, *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.add_special_tokens(special)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
        "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return fast


def question(text: str, answer: str = "1") -> Question:
    return Question((Message("user", text),), answer, "test", "row 1")


def prompts_of(texts: list[str], bos_eos_tokenizer, **keys):
    questions = [question(text) for text in texts]
    report = DataReport("test", rows=len(questions))
    return make_prompts(questions, bos_eos_tokenizer, DataConfig(**keys), report), report


def test_chat_template_brings_its_own_special_tokens_once(bos_eos_tokenizer):
    (prompt,), _ = prompts_of(["1+1"], bos_eos_tokenizer)
    assert prompt.text == "<s><user>1+1<assistant>"
    assert bos_eos_tokenizer.convert_ids_to_tokens(list(prompt.token_ids)) == [
        "<s>",
        "<user>",
        "1",
        "+",
        "1",
        "<assistant>",
    ]


def test_bare_text_gets_the_beginning_but_no_end_of_sequence(bos_eos_tokenizer):
    (prompt,), _ = prompts_of(["1+1"], bos_eos_tokenizer, chat_template=False)
    assert prompt.text == "1+1\n"
    assert bos_eos_tokenizer.convert_ids_to_tokens(list(prompt.token_ids)) == ["<s>", "1", "+", "1", "\n"]


def test_chat_messages_without_template_are_joined(bos_eos_tokenizer):
    chat = Question((Message("system", "Be brief."), Message("user", "1+1=?")), "2", "test", "row 1")
    (prompt,) = make_prompts([chat], bos_eos_tokenizer, DataConfig(chat_template=False), DataReport("test", rows=1))
    assert prompt.text == "Be brief.\n\n1+1=?\n"
    assert prompt.uid == chat.uid


def test_authors_instruction_is_applied_once(bos_eos_tokenizer):
    wrapped = AUTHORS_INSTRUCTION.replace("{question}", "{1}+1=?")
    prompts, report = prompts_of(
        ["{1}+1=?", wrapped], bos_eos_tokenizer, instruction=Instruction.authors, chat_template=False
    )
    assert [prompt.text for prompt in prompts] == [wrapped + "\n"] * 2
    assert wrapped.startswith("Solve the following math problem step by step. The last line of your response should")
    assert wrapped.endswith('{1}+1=?\n\nRemember to put your answer on its own line after "Answer:".')
    assert report.instruction_present == 1


def test_long_prompts_are_dropped_and_counted(bos_eos_tokenizer):
    texts = ["x" * length for length in (5, 8, 9, 20)]  # plus <s> and the line end
    prompts, report = prompts_of(texts, bos_eos_tokenizer, chat_template=False, max_prompt_tokens=10)
    assert [len(prompt.token_ids) for prompt in prompts] == [7, 10]
    assert (report.rows, report.too_long, report.kept) == (4, 2, 2)
    with pytest.raises(UserError, match=r"data\.max_prompt_tokens=6: all 4 prompts.*shortest has 7"):
        prompts_of(texts, bos_eos_tokenizer, chat_template=False, max_prompt_tokens=6)


def test_more_prompts_than_a_tokenizer_batch_keep_their_order(bos_eos_tokenizer):
    texts = [f"{number}+1=?" for number in range(2500)]
    prompts, _ = prompts_of(texts, bos_eos_tokenizer, chat_template=False)
    tokens = ["".join(bos_eos_tokenizer.convert_ids_to_tokens(list(prompt.token_ids))) for prompt in prompts]
    assert tokens == [f"<s>{text}\n" for text in texts]


def test_tokens_unknown_to_the_model_are_counted(bos_eos_tokenizer):
    assert prompts_of(["1+1", "1×1", "²"], bos_eos_tokenizer, chat_template=False)[1].unknown_tokens == 2


def test_templates_that_refuse(bos_eos_tokenizer):
    chat = Question((Message("system", "Be brief."), Message("user", "1+1=?")), "2", "test", "d.jsonl, line 7")
    with pytest.raises(UserError, match=r"d\.jsonl, line 7.*system, user.*data\.chat_template=false"):
        make_prompts([chat], bos_eos_tokenizer, DataConfig(), DataReport("test", rows=1))
    bare = type(bos_eos_tokenizer)(
        tokenizer_object=bos_eos_tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>"
    )
    with pytest.raises(UserError, match=r"no chat template: set data\.chat_template=false"):
        prompts_of(["1+1"], bare)


# `dapo data show`


def test_show_prints_counts_and_samples_of_a_bare_file(tmp_path, capsys):
    rows = [*ROWS, ROWS[0], {"question": "[b]9+9=?", "answer": "18"}, {"question": "[b]9+9=?", "answer": "19"}]
    data_command.show(str(write_jsonl(tmp_path / "d.jsonl", rows)), [], samples=3)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"5 rows", "1 exact duplicates", "1 conflicting answers", "3 kept"} <= set(printed)
    assert "prompt length in characters: min 5, median 5, p95 8, max 8" in printed
    assert any("[b]9+9=?" in line for line in printed) and any("answer: 18" in line for line in printed)


def test_show_takes_column_names_for_a_bare_file(tmp_path, capsys):
    path = str(write_jsonl(tmp_path / "d.jsonl", [{"q": "1+1=?", "gold": 2}]))
    data_command.show(path, ["data.prompt_column=q", "data.answer_column=gold"], samples=1)
    assert "answer: 2" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"run\.seed=1.*data\.prompt_column"):
        data_command.show(path, ["run.seed=1"], samples=1)


def test_show_says_what_is_no_table(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("1+1=2")
    with pytest.raises(UserError, match=r"notes\.txt: neither a data file \(\.parquet.*nor a recipe \(\.yaml"):
        data_command.show(str(notes), [], samples=1)


# Real files


def shared(name: str) -> Path:
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"{path} is absent; set DAPO_SHARED_DATA to the folder of the real data files")
    return path


@pytest.mark.parametrize(
    ("name", "rows", "kept", "first_answer"),
    [
        ("aime-2024.parquet", 960, 30, "540"),
        ("gsm8k_test.jsonl", 1319, 1319, "18"),
        ("gsm8k_train.jsonl", 7473, 7473, "72"),
        ("math500", 500, 500, r"\left( 3, \frac{\pi}{2} \right)"),
        ("amc23.jsonl", 40, 40, "27"),
    ],
)
def test_real_files(name, rows, kept, first_answer):
    questions, report = load(shared(name))
    assert (report.rows, report.duplicates, report.conflicting) == (rows, rows - kept, 0)
    assert len({question.uid for question in questions}) == kept
    assert questions[0].answer == first_answer


def test_real_answers_are_what_they_look_like():
    aime, _ = load(shared("aime-2024.parquet"))
    assert all(question.answer.isdigit() and 0 <= int(question.answer) <= 999 for question in aime)
    gsm8k, _ = load(shared("gsm8k_train.jsonl"))
    assert all(question.answer.lstrip("-").replace(".", "", 1).isdigit() for question in gsm8k)
    lines = shared("gsm8k_train.jsonl").read_text().splitlines()
    stated = [json.loads(line)["answer"].split("#### ")[1].replace(",", "") for line in lines]
    assert [question.answer for question in gsm8k] == stated


def test_real_aime_prompts_hold_the_authors_instruction_already(bos_eos_tokenizer):
    questions, report = load(shared("aime-2024.parquet"))
    config = DataConfig(instruction=Instruction.authors, chat_template=False)
    prompts = make_prompts(questions, bos_eos_tokenizer, config, report)
    assert report.instruction_present == report.kept == 30
    assert all(prompt.text.count("Solve the following math problem step by step.") == 1 for prompt in prompts)
    raw = pq.read_table(shared("aime-2024.parquet")).slice(0, 1).to_pylist()[0]
    assert AUTHORS_INSTRUCTION.replace("{question}", raw["extra_info"]["raw_problem"]) + "\n" == prompts[0].text


def test_subject_level_and_source_are_read_where_rows_have_them(tmp_path):
    rows = [
        {"question": "1+1?", "answer": "2", "subject": "Sums", "level": 2, "source": "book"},
        {"question": "1+2?", "answer": "3", "level": "Level 5"},
        {"question": "1+3?", "answer": "4", "difficulty": 3.0, "subject": ""},
    ]
    questions, _ = load_questions(FilesData(paths=[str(write_jsonl(tmp_path / "d.jsonl", rows))]))
    labels = [(question.source, question.subject, question.level) for question in questions]
    assert labels == [("book", "Sums", "2"), ("d", None, "Level 5"), ("d", None, "3")]
    plain, _ = load_questions(FilesData(paths=[str(write_jsonl(tmp_path / "e.jsonl", [ROWS[0]]))]))
    assert (plain[0].subject, plain[0].level) == (None, None)
