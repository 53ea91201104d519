"""`dapo check`: arithmetic and memory by worked numbers, the verdict on every preset, and each fault by its name."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dapo_cli.cli.app import run
from dapo_cli.cli.check import warn
from dapo_cli.config.load import LoadedRecipe, load_recipe
from dapo_cli.config.schema import AuthorsReward, FilesData, Instruction, MathReward
from dapo_cli.config.shipped import recipe_names
from dapo_cli.data.questions import Message, Question
from dapo_cli.errors import UserError
from dapo_cli.preflight.answers import answer_finding, check_answers
from dapo_cli.preflight.batch import batch_lines, plan_batch
from dapo_cli.preflight.cost import fit_finding, gpu_fits, step_flops
from dapo_cli.preflight.dapo_likeness import likeness
from dapo_cli.preflight.data_check import normalised, overlap
from dapo_cli.preflight.findings import Level
from dapo_cli.preflight.lints import chance_informative, recipe_lints
from dapo_cli.preflight.memory import CPU_PROCESS, Sequences, plan_memory
from dapo_cli.preflight.page import page_lines
from dapo_cli.preflight.shape import ModelShape, shape_of_model
from dapo_cli.preflight.survey import Survey, as_json, survey
from dapo_cli.pretrained import open_config

SMALL = ("data.prompts=64", "eval.data.prompts=8", "reward.workers=1")


@pytest.fixture(autouse=True)
def one_pool(monkeypatch: pytest.MonkeyPatch, build_verifier_once: Any) -> None:
    monkeypatch.setattr("dapo_cli.preflight.survey.build_verifier", build_verifier_once)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def quickstart(*overrides: str) -> LoadedRecipe:
    return load_recipe("quickstart", [*SMALL, *overrides])


# The arithmetic of a step


def test_the_papers_step_in_words() -> None:
    recipe = load_recipe("dapo_qwen2_5_7b").recipe
    plan = plan_batch(recipe, prompts=17_000)
    assert batch_lines(plan, recipe)[0] == (
        "512 groups x 16 = 8,192 completions a step, in 16 updates of 512 completions (32 groups); 200 steps"
    )
    # Half of the groups are expected to be informative; what is beyond the batch is aborted, and comes again.
    assert (plan.prompts_tried, plan.completions_generated) == (1024, 16_384)
    assert plan.epochs == 200 * 1024 / 17_000 and plan.steps_per_epoch == 17_000 / 1024
    assert plan.most_tokens_trained == 8192 * 20_480
    # Discarded, the tenth that a round asks for on top is lost: ceil(512 x 1.1 / 0.5).
    assert plan_batch(load_recipe("dapo_qwen2_5_7b", ["sampler.surplus=discard"]).recipe).prompts_tried == 1127


@pytest.mark.parametrize(
    ("overrides", "rounds", "tried", "groups", "updates"),
    [
        ((), 1, 36, 16, 2),  # ceil(16 x 1.1 / 0.5)
        (("sampler.max_prompts_per_round=24",), 2, 33, 16, 2),  # 24 give 12; ceil(4 x 1.1 / 0.5) = 9 give the rest
        (("sampler.refill=false",), 1, 16, 8, 1),  # half of the 16 tried
        (("sampler.dynamic=false", "sampler.max_prompts_per_round=6"), 3, 16, 16, 2),
        (("algorithm.passes=3",), 1, 36, 16, 6),
    ],
)
def test_rounds_and_updates(overrides: tuple[str, ...], rounds: int, tried: int, groups: int, updates: int) -> None:
    plan = plan_batch(load_recipe("quickstart", overrides).recipe)
    assert (plan.rounds, plan.prompts_tried, plan.groups, plan.updates) == (rounds, tried, groups, updates)


def test_chance_of_an_informative_group() -> None:
    assert chance_informative(0.5, 4) == 0.875
    assert chance_informative(0.99, 4) == pytest.approx(0.0394, abs=5e-5)


# Is it DAPO?


@pytest.mark.parametrize(
    ("preset", "line"),
    [
        ("dapo", "DAPO: the same algorithm, other sizes (group size 8"),
        ("grpo", "not DAPO: GRPO (DeepSeekMath, arXiv:2402.03300): dynamic sampling is off"),
        ("dr_grpo", "not DAPO: Dr. GRPO (arXiv:2503.20783): "),
        ("gspo", "not DAPO: GSPO (arXiv:2507.18071): "),
        ("cispo", "not DAPO: CISPO (MiniMax-M1, arXiv:2506.13585): clip-higher: surrogate cispo"),
        ("dcpo", "not DAPO: DCPO (arXiv:2509.02333): "),
        ("aspo", "not DAPO: ASPO (arXiv:2510.06062): "),
        ("scalerl", "not DAPO: ScaleRL-like (arXiv:2510.13786), its loss and batch: dynamic sampling: "),
    ],
)
def test_presets_come_out_as_what_they_are(preset: str, line: str) -> None:
    assert likeness(quickstart(f"algorithm={preset}").recipe).line.startswith(line)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sampler.dynamic=false", "not DAPO: dynamic sampling is off (every group is trained on)"),
        ("sampler.refill=false", "not DAPO: dynamic sampling: informative groups alone, not refilled"),
        ("algorithm.clip_high=0.2", "not DAPO: clip-higher is off (clip to 1 - 0.2, 1 + 0.2)"),
        ("algorithm.aggregation=sequence_mean", "not DAPO: token-level loss is off (sequence_mean)"),
        ("overlong.penalty=false", "not DAPO: soft overlong penalty is off"),
        ("algorithm.kl_coefficient=0.01", "not DAPO: KL term: 0.01 times k3"),
        ("algorithm.advantage=mean", "not DAPO: advantage: mean"),
        ("algorithm.ratio=sequence", "not DAPO: importance ratio: of each sequence"),
        ("correction.kind=truncated", "DAPO, changed: engine correction: truncated by token"),
        ("overlong.filter_truncated=true", "DAPO, changed: overlong filter: truncated completions leave the loss"),
        ("sampler.surplus=carry", "DAPO, changed: completions: some are of an earlier step's weights"),
        ("algorithm.clip_high=0.3", "DAPO: the same algorithm, other sizes (clip_high 0.3)"),
        ("algorithm.samples_per_prompt=32", "DAPO: the same algorithm, other sizes (group size 32)"),
        ("sampler.surplus=discard", "DAPO: as the paper has it, sizes included"),
        ("algorithm.dual_clip=10.0", "DAPO: as the paper has it, sizes included"),
    ],
)
def test_one_change_to_the_papers_recipe(override: str, line: str) -> None:
    assert likeness(load_recipe("dapo_qwen2_5_7b", ["correction.kind=none", override]).recipe).line == line


# Memory and work


def tiny_shape() -> ModelShape:
    return shape_of_model(open_config(load_recipe("quickstart").recipe.model))


def test_the_shape_of_the_tiny_model_by_hand() -> None:
    # Four 160 x 160 matrices of attention, three 160 x 432 ones of the MLP, two norms; embedding and last norm.
    layer = 4 * 160 * 160 + 3 * 160 * 432 + 2 * 160
    shape = tiny_shape()
    assert (shape.layer, shape.root, shape.parameters) == (layer, 32 * 160 + 160, 3 * layer + 32 * 160 + 160)
    assert (shape.layers, shape.kv_size, shape.vocabulary) == (3, 160, 32)
    assert shape.per_rank == 3 * (4 * (160 + 160) + 3 * (160 + 432))


def test_memory_of_the_tiny_model_by_hand() -> None:
    """`single` in float32: 16 bytes a parameter, no copy for the engine; docs/scaling.md's terms A, B and E."""
    sequences = Sequences(prompt=16, completion=80, update_groups=8, samples=8, wanted=128)
    memory = plan_memory(load_recipe("quickstart").recipe, tiny_shape(), sequences)
    packed, rows = 64 * 80 + 8 * 16, 64 * 96
    activations = 3 * (packed * (28 * 160 + 16 * 432) + rows * (8 * 160 + 8 * 160)) + packed * (8 * 160 + 8 * 432)
    logits = 8 * 512 * 32 + 4 * 32 * 160
    assert memory.standing + memory.updating == 16 * 935_520
    assert (memory.activations, memory.logits, memory.engine, memory.reference) == (activations, logits, 0, 0)
    assert memory.update == 16 * 935_520 + activations + logits
    assert memory.kv_token == 4 * 2 * 160 * 3 and memory.sequences == 128
    on_cpu = plan_memory(load_recipe("quickstart").recipe, tiny_shape(), sequences, on_cpu=True)
    assert on_cpu.peak == memory.update + CPU_PROCESS


