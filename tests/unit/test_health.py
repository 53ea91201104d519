"""The rules of a run's health with worked numbers at and beside their thresholds, and the alarms they make."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_cli.config import schema
from dapo_cli.config.schema import HealthAction, HealthConfig
from dapo_cli.health.event import EventKind, HealthEvent, Signs
from dapo_cli.health.monitor import Health
from dapo_cli.health.rules import RULES
from dapo_cli.tracking.file_tracker import FileTracker
from dapo_cli.tracking.files import read_lines
from dapo_cli.tracking.run_folder import RunFolder

BEGAN, ENDED = EventKind.began, EventKind.ended


def steps(first: int = 1, **figures: list[Any]) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl from `first` on; `section__name=[...]` gives a figure of each step."""
    named = {key.replace("__", "/"): values for key, values in figures.items()}
    rows = zip(*named.values(), strict=True)
    return [{"step": first + place, **dict(zip(named, row, strict=True))} for place, row in enumerate(rows)]


def collapse(entropy: list[float | None], informative: list[float], accuracy: list[float]) -> Signs | None:
    window = steps(policy__entropy=entropy, sampler__informative_rate=informative, judged__accuracy=accuracy)
    return RULES["entropy_collapse"](window, schema.EntropyCollapse())


def test_an_entropy_that_collapses_away_from_the_answers() -> None:
    # before: mean of 0.5, 0.75, 0.4, 0.35 is 0.5; now: mean of 0.26 and 0.24 is 0.25, half of it
    entropy = [0.5, 0.75, 0.4, 0.35, 0.26, 0.24]
    informative = [0.75, 0.75, 0.75, 0.75, 0.75, 0.5]  # zero-variance 0.25 before, 0.375 now
    signs = collapse(entropy, informative, [0.3] * 6)
    assert signs is not None and signs.since == 3  # behind the highest
    assert signs.figures == pytest.approx(
        {
            "policy/entropy_before": 0.5,
            "policy/entropy": 0.25,
            "sampler/informative_rate_before": 0.75,
            "sampler/informative_rate": 0.625,
            "judged/accuracy": 0.3,
        }
    )
    assert "fell from 0.5 to 0.25 nats" in signs.message and "from 25% to 38% at an accuracy of 30%" in signs.message
    assert collapse([*entropy[:-1], 0.2401], informative, [0.3] * 6) is None
    assert collapse(entropy, [*informative[:-1], 0.5501], [0.3] * 6) is None  # rises by 0.09995 only
    assert collapse(entropy, informative, [0.3] * 4 + [0.95, 0.85]) is not None
    assert collapse(entropy, informative, [0.3] * 4 + [0.95, 0.8501]) is None  # has solved its data


def test_a_trend_needs_two_steps_on_either_side_and_a_figure_of_now() -> None:
    assert collapse([0.5, 0.1, 0.1], [0.9, 0.1, 0.1], [0.3] * 3) is None
    assert collapse([0.5, 0.5, 0.1, 0.1], [0.9, 0.9, 0.1, 0.1], [0.3] * 4) is not None
    assert collapse([0.5, 0.5, 0.1, 0.1, None], [0.9, 0.9, 0.1, 0.1, 0.0], [0.3] * 5) is None
    assert collapse([0.5, 0.5, 0.1, 0.1, float("nan")], [0.9, 0.9, 0.1, 0.1, 0.0], [0.3] * 5) is None
    gap = collapse([0.5, 0.5, None, 0.1, 0.1], [0.9, 0.9, 0.0, 0.1, 0.1], [0.3] * 5)
    assert gap is not None and gap.figures["sampler/informative_rate"] == pytest.approx(0.1)


