"""`dapo check --probe`: its estimates by exact enumeration, its completions against a run's, its lints and refusals."""

import itertools
import json
import math
import os
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from dapo_cli.algorithm.sampler import round_size
from dapo_cli.cli.app import run
from dapo_cli.config.load import load_recipe
from dapo_cli.config.schema import (
    Precision,
    PretrainedModel,
    Recipe,
    SamplerConfig,
    Surplus,
    TabularModel,
    VllmColocatedRollout,
)
from dapo_cli.config.shipped import model_folder
from dapo_cli.distributed.world import join_world
from dapo_cli.errors import UserError
from dapo_cli.preflight.batch import plan_batch
from dapo_cli.preflight.dapo_likeness import likeness
from dapo_cli.preflight.estimates import StepForecast, chance_mixed, expected_yield, forecast_step
from dapo_cli.preflight.findings import Finding, Level
from dapo_cli.preflight.lints import chance_informative
from dapo_cli.preflight.page import page_lines
from dapo_cli.preflight.probe import no_answer_share, phase_seconds, run_probe, step_seconds
from dapo_cli.preflight.probe_lints import probe_lints
from dapo_cli.preflight.probe_result import Probe, ProbeSize
from dapo_cli.preflight.survey import Survey, add_probe
from dapo_cli.pretrained import open_pretrained
from dapo_cli.reward.pool import VerifierPool
from dapo_cli.rollout import vllm_colocated
from dapo_cli.tabular.table import make_table
from dapo_cli.tracking.files import read_lines
from dapo_cli.types import Outcome, Verdict
from tests.conftest import make_group

SMALL = ("data.prompts=64", "eval.data.prompts=8", "reward.workers=1", "algorithm.samples_per_prompt=4")


def quickstart(*overrides: str) -> Recipe:
    return load_recipe("quickstart", [*SMALL, *overrides]).recipe


# Estimates


@pytest.mark.parametrize("samples", [4, 6, 9])
def test_the_chance_of_a_mixed_group_is_that_of_all_draws(samples: int) -> None:
    for right, size in itertools.product(range(samples + 1), range(1, samples + 1)):
        answers = [1] * right + [0] * (samples - right)
        draws = list(itertools.combinations(answers, size))
        mixed = sum(0 < sum(draw) < size for draw in draws)
        assert chance_mixed(right, samples, size) == pytest.approx(mixed / len(draws), abs=1e-15)


@pytest.mark.parametrize(("samples", "size"), [(8, 8), (12, 8), (16, 4)])
@pytest.mark.parametrize("pass_rate", [Fraction(0), Fraction(1, 50), Fraction(1, 2), Fraction(9, 10), Fraction(1)])
def test_its_mean_over_samples_is_exactly_the_chance_and_the_plug_ins_is_lower(
    samples: int, size: int, pass_rate: Fraction
) -> None:
    p = pass_rate
    weights = [math.comb(samples, c) * p**c * (1 - p) ** (samples - c) for c in range(samples + 1)]
    exact = float(1 - p**size - (1 - p) ** size)
    mean = sum(float(weight) * chance_mixed(right, samples, size) for right, weight in enumerate(weights))
    assert mean == pytest.approx(exact, abs=1e-12)
    plug_in = sum(float(weight) * chance_informative(right / samples, size) for right, weight in enumerate(weights))
    assert plug_in < exact if 0 < p < 1 else plug_in == exact


def test_fewer_samples_than_a_group_give_a_lower_bound() -> None:
    found = expected_yield([0, 1, 2, 4], samples=4, group_size=16)
    assert (found.rate, found.size, found.lower_bound) == (0.5, 4, True)
    assert all(chance_informative(p / 20, 4) <= chance_informative(p / 20, 16) for p in range(21))
    enough = expected_yield([0, 1, 2, 4], samples=4, group_size=4)
    assert (enough.rate, enough.lower_bound) == (0.5, False)
    assert (round(enough.low, 3), round(enough.high, 3)) == (0.150, 0.850)  # Wilson's, of 2 in 4


def exact_step(sampler: SamplerConfig, missing: int, rate: float, cap: int, left: int) -> tuple[float, float, float]:
    """(rounds, prompts, groups missing at the end) by every outcome of every round."""
    if missing <= 0 or left == 0:
        return 0.0, 0.0, max(0, missing)
    size = round_size(missing, rate, sampler.oversample, cap)
    found = [1.0, float(size), 0.0]
    for good in range(size + 1):
        chance = math.comb(size, good) * rate**good * (1 - rate) ** (size - good)
        later = exact_step(sampler, missing - good, rate, cap, left - 1)
        found = [value + chance * more for value, more in zip(found, later, strict=True)]
    return found[0], found[1], found[2]