def test_a_micro_batch_ends_at_its_budget() -> None:
    sequences = Sequences(prompt=100, completion=50, update_groups=2, samples=8, wanted=16)
    assert sequences.micro_batch(1000) == (6 * 50 + 2 * 100, 6 * 150)
    assert sequences.micro_batch(100) == (150, 150)  # a sequence is never cut
    assert sequences.micro_batch(10**6) == (16 * 50 + 2 * 100, 16 * 150)


def qwen_7b() -> ModelShape:
    from transformers import Qwen2Config

    config = Qwen2Config(
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152_064,
        tie_word_embeddings=False,
    )
    return shape_of_model(config)


@pytest.mark.parametrize(
    ("overrides", "update", "generate"),
    [  # docs/scaling.md's table, GB
        (("learner=fsdp_bf16", "launch.processes_per_node=8"), 54, 47),
        (("learner=deepspeed_zero3_bf16", "launch.processes_per_node=8"), 51, 55),
        (("learner=fsdp_bf16_offload", "launch.processes_per_node=1"), 39, 36),
        (("learner=fsdp_bf16", "launch.processes_per_node=128"), 40, 37),
    ],
)
def test_memory_of_7b_as_docs_scaling_has_it(overrides: tuple[str, ...], update: float, generate: float) -> None:
    shape = qwen_7b()
    assert (shape.parameters, shape.layer, shape.root) == (7_615_616_512, 233_057_792, 1_089_998_336)
    sizes = ["sampling.max_tokens=20480", "overlong.cache_tokens=4096", "data.max_prompt_tokens=2048"]
    sizes += ["learner.micro_batch_tokens=22528", "rollout.max_batch_completions=16"]
    recipe = load_recipe("quickstart", [*sizes, *overrides]).recipe
    memory = plan_memory(recipe, shape, Sequences(2048, 20_480, 32, 16, 16))
    assert memory.update / 1e9 == pytest.approx(update, abs=0.6)
    assert memory.generate is not None
    # The table leaves out keys and values repeated for all heads, 2 x 2 h bytes a token, and the logits of sampling.
    repeated = 16 * 4 * 3584 * 22_528
    assert (memory.generate - repeated - memory.sampling) / 1e9 == pytest.approx(generate, abs=0.6)