def test_an_entropy_that_explodes_into_repetition() -> None:
    def explosion(entropy: list[float], ngrams: list[float]) -> Signs | None:
        window = steps(policy__entropy=entropy, repetition__ngram_share=ngrams)
        return RULES["entropy_explosion"](window, schema.EntropyExplosion())

    ngrams = [0.25, 0.25, 0.25, 0.28, 0.26]  # 0.25 before, 0.27 now
    signs = explosion([0.5, 0.25, 0.75, 0.7, 0.8], ngrams)  # 0.5 before, 0.75 now
    assert signs is not None and signs.since == 3  # behind the lowest
    assert explosion([0.5, 0.25, 0.75, 0.7, 0.799], ngrams) is None
    assert explosion([0.5, 0.25, 0.75, 0.7, 0.8], [0.25, 0.25, 0.25, 0.28, 0.259]) is None  # exploration


def spiral(rates: list[float | None], *accuracies: float | None) -> Signs | None:
    """The last accuracy is that of all further steps."""
    accuracies = accuracies or (0.04,)
    each = [accuracies[min(place, len(accuracies) - 1)] for place in range(len(rates))]
    window = steps(7, sampler__informative_rate=rates, judged__accuracy=each)
    return RULES["resampling_spiral"](window, schema.ResamplingSpiral())


def test_a_sampler_that_throws_nearly_everything_away() -> None:
    signs = spiral([0.5, 0.2, 0.1, 0.15])
    assert signs is not None and signs.since == 8
    assert signs.figures == pytest.approx({"sampler/informative_rate": 0.15, "judged/accuracy": 0.04, "steps": 3})
    assert "6.7 prompts are generated for each one" in signs.message and "too hard" in signs.message
    assert spiral([0.5, 0.21, 0.1, 0.15]) is None
    assert spiral([0.1, 0.1, None]) is None
    solved = spiral([0.0, 0.0, 0.0], 0.99)
    assert solved is not None and "no prompt generated is one" in solved.message and "nearly solved" in solved.message
    broken = spiral([0.5, 0.1, 0.1, 0.1], 0.25, 0.04)
    assert broken is not None and "The accuracy was 25%: the policy broke." in broken.message
    unknown = spiral([0.0, 0.0, 0.0], None)
    assert unknown is not None and "at an accuracy of none" in unknown.message


def runaway(penalty: list[float], in_buffer: list[float | None], truncated: list[float] | None = None) -> Signs | None:
    length = [30.0 + place for place in range(len(penalty))]
    window = steps(
        judged__length_penalty=penalty,
        length__in_buffer=in_buffer,
        judged__truncated=truncated or [0.25] * len(penalty),
        length__mean=length,
    )
    return RULES["length_runaway"](window, schema.LengthRunaway())


def test_completions_that_run_into_the_limit() -> None:
    flat: list[float | None] = [0.1] * 4
    signs = runaway([-0.05, -0.11, -0.2, -0.14], flat)
    assert signs is not None and signs.since == 2
    assert signs.figures == pytest.approx({"judged/length_penalty": -0.15, "judged/truncated": 0.25, "steps": 3})
    assert runaway([-0.05, -0.1, -0.2, -0.14], flat) is None
    growing = runaway([0.0] * 5, [0.02, 0.0, 0.01, 0.1, 0.12])  # 0.01 before, 0.11 now
    assert growing is not None and growing.since == 3
    assert growing.figures == pytest.approx({"length/in_buffer_before": 0.01, "length/in_buffer": 0.11})
    assert "(mean length 31 to 34 tokens)" in growing.message  # 30, 31, 32 and 33, 34: 33.5 is rounded to even
    assert runaway([0.0] * 5, [0.02, 0.0, 0.01, 0.1, 0.1199]) is None
    cut = runaway([0.0] * 4, [None] * 4, truncated=[0.0, 0.0, 0.2, 0.1])  # without Eq. 13
    assert cut is not None and "share of completions cut rose from 0% to 15%" in cut.message


