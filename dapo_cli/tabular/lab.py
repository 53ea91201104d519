"""A table of logits as engine and learner in one: the loop, the objective and its statistics are those of any run."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from dapo_cli.config.schema import LearnerConfig, OptimizerConfig, SamplingConfig
from dapo_cli.distributed.world import World
from dapo_cli.learner import state
from dapo_cli.learner.base import BaseLearner, Objective
from dapo_cli.learner.micro_batches import Layout, MicroBatch
from dapo_cli.protocols import Finished, Metrics
from dapo_cli.rollout.transformers_engine import sample_tokens, sampling_noise
from dapo_cli.tabular.table import Table
from dapo_cli.types import Completion, Finish, Prompt, TokenSequence

if TYPE_CHECKING:
    from dapo_cli.learner.policy import Head

Out = TypeVar("Out")


class TablePolicy(torch.nn.Module):
    """What learners call in the place of a `learner.policy.Policy`: a row of logits stands for the hidden state, and
    the identity for the output embedding, so that their product is the row again, exactly."""

    def __init__(self, logits_PV: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits_PV)
        self.identity: Tensor
        self.register_buffer("identity", torch.eye(logits_PV.shape[1], device=logits_PV.device))

    def forward(self, batch: MicroBatch, head: "Head[Out]") -> Out:
        rows_N = batch.token_ids_M.index_select(0, batch.sources_N)
        return head(self.logits.index_select(0, rows_N), self.identity, batch.targets_N)


class TabularLab(BaseLearner):
    """A RolloutEngine and a Learner on one process. Updates are plain gradient descent: `optimizer.lr` (with its
    warm-up) times the gradient, scaled down to `optimizer.max_grad_norm`; no momentum, no decay.

    The loss is a mean over the mini-batch's N loss tokens, so a rate of lr moves the logits of one of its n prompts by
    lr / n times the gradient of that prompt's own mean.
    """

    ranks = 1

    def __init__(
        self, world: World, table: Table, objective: Objective, optimizer: OptimizerConfig, config: LearnerConfig
    ) -> None:
        self.table = table
        self.policy = TablePolicy(torch.tensor(table.logits_PV, device=world.device))
        super().__init__(world, self.policy, objective, optimizer, config)
        if objective.has_reference:
            self.reference = TablePolicy(torch.tensor(table.logits_PV, device=world.device))

    def _prepare(self) -> None:
        """A table is called as it is; no FLOPs are counted."""
        self.flops = None

    def evaluate(self) -> Metrics:
        """Expected accuracy of the table as it is now, see `Table.expected`."""
        return self.table.expected(self.policy.logits.detach().cpu().numpy())

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: SamplingConfig, key: str
    ) -> Iterator[Finished]:
        """See `RolloutEngine.generate`; all at once, one token each, which ends its completion.

        The noise of a prompt's samples is one sequence, of which sample i takes the i-th number.
        """
        device = self.world.device
        rows = torch.tensor([prompt.token_ids[0] for prompt in prompts], device=device)
        logits_RV = self.policy.logits.index_select(0, rows.repeat_interleave(samples_per_prompt))
        noise_R = np.concatenate([sampling_noise(key, prompt.uid, 0, samples_per_prompt) for prompt in prompts])
        tokens_R, logprobs_R = sample_tokens(logits_RV, torch.from_numpy(noise_R).to(device), sampling)
        drawn = iter(zip(tokens_R.tolist(), logprobs_R.tolist(), strict=True))
        yield {
            place: [_completion(prompt, index, *next(drawn)) for index in range(samples_per_prompt)]
            for place, prompt in enumerate(prompts)
        }

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """It generates with the table that it trains."""

    def rest(self) -> None:
        """It holds the table alone."""

    def close(self) -> None:
        pass

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        yield "logits", self.policy.logits.detach()

    def save(self, folder: Path) -> None:
        state.write_tensors(self._tensors(), folder, alone=True)

    def load(self, folder: Path) -> None:
        state.read_tensors(self._tensors(), folder, alone=True)

    def _tensors(self) -> dict[str, Tensor]:
        return tensors_of(self.policy.logits.detach())

    def _own_micro_batches(self, sequences: Sequence[TokenSequence]) -> Iterator[MicroBatch]:
        """All of them as one micro-batch, whose token m is the prompt of completion m."""
        nothing = torch.empty(0, dtype=torch.int64)
        if not sequences:
            return
        rows_M = torch.tensor([sequence.prompt_ids[0] for sequence in sequences], device=self.world.device)
        yield MicroBatch(
            token_ids_M=rows_M,
            positions_M=torch.zeros_like(rows_M),
            layout=Layout((), nothing),
            sources_N=torch.arange(len(sequences), device=self.world.device),
            targets_N=torch.tensor([sequence.completion_ids[0] for sequence in sequences], device=self.world.device),
            order=list(range(len(sequences))),
            completion_lengths=[1] * len(sequences),
            row_lengths=[2] * len(sequences),
        )

    def _optimizer_step(self, lr: float) -> float:
        logits = self.policy.logits
        norm = torch.nn.utils.clip_grad_norm_([logits], self.optimizer_config.max_grad_norm).item()
        assert logits.grad is not None
        with torch.no_grad():
            logits.sub_(logits.grad, alpha=lr)
        logits.grad = None
        return norm


def tensors_of(logits_PV: Tensor) -> dict[str, Tensor]:
    """The table by its name in a checkpoint, as a view: reading into it fills it."""
    return {"weights.logits": logits_PV}


def _completion(prompt: Prompt, index: int, token: int, logprob: float) -> Completion:
    return Completion(prompt.uid, index, (token,), (logprob,), Finish.STOP, f"Answer: {token}")