@pytest.mark.parametrize(
    ("learner", "bytes_of"),
    [  # docs/scaling.md: P weights, of them Q in a layer and R in the root, on 4 processes
        ("fsdp", lambda p, q, r: 16 * p / 4 + 12 * r + 20 * q),
        ("fsdp_bf16", lambda p, q, r: 16 * p / 4 + 8 * r + 12 * q),
        ("deepspeed_zero1", lambda p, q, r: 4 * p + 12 * p / 4 + 4 * p + 2e9),
        ("deepspeed_zero2", lambda p, q, r: 4 * p + 12 * p / 4 + 4 * p / 4 + 2e9),
        ("deepspeed_zero3", lambda p, q, r: 20 * p / 4 + 2e9 + 4 * p),
        ("deepspeed_zero3_bf16", lambda p, q, r: 18 * p / 4 + 2e9 + 2 * p),
    ],
)
def test_weights_of_each_learner(learner: str, bytes_of: Callable[[int, int, int], float]) -> None:
    shape = tiny_shape()
    recipe = load_recipe("quickstart", [f"learner={learner}", "launch.processes_per_node=4"]).recipe
    memory = plan_memory(recipe, shape, Sequences(16, 80, 8, 8, 128))
    assert memory.standing + memory.updating == bytes_of(shape.parameters, shape.layer, shape.root)


def test_what_adds_to_memory() -> None:
    shape, sequences = tiny_shape(), Sequences(16, 80, 8, 8, 128)
    weights = 4 * shape.parameters

    def planned(*overrides: str) -> float:
        return plan_memory(load_recipe("quickstart", overrides).recipe, shape, sequences).update

    assert planned("algorithm.kl_coefficient=0.04") - planned() == weights
    memory = plan_memory(load_recipe("quickstart", ["learner.lora_rank=8"]).recipe, shape, sequences)
    assert memory.standing + memory.updating == weights + 16 * 8 * shape.per_rank
    assert memory.engine == weights  # adapters are merged into a copy


