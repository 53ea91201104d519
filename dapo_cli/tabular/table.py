"""The problem of `model: tabular`: a table of logits, a row for each prompt, a column for each answer of one token."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dapo_cli.config.schema import TabularModel
from dapo_cli.protocols import Metrics
from dapo_cli.types import Prompt

HARD_PASS_RATE = 0.03  # prompts that begin below it are the hardest ones


def right_probabilities(logits_PV: np.ndarray, right_P: np.ndarray) -> np.ndarray:
    """What softmax at temperature 1 gives each row's right answer, [P] float64."""
    logits_PV = logits_PV.astype(np.float64)
    weights_PV = np.exp(logits_PV - logits_PV.max(-1, keepdims=True))
    return weights_PV[np.arange(len(right_P)), right_P] / weights_PV.sum(-1)


@dataclass(frozen=True)
class Table:
    """First logits [P, V] float32 and the column of each row's right answer, [P] int64."""

    logits_PV: np.ndarray
    right_P: np.ndarray

    @cached_property
    def pass_rates_P(self) -> np.ndarray:
        """Before training, [P] float64."""
        return right_probabilities(self.logits_PV, self.right_P)

    @property
    def hardest_P(self) -> np.ndarray:
        """Whether a row began below HARD_PASS_RATE, [P] bool."""
        return self.pass_rates_P < HARD_PASS_RATE

    @property
    def record(self) -> dict[str, Any]:
        """The entry for the manifest."""
        prompts, answers = self.logits_PV.shape
        return {
            "table": {"prompts": prompts, "answers": answers},
            "sha256": hashlib.sha256(self.logits_PV.tobytes() + self.right_P.tobytes()).hexdigest(),
            "pass_rate": float(self.pass_rates_P.mean()),
            "hardest_prompts": int(self.hardest_P.sum()),
        }

    def prompts(self) -> list[Prompt]:
        """One for each row; its one token is the row's number, its answer the right column's."""
        return [
            Prompt(f"tabular/{row}", f"row {row}", (row,), str(right), "tabular")
            for row, right in enumerate(self.right_P.tolist())
        ]

    def expected(self, logits_PV: np.ndarray) -> Metrics:
        """The accuracy of a policy of these logits, without sampling: its mean probability of the right answer over all
        prompts, and over the hardest ones (None where there are none)."""
        rates_P = right_probabilities(logits_PV, self.right_P)
        hardest = rates_P[self.hardest_P]
        return {
            "eval/accuracy": float(rates_P.mean()),
            "eval/standard_error": None,  # nothing is sampled
            "eval/prompts": len(rates_P),
            "eval/samples_per_prompt": None,
            "eval/hardest": float(hardest.mean()) if len(hardest) else None,
            "eval/hardest_prompts": len(hardest),
        }


def make_table(config: TabularModel) -> Table:
    """Normal logits, a bonus on a wrong answer and a uniform shift of the right one, all drawn by `config.seed` alone.

    Which columns are right and favoured goes round by row, so that no answer is the usual one.
    """
    rng = np.random.Generator(np.random.Philox(key=config.seed))
    rows = np.arange(config.prompts)
    right_P = rows % config.answers
    logits_PV = rng.normal(0.0, config.logit_std, (config.prompts, config.answers))
    logits_PV[rows, (right_P + 1) % config.answers] += config.wrong_bonus
    logits_PV[rows, right_P] += rng.uniform(config.shift_low, config.shift_high, config.prompts)
    return Table(logits_PV.astype(np.float32), right_P)
