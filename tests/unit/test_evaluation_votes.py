"""Classes of answers, by an obvious implementation and by the real verifier in its processes."""

from hypothesis import given
from hypothesis import strategies as st

from dapo_cli.config.schema import AuthorsReward, MathReward
from dapo_cli.data.questions import Message, Question
from dapo_cli.evaluation.records import Problem, Sample, judged_rows, problem_scores
from dapo_cli.evaluation.votes import Vote, answer_classes, equivalence
from dapo_cli.types import Finish, Outcome, Prompt, Verdict


def by_length(pairs):
    """A made-up equivalence: answers of the same length are the same."""
    return [len(given) == len(reference) for given, reference in pairs]


def obvious_classes(votes):
    """One answer after another, each compared with the first of every class so far."""
    firsts: list[str] = []
    right = next((vote.answer for vote in votes if vote.right and vote.answer is not None), None)
    found = []
    for vote in votes:
        if vote.answer is None:
            found.append(None)
        elif vote.right:
            found.append((right, True))
        else:
            first = next((first for first in firsts if first == vote.answer or len(first) == len(vote.answer)), None)
            if first is None:
                firsts.append(vote.answer)
            found.append((first or vote.answer, False))
    return found


votes = st.builds(
    lambda answer: Vote(answer, answer == "right"), st.sampled_from(["a", "b", "cc", "dd", "eee", "right", None])
)


@given(st.lists(st.lists(votes, max_size=8), max_size=5))
def test_classes_of_many_problems_at_once_are_those_of_each_alone(problems):
    assert answer_classes(problems, by_length) == [obvious_classes(own) for own in problems]


def test_each_pair_of_texts_is_compared_once_and_equal_texts_never():
    asked = []

    def same(pairs):
        asked.extend(pairs)
        return [False] * len(pairs)

    answer_classes([[Vote("1", False), Vote("2", False), Vote("1", False), Vote("3", False), Vote("4", True)]], same)
    assert asked == [("2", "1"), ("3", "1"), ("3", "2")]


def test_the_math_verifier_votes_by_value_and_a_hostile_answer_votes_alone():
    hostile = "9" * 400 + "^{" + "9" * 400 + "}"
    votes = [Vote(answer, False) for answer in ("0.5", r"\frac{1}{2}", "1/2", "2", hostile, hostile + "+1")]
    with equivalence(MathReward(workers=2, timeout_s=5.0)) as same:
        (classes,) = answer_classes([votes], same)
    assert [found.answer for found in classes] == ["0.5", "0.5", "0.5", "2", hostile, hostile + "+1"]


def test_the_release_s_rule_votes_by_text():
    with equivalence(AuthorsReward()) as same:
        (classes,) = answer_classes([[Vote("0.5", False), Vote("1/2", False)]], same)
    assert [found.answer for found in classes] == ["0.5", "1/2"]


def rows(verdicts: list[Verdict], finishes: str = ""):
    problem = Problem(Question((Message("user", "q?"),), "4", "s", "w"), Prompt("u", "q?", (1,), "4", "s"))
    ends = {"S": Finish.STOP, "L": Finish.LENGTH}
    samples = [Sample("text", ends[end], 5) for end in finishes or "S" * len(verdicts)]
    return judged_rows(problem, samples, verdicts)


def test_a_problem_s_score_by_hand():
    right, wrong = Verdict(Outcome.RIGHT, "4", "box:text"), Verdict(Outcome.WRONG, "40", "box:number")
    silent, failed = Verdict(Outcome.WRONG, None, "none"), Verdict(Outcome.FAILED, None, "timeout")
    (found,) = problem_scores([rows([right, wrong, silent, failed], "SSLL")], by_length)
    assert (found.right, found.failed, found.truncated, found.no_answer, found.samples) == (1, 1, 2, 1, 4)
    assert found.consensus == 0.5 and found.voted == ("4", "40")


def test_a_function_that_returns_bools_tells_no_answers():
    yes, no = Verdict(Outcome.RIGHT, None, "function"), Verdict(Outcome.WRONG, None, "function")
    slow = Verdict(Outcome.FAILED, None, "timeout")  # says nothing about what the function tells
    for verdicts, rate in (([yes, no], 1 / 2), ([yes, no, slow, yes], 1 / 2), ([slow], 0.0)):
        (found,) = problem_scores([rows(verdicts)], by_length)
        assert (found.rate, found.consensus, found.no_answer, found.voted) == (rate, None, None, ())