def test_flops_of_a_step_by_hand() -> None:
    recipe = load_recipe("quickstart").recipe
    plan = plan_batch(recipe, prompts=4096, prompt_tokens=16)
    flops = step_flops(recipe, tiny_shape(), plan)
    # Two for each weight of a layer's matrices and token, four for each feature and pair; the head on completions.
    token, pair, head = 2 * 3 * (4 * 160 * 160 + 3 * 160 * 432), 4 * 3 * 160, 2 * 32 * 160
    once = 16 * 16 * token + 128 * (40 * (token + head) + 56 * 57 / 2 * pair)
    assert (flops.score, flops.update) == (once, 3 * once)
    assert flops.generate == once * 36 / 16


def test_which_gpu_has_room() -> None:
    shape, sequences = qwen_7b(), Sequences(2048, 20_480, 32, 16, 16)
    recipe = load_recipe("dapo_qwen2_5_7b").recipe
    memory = plan_memory(recipe, shape, sequences)
    fits = {fit.gb: fit for fit in gpu_fits(recipe, shape, memory, sequences)}
    assert not fits[24].fits and fits[80].fits
    # 0.6 x 80 GB less 15.2 GB of weights, over 2 x 2 x 512 x 28 bytes a token.
    assert gpu_fits(recipe, shape, memory, replace(sequences, completion=10**7))[-1].lacking == (
        "the KV cache has no room for a whole sequence of 10,002,048 tokens",
    )
    crowded = replace(recipe, rollout=replace(recipe.rollout, gpu_memory_share=0.97))
    held = (memory.standing + memory.reference) / 1e9
    finding = fit_finding(gpu_fits(crowded, shape, memory, sequences))
    assert finding and f"vLLM's share of 136.8 GB and the {held:,.1f} GB that the learner holds" in finding.problem
    assert fits[80].sequences == int((0.6 * 80e9 - 2 * 7_615_616_512) // (57_344 * 22_528))


# Data and answers


CHOICES = "A) 5\nB) 6"  # of which a response states one


def questions(*pairs: tuple[str, str]) -> list[Question]:
    return [
        Question((Message("user", text),), answer, "test", f"row {number}")
        for number, (text, answer) in enumerate(pairs, start=1)
    ]


def test_normalised_questions_keep_what_mathematics_means() -> None:
    assert normalised("What is  $3.5 + 4$ ?") == normalised("what is 3.5+4.")
    for one, other in (("3-2=?", "3+2=?"), ("1 2", "12"), ("3.5", "35"), ("5!", "5"), ("f(x)", "fx")):
        assert normalised(one) != normalised(other)


def test_overlap_counts_exact_and_near_copies() -> None:
    training = questions(("What is 3 + 4?", "7"), ("What is 2 * 3?", "6"))
    found = overlap(training, questions(("What is 3 + 4?", "7"), ("what is 2*3", "6"), ("What is 2 + 3?", "5")))
    assert (found.exact, found.normalised, found.of, found.example) == (1, 2, 3, "What is 3 + 4?")


def test_gold_answers_that_the_verifier_cannot_read_are_named(build_verifier_once: Any) -> None:
    data = FilesData(paths=[], instruction=Instruction.authors)
    asked = questions(("a", "7"), ("b", CHOICES), ("c", r"\frac{1}{2}"))
    math, authors = MathReward(workers=1), AuthorsReward(workers=1)
    with build_verifier_once(math) as verifier:
        check = check_answers("data", asked, data, math, verifier)
    assert (check.checked, check.unread) == (3, 1)
    finding = answer_finding(check, MathReward())
    assert finding is not None and finding.level is Level.WARNING and "row 2" in finding.problem
    with build_verifier_once(authors) as verifier:
        whole = check_answers("data", asked[:1], data, authors, verifier)
    assert whole.unread == 0 and answer_finding(whole, AuthorsReward()) is None


# Faults


@pytest.mark.parametrize(
    ("overrides", "key", "said"),
    [
        (("overlong.cache_tokens=2",), "overlong.cache_tokens", "hardly a completion ends there"),
        (("overlong.cache_tokens=70",), "overlong.cache_tokens", "ordinary completions are punished"),
        (("reward=strict_boxed", "data.instruction=authors"), "data.instruction", "asks for a line `Answer: ...`"),
        (("learner=fsdp_bf16",), "learner.compute_dtype", "round differently in bfloat16"),
        (("algorithm.passes=16",), "algorithm.groups_per_update", "the last is 31 updates off"),
        (("algorithm.samples_per_prompt=2",), "algorithm.samples_per_prompt", "at best 50%"),
        (("sampler.max_rounds=2", "sampler.max_prompts_per_round=10"), "sampler.max_rounds", "10 informative groups"),
        (("optimizer.warmup_steps=50",), "optimizer.warmup_steps", "never constant"),
        (("model.path=some/model",), "model.revision", "no commit hash"),
        (("overlong.penalty=false",), "overlong.penalty", "counts as a wrong one"),
    ],
)
def test_doubtful_keys_are_named_with_what_follows(overrides: tuple[str, ...], key: str, said: str) -> None:
    expected = {finding.key for finding in recipe_lints(load_recipe("quickstart").recipe)}
    assert expected == {"algorithm.groups_per_update"}  # a note, as in the paper
    found = {finding.key: finding.problem for finding in recipe_lints(load_recipe("quickstart", overrides).recipe)}
    assert said in found[key]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sampling.top_p=0.9", "a cut in training biases the importance ratio"),
        ("sampling.top_k=20", "a cut in training biases the importance ratio"),
        ("overlong.cache_tokens=80", "every completion is punished"),
    ],
)
def test_what_the_loader_refuses_ends_the_check(override: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "quickstart", override], debug=False) == 2
    assert said in capsys.readouterr().err