def test_verdicts_that_fail() -> None:
    def failures(failed: list[int]) -> Signs | None:
        window = steps(
            verifier__right=[50] * len(failed),
            verifier__wrong=[150 - count for count in failed],
            verifier__failed=failed,
            verifier__failed_timeout=[count // 3 for count in failed],
            verifier__failed_memory=[0] * len(failed),
            verifier__failed_error=[count - count // 3 for count in failed],
            verifier__failed_share=[count / 200 for count in failed],
        )
        return RULES["verifier_failures"](window, schema.VerifierFailures())

    signs = failures([2, 3, 90])
    assert signs is not None and signs.since == 2
    assert "90 of 200 verdicts failed (timeout 30, error 60)" in signs.message
    assert signs.figures == {
        "verifier/failed_share": 0.45,
        "verifier/failed": 90,
        "verdicts": 200,
        "verifier/failed_timeout": 30,
        "verifier/failed_error": 60,
    }
    assert failures([90, 2]) is None  # 0.01 is not above 0.01


def test_an_engine_that_drifts_from_the_learner() -> None:
    def drift(mean_abs: list[float | None], kl: list[float | None]) -> Signs | None:
        return RULES["mismatch_drift"](steps(mismatch__mean_abs=mean_abs, mismatch__kl=kl), schema.MismatchDrift())

    signs = drift([0.01, 0.06, 0.04], [0.0, 0.0, 0.021])  # by its mean, then by its KL
    assert signs is not None and signs.since == 2
    assert signs.figures == {"mismatch/mean_abs": 0.04, "mismatch/kl": 0.021, "steps": 2}
    assert drift([0.01, 0.06, 0.05], [0.0, 0.0, 0.02]) is None
    assert drift([0.9, 0.9, None], [0.9, 0.9, None]) is None


def test_a_gradient_beyond_the_others() -> None:
    def spike(norms: list[float | None]) -> Signs | None:
        return RULES["grad_norm_spike"](steps(policy__grad_norm=norms), schema.GradNormSpike())

    signs = spike([0.1, 9.0, None, 0.2, 1.21])  # the median of 0.1, 9.0 and 0.2
    assert signs is not None and signs.since == 5
    assert signs.figures == {"policy/grad_norm": 1.21, "policy/grad_norm_median": 0.2, "steps": 3}
    assert "6.0 times the median 0.2 of the 3 steps before" in signs.message
    assert spike([0.1, 9.0, None, 0.2, 1.2]) is None
    assert spike([0.1, 0.2, 9.0]) is None
    assert spike([0.1, 0.1, 0.1, None]) is None
    # A step with nothing to learn from has the norm 0, which is no measure of a usual one.
    assert spike([0.0, 0.0, 0.0, 0.1]) is None
    assert spike([0.0, 0.1, 0.0, 0.2, 0.0, 0.0, 1.2]) is None  # two norms before are too few
    quiet = spike([0.0, 0.1, 0.0, 9.0, 0.0, 0.2, 0.0, 0.0, 1.21])
    assert quiet is not None and quiet.figures["policy/grad_norm_median"] == 0.2


def test_a_start_without_a_right_answer() -> None:
    def cold(never_solved: list[float | None]) -> Signs | None:
        judged = [80 * (place + 1) for place in range(len(never_solved))]
        window = steps(ledger__never_solved=never_solved, sampler__rollouts_total=judged)
        return RULES["zero_reward_cold_start"](window, schema.ZeroRewardColdStart())

    signs = cold([1.0, 1.0, 1.0])
    assert signs is not None and signs.since == 1
    assert signs.figures == {"ledger/never_solved": 1.0, "sampler/rollouts_total": 240}
    assert cold([1.0, 1.0]) is None
    assert cold([1.0, 1.0, 0.99]) is None
    assert cold([None, None, None]) is None


# Alarms -----------------------------------------------------------------------------------------------------------


def config(action: HealthAction = HealthAction.note, window: int = 6, **more: Any) -> HealthConfig:
    """Of two rules alone; the others are off."""
    health = HealthConfig(window=window, **more)
    for rule in health.rules().values():
        rule.action = HealthAction.off
    health.resampling_spiral = schema.ResamplingSpiral(action, informative_rate=0.2, steps=2)
    health.grad_norm_spike = schema.GradNormSpike(HealthAction.note)
    return health


def figures(rate: float | None, norm: float | None) -> dict[str, Any]:
    return {"sampler/informative_rate": rate, "policy/grad_norm": norm, "judged/accuracy": 0.25}


def said(events: list[HealthEvent]) -> list[tuple[str, str, int]]:
    return [(event.rule, event.event.value, event.since) for event in events]


def test_an_alarm_is_said_once_while_it_lasts_and_keeps_its_first_step() -> None:
    health = Health(config(window=4))
    rates = [0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.1, 0.1]
    found = {step: said(health.feed(step, figures(rate, 0.25))) for step, rate in enumerate(rates, start=1)}
    spiral = "resampling_spiral"
    expected = {3: [(spiral, "began", 2)], 8: [(spiral, "ended", 2)], 10: [(spiral, "began", 9)]}
    assert {step: events for step, events in found.items() if events} == expected


def test_a_rule_that_is_off_says_nothing() -> None:
    health = Health(config(HealthAction.off))
    assert [health.feed(step, figures(0.0, 0.25)) for step in range(1, 6)] == [[]] * 5


def test_an_alarm_whose_rule_a_resume_switched_off_ends() -> None:
    health = Health(config())
    began = [event.record for step in (1, 2) for event in health.feed(step, figures(0.1, 0.25))]
    assert [record["event"] for record in began] == ["began"]
    resumed = Health(config(HealthAction.off), events=began)
    assert said(resumed.feed(3, figures(0.1, 0.25))) == [("resampling_spiral", "ended", 1)]
    assert resumed.feed(4, figures(0.1, 0.25)) == []


FIGURES = st.tuples(st.sampled_from([None, 0.1, 0.2, 0.5]), st.sampled_from([None, 0.1, 0.2, 0.9, float("inf")]))


@settings(max_examples=25, deadline=None)
@given(st.lists(FIGURES, min_size=8, max_size=20), st.data())
def test_a_resume_says_what_an_uninterrupted_run_says(tmp_path_factory, course, data) -> None:
    """A run killed at any step and gone on from any checkpoint before leaves the same health.jsonl."""
    whole, broken = RunFolder(tmp_path_factory.mktemp("whole")), RunFolder(tmp_path_factory.mktemp("broken"))
    killed_after = data.draw(st.integers(0, len(course)))
    checkpoint = data.draw(st.integers(0, killed_after))
    run(whole, course, 0, len(course))
    run(broken, course, 0, killed_after)
    with broken.health_file.open("ab") as file:
        file.write(b'{"step": 3, "ru')
    broken.rewind(checkpoint)
    run(broken, course, checkpoint, len(course))
    assert read_lines(whole.health_file) == [json.loads(json.dumps(line)) for line in read_lines(broken.health_file)]
    assert contents(whole) == contents(broken)


def run(folder: RunFolder, course: list[tuple[Any, Any]], start: int, end: int) -> None:
    tracker = FileTracker(folder, rollouts_per_step=0)
    health = Health(config(), read_lines(folder.metrics_file), read_lines(folder.health_file))
    for step in range(start + 1, end + 1):
        tracker.step(step, figures(*course[step - 1]))
        for event in health.feed(step, figures(*course[step - 1])):
            tracker.health(event)


def contents(folder: RunFolder) -> bytes:
    return folder.health_file.read_bytes() if folder.health_file.exists() else b""


@settings(max_examples=50, deadline=None)
@given(st.lists(FIGURES, max_size=16))
def test_alarms_against_a_slow_replay(course) -> None:
    """Of each step the rules are asked anew over the lines up to it; where the answer changes, there is an event."""
    health, settings_ = Health(config()), config()
    lines = [{"step": step, **figures(*each)} for step, each in enumerate(course, start=1)]
    on: dict[str, bool] = {}
    for step in range(1, len(lines) + 1):
        expected = []
        for name in ("resampling_spiral", "grad_norm_spike"):
            holds = RULES[name](lines[max(0, step - 6) : step], getattr(settings_, name)) is not None
            if holds != on.get(name, False):
                expected.append((name, "began" if holds else "ended"))
            on[name] = holds
        found = health.feed(step, figures(*course[step - 1]))
        assert [(event.rule, event.event.value) for event in found] == expected


# Responses --------------------------------------------------------------------------------------------------------


def alarm(action: HealthAction, since: int = 5, rule: str = "resampling_spiral") -> HealthEvent:
    return HealthEvent(8, rule, BEGAN, since, action, "Signs.", {"rate": 0.125})


def test_the_severest_alarm_is_answered() -> None:
    health = Health(config())
    checkpoint, pause = alarm(HealthAction.checkpoint, rule="a"), alarm(HealthAction.pause, rule="b")
    response = health.respond([alarm(HealthAction.note), checkpoint, pause], [])
    assert (response.action, response.reason, response.for_good) == (HealthAction.pause, "b: Signs.", True)
    ended = HealthEvent(8, "b", ENDED, 5, HealthAction.stop, "")
    assert health.respond([ended], []).action is HealthAction.note
    assert not health.respond([alarm(HealthAction.note)], []).saves and response.saves


def test_a_rollback_goes_before_the_signs_as_often_as_it_may() -> None:
    rollback = alarm(HealthAction.rollback)
    health = Health(config(max_rollbacks=2, rollback_lr_factor=0.25))
    response = health.respond([rollback, alarm(HealthAction.rollback, since=4, rule="other")], [1, 3, 4, 7])
    assert response.rolled_back is not None and not response.saves
    first = response.rolled_back.record
    assert first["figures"] == {"rate": 0.125, "to_step": 3, "lr_factor": 0.25, "rollbacks": 1}
    assert (first["step"], first["rule"], first["event"], first["since"]) == (8, "other", "rolled_back", 4)

    second = Health(health.config, rollbacks=[first]).respond([rollback], [1, 3, 4, 7]).rolled_back
    assert second is not None and second.figures["to_step"] == 4 and second.figures["lr_factor"] == 0.0625
    for rollbacks, saved, why in (
        ([first, second.record], [1, 3, 4], "has been rolled back 2 times"),
        ([], [5, 7], "No checkpoint of before step 5"),
    ):
        stopped = Health(health.config, rollbacks=rollbacks).respond([rollback], saved)
        assert stopped.action is HealthAction.stop and stopped.rolled_back is None and why in stopped.reason


def test_a_rollback_s_line_outlives_rewinding(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    tracker = FileTracker(folder, rollouts_per_step=0)
    for step in range(1, 9):
        tracker.step(step, figures(0.5, 0.1))
        if step in (2, 6):
            tracker.health(HealthEvent(step, "a", BEGAN, step, HealthAction.note, "é"))
    rolled_back = HealthEvent(8, "b", EventKind.rolled_back, 5, HealthAction.rollback, "", {"to_step": 4})
    tracker.health(rolled_back)
    early, late = [record["step"] for record in read_lines(folder.health_file)][:2]
    assert (early, late) == (2, 6)
    folder.rewind(4, [rolled_back.record])
    assert [(line["step"], line["event"]) for line in read_lines(folder.health_file)] == [
        (2, "began"),
        (8, "rolled_back"),
    ]
    tracker.health(HealthEvent(5, "a", ENDED, 2, HealthAction.note, ""))
    folder.rewind(4, [rolled_back.record])
    assert [line["step"] for line in read_lines(folder.health_file)] == [2, 8]
    folder.rewind(1, [rolled_back.record])
    assert [line["step"] for line in read_lines(folder.health_file)] == [8]
    # One that the manifest does not know was not carried out; one that only the manifest knows was.
    folder.rewind(1)
    assert read_lines(folder.health_file) == []
    folder.rewind(1, [rolled_back.record])
    assert [line["step"] for line in read_lines(folder.health_file)] == [8]


def test_every_rule_has_its_thresholds() -> None:
    assert set(RULES) == set(HealthConfig().rules())
    assert [rule.action for rule in HealthConfig().rules().values()] == [HealthAction.note] * len(RULES)
