"""Can the recipe's verifier read the answers? Each gold answer, stated as the prompts ask, must be found right."""

from collections.abc import Sequence
from dataclasses import dataclass

from dapo_cli.config.schema import (
    AuthorsReward,
    DataConfig,
    Instruction,
    PythonReward,
    Recipe,
    RewardConfig,
    StrictBoxedReward,
)
from dapo_cli.data.prompts import INSTRUCTION_MARK
from dapo_cli.data.questions import Question
from dapo_cli.errors import UserError
from dapo_cli.preflight.findings import Finding, Level
from dapo_cli.protocols import Verifier
from dapo_cli.reward.modes import build_verifier, mode_name
from dapo_cli.reward.user_function import UserFunction
from dapo_cli.types import Case, Outcome, Prompt, Verdict

MOST_CHECKED = 2000  # answers, spread evenly over the data: some seconds of verifying
FIRST = 8  # prompts whose gold answers `dapo train` has judged
SHOWN = 3
BOX = r"\boxed"


@dataclass(frozen=True)
class AnswerCheck:
    """Of one section: answers checked, of how many, and those not found right, the first few with their rows."""

    section: str
    checked: int
    of: int
    unread: int
    form: str
    examples: tuple[str, ...]


def stated_form(prompt: str, data: DataConfig, reward: RewardConfig) -> str:
    """How a response that does as it is told states its answer, with the answer as `{}`."""
    if data.instruction is Instruction.authors or INSTRUCTION_MARK in prompt:
        return "Answer: {}"
    if BOX in prompt or isinstance(reward, StrictBoxedReward):
        return BOX + "{{{}}}"
    return "Answer: {}"


def gold_case(prompt: str, answer: str, form: str) -> Case:
    """A response that gives the gold answer, in a form of `stated_form`."""
    return Case(prompt, "The problem is solved.\n\n" + form.format(answer), answer)


def check_answers(
    section: str, questions: Sequence[Question], data: DataConfig, reward: RewardConfig, verifier: Verifier
) -> AnswerCheck:
    """Verify up to MOST_CHECKED gold answers against themselves, by the recipe's own `verifier`.

    Raises UserError for one of the user's that cannot be loaded.
    """
    count = min(MOST_CHECKED, len(questions))
    chosen = [questions[place * len(questions) // count] for place in range(count)]
    forms = [stated_form(question.text, data, reward) for question in chosen]
    cases = [gold_case(question.text, question.answer, form) for question, form in zip(chosen, forms, strict=True)]
    verdicts = verifier.verify(cases)
    wrong = [place for place, verdict in enumerate(verdicts) if verdict.outcome is not Outcome.RIGHT]
    examples = tuple(_example(chosen[place], verdicts[place]) for place in wrong[:SHOWN])
    form = forms[wrong[0]] if wrong else forms[0]
    return AnswerCheck(section, count, len(questions), len(wrong), form.format("..."), examples)


def check_function(recipe: Recipe, prompts: Sequence[Prompt], function: UserFunction | None) -> None:
    """A function of the user's must be able to judge: raises UserError where its verdict on the gold answers of the
    first prompts, whether right or wrong, fails each time."""
    reward = recipe.reward
    if not isinstance(reward, PythonReward):
        return
    cases = [
        gold_case(prompt.text, prompt.answer, stated_form(prompt.text, recipe.data, reward))
        for prompt in prompts[:FIRST]
    ]
    with build_verifier(reward, function) as pool:
        verdicts = pool.verify(cases)
    if all(verdict.outcome is Outcome.FAILED for verdict in verdicts):
        raise UserError(
            f"reward.path={reward.path}: {reward.function} fails on each of the first {len(cases)} gold answers, given "
            f"as {cases[0].completion!r:.80} ({verdicts[0].rule}), so no reward would say anything; it must return "
            "True, False or a Verdict, and of a completion that it cannot use, wrong"
        )


def _example(question: Question, verdict: Verdict) -> str:
    read = "no answer was read" if verdict.extracted is None else f"read as {verdict.extracted!r:.40}"
    return f"{question.where}: {question.answer!r:.60} ({read}, {verdict.rule})"


def asking_finding(
    section: str, questions: Sequence[Question], data: DataConfig, reward: RewardConfig
) -> Finding | None:
    """Rewards that read one form alone want prompts that ask for it."""
    if isinstance(reward, StrictBoxedReward):
        mark, asks = BOX, any(BOX in question.text for question in questions)
    elif isinstance(reward, AuthorsReward):
        mark = "Answer:"
        asks = data.instruction is Instruction.authors or any("answer:" in q.text.casefold() for q in questions)
    else:
        return None
    if asks:
        return None
    problem = f"reward {mode_name(reward)} reads {mark} alone, and no prompt asks for it"
    remedy = "choose reward=math" if mark == BOX else f"set {section}.instruction=authors"
    return Finding(Level.WARNING, f"{section}.instruction", data.instruction.value, problem, remedy)


def answer_finding(check: AnswerCheck, reward: RewardConfig) -> Finding | None:
    """A gold answer that does not verify against itself makes its prompt unsolvable."""
    if not check.unread:
        return None
    mode = mode_name(reward)
    if check.unread == check.checked:
        problem = f"verifier {mode} finds none of {check.checked:,} gold answers right where a response states them"
        remedy = "choose the reward that reads what the prompts ask for"
        return Finding(Level.ERROR, "reward", mode, f"{problem} by `{check.form}`: {check.examples[0]}", remedy)
    problem = (
        f"{check.unread:,} of {check.checked:,} gold answers checked are not right against themselves by verifier "
        f"{mode}, so their prompts cannot be solved: {'; '.join(check.examples)}"
    )
    return Finding(Level.WARNING, check.section, "", problem, "correct or remove them, or choose another reward")