def written(folder: Path, name: str, rows: list[tuple[str, str]]) -> str:
    path = folder / name
    path.write_text("".join(json.dumps({"question": text, "answer": answer}) + "\n" for text, answer in rows))
    return str(path)


def own_data(training: str, evaluation: str, *overrides: str) -> Survey:
    options = [f"data.paths=[{training}]", f"eval.data.paths=[{evaluation}]", "reward.workers=1"]
    kept = Path(training).with_name("own.yaml")
    kept.write_text(OWN_RECIPE)
    return survey(load_recipe(str(kept), [*options, *overrides]))


OWN_RECIPE = """\
defaults: [{data: files}, {data@eval.data: files}, {rollout: transformers}, {reward: math}, {learner: single}, _self_]
run: {dir: runs/x, steps: 30}
model: {path: shipped:tiny-arithmetic}
data: {chat_template: false, max_prompt_tokens: 32}
eval: {data: {chat_template: false, max_prompt_tokens: 32}, sampling: {max_tokens: 80}}
sampling: {max_tokens: 80}
overlong: {cache_tokens: 16}
algorithm: {samples_per_prompt: 8, groups_per_step: 2, groups_per_update: 2}
optimizer: {warmup_steps: 5}
"""
SUMS = [(f"{number}+1=?", str(number + 1)) for number in range(10, 20)]


def problems_of(found: Survey) -> list[str]:
    return [f"{finding.level.value} {finding.text}" for finding in found.findings]


def test_faults_of_data_are_named_together(tmp_path: Path) -> None:
    training = written(
        tmp_path, "train.jsonl", [*SUMS, ("1+" * 30 + "1=?", r"\frac{31}{1"), ("7-7=?", CHOICES), SUMS[0]]
    )
    evaluation = written(tmp_path, "eval.jsonl", [("10 + 1 = ?", "11"), ("3+3=?", "6")])
    found = own_data(training, evaluation, "data.chat_template=true", "sampling.max_tokens=200")
    told = "\n".join(problems_of(found))
    assert "error data.chat_template = true: the tokenizer of shipped:tiny-arithmetic has no chat template" in told
    assert "the model's context is 160" in told
    assert "warning data: 1 of 12 gold answers checked are not right against themselves" in told and "line 12" in told
    assert "1 answers have over 100 characters or a brace that does not close" in told and "line 11" in told
    assert "warning eval.data: 1 of 2 questions are in data, too (0 letter by letter" in told
    assert found.figures[0].duplicates == 1 and found.figures[0].not_integers == pytest.approx(2 / 12)
    again = own_data(training, evaluation, "data.max_prompt_tokens=20")
    assert "data.max_prompt_tokens = 20: 1 prompts (8.3%) are longer" in "\n".join(problems_of(again))
    lengths = again.figures[0].lengths
    assert lengths is not None and lengths.longest <= 20 < lengths.most


