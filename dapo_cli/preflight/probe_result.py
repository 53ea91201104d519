"""What a probe is asked for and what it finds, for those that do not make one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dapo_cli.preflight.estimates import StepForecast, Yield
    from dapo_cli.protocols import Metrics

PROMPTS = 32  # their completions fill the embedded engine's batch in the quickstart


@dataclass(frozen=True)
class ProbeSize:
    """Prompts to ask, and completions of each; None takes the recipe's group size."""

    prompts: int = PROMPTS
    samples: int | None = None


@dataclass(frozen=True)
class Probe:
    """`figures` are means over the probe's completions, named as in metrics.jsonl; `no_answer` is the share of those
    that ended by themselves without stating one, None where the verifier does not tell; `pass_rates` are shares of
    prompts by pass rate, as the ledger names them; `tokens_per_s` is that of its own generation. `seconds` are those of
    each phase of a step, from what the probe measured; score and update are missing where several processes share
    them."""

    prompts: int
    samples: int
    informative: "Yield"
    step: "StepForecast"
    figures: "Metrics"
    no_answer: float | None
    pass_rates: "Metrics"
    tokens: int
    generating_s: float
    tokens_per_s: float | None
    seconds: dict[str, float]
    step_seconds: float | None