@pytest.mark.parametrize(
    ("wanted", "rate", "cap", "max_rounds"), [(1, 0.5, 1, 3), (2, 0.3, 4, 3), (4, 0.7, 10, 4), (6, 0.5, 5, 3)]
)
def test_rounds_and_prompts_of_a_step_are_those_of_all_outcomes(
    wanted: int, rate: float, cap: int, max_rounds: int
) -> None:
    sampler = SamplerConfig(max_rounds=max_rounds, max_prompts_per_round=cap)
    rounds, prompts, missing = exact_step(sampler, wanted, rate, cap, max_rounds)
    found = forecast_step(sampler, wanted, rate, prompts=1000)
    assert found.rounds == pytest.approx(rounds, rel=0.03)
    assert found.prompts == pytest.approx(prompts, rel=0.03)
    assert found.groups == pytest.approx(wanted - missing, rel=0.03)
    if wanted == 1:
        assert (rounds, prompts, missing) == (1.75, 1.75, 0.125)  # 1/2 + 2/4 + 3/4 rounds


def test_steps_that_draw_nothing() -> None:
    sampler = SamplerConfig(max_rounds=3, max_prompts_per_round=10)
    assert forecast_step(sampler, 4, 0.0, prompts=8) == StepForecast(3, 24, 0)
    assert forecast_step(replace(sampler, refill=False), 16, 0.25, prompts=100) == StepForecast(2, 16, 4)
    assert forecast_step(replace(sampler, dynamic=False), 16, 1.0, prompts=100) == StepForecast(2, 16, 16)
    kept = forecast_step(replace(sampler, surplus=Surplus.carry), 4, 0.8, prompts=100)
    assert kept.prompts == pytest.approx(5, abs=0.01)  # each informative group is trained on sooner or later


def test_seconds_of_a_step_by_hand() -> None:
    recipe = quickstart("algorithm.passes=3")
    measured = {"rollout": 2.0, "verify": 0.5, "score": 1.0, "update": 4.0, "sync": 0.25}
    seconds = phase_seconds(recipe, StepForecast(1.5, 20, 16), measured, generated=40, trained=32)
    assert seconds == {"rollout": 4.0, "verify": 1.0, "score": 2.0, "update": 24.0, "sync": 0.25}
    assert step_seconds(recipe, seconds) == 31.25
    ahead = replace(recipe, run=replace(recipe.run, ahead=1))
    assert step_seconds(ahead, seconds) == 26.25  # generating hides behind training
    spread = replace(recipe, launch=replace(recipe.launch, processes_per_node=4))
    assert phase_seconds(spread, StepForecast(1.5, 20, 16), measured, 40, 0) == {
        "rollout": 1.0,
        "verify": 0.25,
        "sync": 0.25,
    }


def test_no_answer_is_counted_where_a_completion_ended_and_the_verifier_tells() -> None:
    group = make_group([3, 3, 3, 3], [True, False, False, False], truncated=(1,))
    verdicts = (
        Verdict(Outcome.RIGHT, "1", "answer_line"),
        Verdict(Outcome.WRONG, None, "none"),  # truncated
        Verdict(Outcome.WRONG, None, "none"),
        Verdict(Outcome.FAILED, None, "timeout"),
    )
    told = [replace(rollout, verdict=verdict) for rollout, verdict in zip(group.rollouts, verdicts, strict=True)]
    assert no_answer_share([replace(group, rollouts=tuple(told))]) == 0.5
    silent = [replace(rollout, verdict=Verdict(Outcome.RIGHT, None, "function")) for rollout in group.rollouts]
    assert no_answer_share([replace(group, rollouts=tuple(silent))]) is None


# The probe


@pytest.fixture(scope="module")
def probed() -> Probe:
    return run_probe(quickstart(), ProbeSize(prompts=6))