def test_data_that_the_run_would_refuse(tmp_path: Path) -> None:
    training = written(tmp_path, "train.jsonl", [*SUMS, ("1+1=?", "")])
    evaluation = written(tmp_path, "eval.jsonl", SUMS[:2])
    told = "\n".join(problems_of(own_data(training, evaluation)))
    assert "error data" in told and "train.jsonl, line 11: no answer" in told
    training = written(tmp_path, "train.jsonl", SUMS[:1])
    told = "\n".join(problems_of(own_data(training, evaluation, "data.max_prompt_tokens=2")))
    assert "error data.max_prompt_tokens = 2: all 1 prompts are longer" in told


# The page


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_has_a_page(name: str, offline: None) -> None:
    found = survey(load_recipe(name, () if name.startswith(("dapo_", "toy")) else SMALL))
    lines = page_lines(name, found)
    assert lines[0].startswith(f"{name}: {found.likeness.algorithm}")
    assert found.count(Level.ERROR) == 0, lines
    if load_recipe(name).options.get("data") == "hub":
        assert any(line.startswith("data: ") for line in found.skipped)
    tree = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert tree["verdict"]["line"] == found.likeness.line and len(tree["findings"]) == len(found.findings)


def test_training_warns_of_what_is_doubtful_and_of_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    from dapo_cli.inputs import read_inputs

    loaded = quickstart()
    inputs = read_inputs(loaded.recipe)
    warn("quickstart", loaded.recipe, inputs)
    assert capsys.readouterr().err == ""
    faulty = replace(loaded.recipe, optimizer=replace(loaded.recipe.optimizer, warmup_steps=40))
    warn("quickstart", faulty, inputs)
    assert capsys.readouterr().err.startswith("Warning: optimizer.warmup_steps = 40: ")


@pytest.mark.parametrize(
    ("verdict", "refused"),
    [
        ("0.5", True),
        ("[][0]", True),
        ("False", False),
        ("calls.append(1) or (0.5 if len(calls) < 8 else False)", False),
    ],
)
def test_training_is_refused_where_the_reward_judges_nothing(tmp_path: Path, verdict: str, refused: bool) -> None:
    from dapo_cli.inputs import read_inputs

    (tmp_path / "mine.py").write_text(f"calls = []\ndef verify(prompt, completion, answer): return {verdict}\n")
    recipe = quickstart("reward=python", f"reward.path={tmp_path / 'mine.py'}", "reward.workers=1").recipe
    inputs = read_inputs(recipe)
    complaint = pytest.raises(UserError, match=r"mine\.py: verify fails on each of the first 8 gold answers.*Answer: ")
    with complaint if refused else nullcontext():
        warn("mine", recipe, inputs)


@pytest.mark.slow
def test_the_manifest_carries_the_verdict(tmp_path: Path) -> None:
    small = ["run.steps=1", "algorithm.groups_per_step=2", "algorithm.groups_per_update=2", "optimizer.warmup_steps=0"]
    arguments = ["train", "quickstart", f"run.dir={tmp_path / 'run'}", "eval.data=null", "reward.workers=1", *small]
    assert run([*arguments, "algorithm=grpo"], debug=False) == 0
    verdict = json.loads((tmp_path / "run" / "manifest.json").read_text())["algorithm"]
    assert verdict["algorithm"] == "not DAPO" and verdict["preset"].startswith("GRPO")
    assert {trait["name"]: trait["status"] for trait in verdict["traits"]}["clip-higher"] == "off"


def test_a_mixture_of_experts_is_not_estimated() -> None:
    from transformers import MixtralConfig

    config = MixtralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )
    with pytest.raises(UserError, match="mixture of experts"):
        shape_of_model(config)
