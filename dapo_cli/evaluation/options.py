"""What `dapo eval` is asked for, and how completions are drawn. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dapo_cli.config.schema import Instruction, Precision, SamplingConfig
from dapo_cli.config.validate import LEAST_TEMPERATURE
from dapo_cli.errors import UserError

TRANSFORMERS, VLLM, SERVER = "transformers", "vllm", "server"
SECTIONS = ("data", "rollout", "reward")  # whose keys may be set by KEY=VALUE


@dataclass(frozen=True)
class Options:
    """The command line; None leaves a choice to the run's recipe, or to what fits the model.

    `engine` is transformers, vllm, or the http address of an OpenAI-compatible server, which knows the model as
    `served_model` (None: as `model`).
    """

    model: str
    data: Sequence[str]
    samples: int
    temperature: float
    top_p: float
    max_tokens: int
    mode: str | None
    engine: str | None
    seed: int
    limit: int | None
    out: Path | None
    step: int | None
    all_checkpoints: bool
    instruction: Instruction | None
    chat_template: bool | None
    dtype: Precision | None
    served_model: str | None
    overrides: Sequence[str]
    allow_changes: bool

    @property
    def remote(self) -> bool:
        return self.engine is not None and self.engine.startswith(("http://", "https://"))

    def of_section(self, section: str) -> list[str]:
        """The KEY=VALUE of one section, such as `rollout.max_batch_completions=64`."""
        return [text for text in self.overrides if text.startswith(f"{section}.")]

    def check(self) -> None:
        """Raises UserError for options that do not go together."""
        for text in self.overrides:
            if "=" not in text or text.partition(".")[0] not in SECTIONS:
                raise UserError(
                    f"{text}: dapo eval takes KEY=VALUE of {', '.join(SECTIONS)}, such as "
                    "rollout.max_batch_completions=64; all else is an option of its own (dapo eval --help)"
                )
        if self.engine not in (None, TRANSFORMERS, VLLM) and not (self.remote and _has_host(self.engine)):
            raise UserError(f"--engine {self.engine}: must be {TRANSFORMERS}, {VLLM} or http(s)://HOST:PORT")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise UserError(f"--temperature {self.temperature}: give 0 (greedy) or at least {LEAST_TEMPERATURE:g}")
        if self.temperature == 0 and self.samples > 1:
            raise UserError(
                f"-k {self.samples} with --temperature 0 would give the same completion each time; give -k 1, or a "
                "temperature above 0"
            )
        if self.remote and (self.step is not None or self.all_checkpoints):
            raise UserError("--step and --all-checkpoints read a run's checkpoints, which a server does not: leave out")
        if self.remote and self.of_section("rollout"):
            raise UserError(f"{self.of_section('rollout')[0]}: a server has its own settings; leave it out")
        if self.step is not None and self.all_checkpoints:
            raise UserError("--step and --all-checkpoints exclude each other; give one")


def _has_host(address: str | None) -> bool:
    try:
        parts = urlsplit(address or "")
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that hold no address
        return False


@dataclass(frozen=True)
class Draw:
    """How the completions of a problem are drawn; the noise of one is keyed on (`key`, uid, sample index)."""

    samples: int
    sampling: SamplingConfig
    key: str