def test_its_completions_are_the_runs_own_first_ones(probed: Probe, tmp_path: Path) -> None:
    first_round = ["sampler.dynamic=false", "algorithm.groups_per_step=6", "algorithm.groups_per_update=6"]
    options = [*SMALL, *first_round, "eval.data=null", "run.steps=1", "optimizer.warmup_steps=0"]
    assert run(["train", "quickstart", f"run.dir={tmp_path / 'run'}", *options], debug=False) == 0
    (metrics,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert {name: metrics[name] for name in probed.figures} == probed.figures
    assert {name: metrics[f"ledger/{name}"] for name in probed.pass_rates} == probed.pass_rates
    assert (probed.informative.rate, metrics["length/mean"] * 24) == (
        metrics["sampler/informative_rate"],
        probed.tokens,
    )
    assert probed.informative.size == 4 and not probed.informative.lower_bound
    assert set(probed.seconds) == {"rollout", "verify", "score", "update", "sync"}


def test_of_several_processes_generation_alone_is_measured(probed: Probe) -> None:
    spread = run_probe(quickstart("learner=fsdp", "launch.processes_per_node=2"), ProbeSize(prompts=6))
    assert (spread.figures, spread.tokens) == (probed.figures, probed.tokens)
    assert set(spread.seconds) == {"rollout", "verify", "sync"} and spread.step_seconds is None


def test_of_a_table_the_expected_yield_is_near_the_exact_one() -> None:
    chances = make_table(TabularModel(seed=0)).pass_rates_P.tolist()
    exact = math.fsum(chance_informative(p, 16) for p in chances) / len(chances)
    found = run_probe(load_recipe("toy").recipe, ProbeSize(prompts=512))
    assert found.informative.rate == pytest.approx(exact, abs=0.03)
    assert found.informative.low < exact < found.informative.high
    assert found.figures["judged/accuracy"] == pytest.approx(math.fsum(chances) / len(chances), abs=0.01)


# What it finds doubtful


def lints_of(recipe: Recipe, probe: Probe, **figures: float) -> list[tuple[str, str]]:
    named = {name.replace("_", "/", 1): value for name, value in figures.items()}
    found = probe_lints(recipe, replace(probe, figures=probe.figures | {"judged/truncated": 0.0} | named))
    return [(finding.key, finding.problem) for finding in found]


def test_what_a_probe_finds_doubtful(probed: Probe) -> None:
    recipe = quickstart("sampler.initial_yield=0.8")
    sound = replace(probed, informative=expected_yield([2] * 26 + [0] * 6, 4, 4))
    assert lints_of(recipe, sound, judged_truncated=0.1) == []
    assert lints_of(recipe, sound, judged_truncated=0.11)[0][0] == "sampling.max_tokens"
    assert lints_of(recipe, replace(sound, no_answer=0.2)) == []
    assert "state no answer" in lints_of(recipe, replace(sound, no_answer=0.21))[0][1]
    failed = lints_of(recipe, sound, verifier_failed_share=0.75, verifier_failed=3, verifier_failed_timeout=3)
    assert failed == [("reward", "3 of the probe's verdicts failed (timeout 3)")]
    assert "solved in 4 tries: nothing to learn" in lints_of(recipe, sound, judged_accuracy=0)[0][1]
    assert "were solved in each of 4 tries" in lints_of(recipe, sound, judged_accuracy=1)[0][1]


@pytest.mark.parametrize(
    ("mixed", "keys"),  # of 32 prompts; initial_yield is 0.5
    [
        (16, []),
        (20, []),
        (30, ["sampler.initial_yield"]),
        (9, ["sampler.initial_yield"]),
        (7, ["data", "sampler.initial_yield"]),
    ],
)
def test_a_low_yield_and_one_far_from_the_assumed(probed: Probe, mixed: int, keys: list[str]) -> None:
    found = replace(probed, informative=expected_yield([2] * mixed + [0] * (32 - mixed), 4, 4))
    assert [key for key, _ in lints_of(quickstart(), found)] == keys
    bound = replace(probed, informative=expected_yield([1] * mixed + [0] * (32 - mixed), 2, 4))
    assert lints_of(quickstart(), bound) == []  # larger groups are informative more often


# The command


def test_the_command_tells_it_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], build_verifier_once: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dapo_cli.preflight.survey.build_verifier", build_verifier_once)
    asked = ["check", "quickstart", *SMALL, "eval.data=null", "--probe", "--probe-prompts", "4", "--probe-samples", "2"]
    assert run([*asked, "--json"], debug=False) == 0
    probe = json.loads(capsys.readouterr().out)["probe"]
    assert (probe["prompts"], probe["samples"], probe["informative"]["lower_bound"]) == (4, 2, True)
    assert probe["step_seconds"] == pytest.approx(sum(probe["seconds"].values()))
    assert os.listdir(tmp_path) == []
    assert run(["check", "quickstart", "--probe-prompts", "4"], debug=False) == 2
    assert "give --probe, too" in capsys.readouterr().err


def surveyed(recipe: Recipe, **known: Any) -> Survey:
    return Survey(recipe, likeness(recipe), plan_batch(recipe), **known)


def test_the_page_of_a_probe(probed: Probe) -> None:
    probe = replace(
        probed,
        informative=expected_yield([2, 2, 0, 0, 0, 4], 4, 4),
        step=StepForecast(1.25, 20.5, 15.5),
        pass_rates=dict(zip(probed.pass_rates, (3 / 6, 0, 2 / 6, 0, 0, 1 / 6), strict=True)),
        seconds={"rollout": 1.5, "update": 2.0},
        step_seconds=3.5,
    )
    page = "\n".join(" ".join(line.split()) for line in page_lines("x", surveyed(quickstart(), probe=probe)))
    assert "none 3, up to 1/4 0, up to 1/2 2, up to 3/4 0, more 0, all 1" in page
    assert "33% of groups of 4 are informative (95% interval 10% to 70%; assumed: 50%)" in page
    assert "20.5 prompts x 4 = 82 completions in 1.25 rounds, to train on 15.5 groups" in page
    assert "1.5 generate + 2 update = 3.5" in page and "40 steps: 2:20 without" in page
    bound = replace(probe, informative=expected_yield([1, 1], 2, 4), step_seconds=None)
    page = "\n".join(page_lines("x", surveyed(quickstart(), probe=bound)))
    assert "at least 100% of groups of 2" in page and "were not measured" in " ".join(page.split())


def test_without_an_informative_group_no_step_is_foretold(probed: Probe) -> None:
    nothing = replace(probed, informative=expected_yield([0] * 6, 4, 4), step=StepForecast(10, 5000, 0))
    page = "\n".join(page_lines("x", surveyed(quickstart(), probe=nothing)))
    assert "no group was informative, so rounds and seconds of a step cannot be told" in page
    assert "5,000" not in page and "seconds a step" not in page


def test_the_start_of_the_workers_is_no_time_of_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    verify, ready = VerifierPool.verify, []

    def seen(pool: VerifierPool, cases: list[Any]) -> list[Verdict]:
        ready.append(all(worker.ready for worker in pool._workers))
        return verify(pool, cases)

    monkeypatch.setattr(VerifierPool, "verify", seen)
    run_probe(quickstart(), ProbeSize(prompts=1))
    assert ready == [True]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_keeps_a_probe_from_being_made(tmp_path: Path) -> None:
    def told(*overrides: str, recipe: str = "quickstart") -> str:
        found = surveyed(load_recipe(recipe, [*(SMALL if recipe == "quickstart" else ()), *overrides]).recipe)
        add_probe(found, ProbeSize(2))
        assert found.probe is None and found.count(Level.ERROR) == 1
        return found.findings[0].text

    folder = shutil.copytree(model_folder("shipped:tiny-arithmetic"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"probe: model.path={folder}: tensor model.norm.weight has values" in told(f"model.path={folder}")
    assert "probe: model: the model's logits are not finite, by its" in told("model.wrong_bonus=1e39", recipe="toy")
    assert "http://127.0.0.1:9" in told("rollout=vllm_server", "rollout.servers=[http://127.0.0.1:9]")
    engine = ("rollout=vllm_colocated", "rollout.tensor_parallel=2", "learner=fsdp", "launch.processes_per_node=2")
    assert "rollout.tensor_parallel = 2 splits the engine" in told(*engine)
    assert "no such folder" in told("model.path=./nowhere")


def test_the_end_of_an_engines_log_is_quoted_since_a_probes_will_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        os.write(1, b"".join(b"line %d\n" % number for number in range(20)))
        raise ValueError("no room")

    monkeypatch.setattr(vllm_colocated, "_start", start)
    model = open_pretrained(PretrainedModel("shipped:tiny-arithmetic"))
    with pytest.raises(UserError) as told:
        vllm_colocated.VllmColocatedEngine(
            VllmColocatedRollout(),
            model,
            join_world(with_group=False),
            dtype=Precision.float32,
            max_tokens=8,
            log_file=tmp_path / "log",
        )
    first, *lines = str(told.value).splitlines()
    assert first.endswith("vLLM does not start: no room; the end of log:")
    assert [line.strip() for line in lines] == [f"line {number}" for number in range(10, 20)]


def test_no_probe_of_what_has_errors_already() -> None:
    found = surveyed(quickstart(), findings=[Finding(Level.ERROR, "data", "", "empty")])
    add_probe(found, ProbeSize(2))
    assert found.skipped == ["the probe: first mend the errors"] and len(found.findings) == 1
