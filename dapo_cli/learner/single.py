"""The single-process learner: the oracle that every distributed learner is compared with."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dapo_cli.algorithm.advantage import group_advantages
from dapo_cli.algorithm.logprobs import chunked_logprobs, fused_loss
from dapo_cli.algorithm.objective import Clip, UpdateStats, token_losses, token_mean_loss
from dapo_cli.config.schema import LearnerConfig, OptimizerConfig
from dapo_cli.errors import Diverged, UserError
from dapo_cli.learner import packed_attention
from dapo_cli.learner.micro_batches import MicroBatch, TokenSequence, micro_batches, pack
from dapo_cli.learner.optim import learning_rate
from dapo_cli.types import Group, ScoredGroup

# A mask that is four-dimensional already is passed on as it is; packed attention needs none.
NO_MASK = torch.zeros(1, 1, 1, 1)


@dataclass(frozen=True)
class Objective:
    """What the recipe says about the loss; `temperature` is the sampling temperature, under which log-probs are
    taken."""

    clip: Clip
    temperature: float
    filter_truncated: bool


class SingleLearner:
    """AdamW on one device.

    The model stays in evaluation mode throughout: dropout would make the ratio of unchanged weights differ from 1.
    """

    def __init__(
        self, model, tokenizer, objective: Objective, optimizer: OptimizerConfig, config: LearnerConfig
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.objective = objective
        self.optimizer_config = optimizer
        self.config = config
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._enable_packing()

    def score(self, groups: Sequence[Group], step: int) -> tuple[list[ScoredGroup], float | None]:
        """pi_old of each group under the current weights, and the mean entropy per completion token, in nats (None
        where there is no token)."""
        sequences = [_sequence(group, i) for group in groups for i in range(len(group.rollouts))]
        scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(sequences)
        entropy_sum, tokens = 0.0, 0
        for batch in micro_batches(sequences, self.config.micro_batch_tokens, self.model.device):
            logprobs_N, entropy_N = self._logprobs(batch)
            for index, values in zip(batch.order, logprobs_N.cpu().split(batch.completion_lengths), strict=True):
                scores[index] = values.numpy().copy()
            entropy_sum += entropy_N.double().sum().item()
            tokens += entropy_N.numel()
        per_group = iter(scores)
        scored = [ScoredGroup(group, tuple(next(per_group) for _ in group.rollouts), step) for group in groups]
        return scored, entropy_sum / tokens if tokens else None

    def update(self, groups: Sequence[ScoredGroup], step: int) -> UpdateStats:
        """One optimizer update on one mini-batch, Eq. 8, 10, 12.

        Truncated completions leave numerator and denominator where the recipe filters them. A mini-batch without a loss
        token changes nothing and counts no update.
        """
        sequences, old_logprobs, advantages = self._loss_sequences(groups)
        num_loss_tokens = sum(len(sequence.completion_ids) for sequence in sequences)
        stats = UpdateStats()
        if not num_loss_tokens:
            return stats
        clip = self.objective.clip
        for batch in micro_batches(sequences, self.config.micro_batch_tokens, self.model.device):
            device = self.model.device
            old_logprobs_N = torch.from_numpy(np.concatenate([old_logprobs[i] for i in batch.order])).to(device)
            advantages_N = torch.repeat_interleave(
                torch.tensor([advantages[i] for i in batch.order], device=device),
                torch.tensor(batch.completion_lengths, device=device),
            )

            def share(logprobs_C: Tensor, chunk: slice, old=old_logprobs_N, advantages=advantages_N) -> Tensor:
                return token_mean_loss(token_losses(logprobs_C, old[chunk], advantages[chunk], clip), num_loss_tokens)

            loss, logprobs_N = fused_loss(*self._head_inputs(batch), share)
            loss.backward()
            stats.loss += loss.item()
            stats.add_tokens(logprobs_N, old_logprobs_N, advantages_N, clip)
        stats.grad_norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.optimizer_config.max_grad_norm
        ).item()
        if not math.isfinite(stats.grad_norm):
            raise Diverged(f"the gradient of step {step} is not finite")
        stats.updates = 1
        for parameter_group in self.optimizer.param_groups:
            parameter_group["lr"] = learning_rate(self.optimizer_config, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return stats

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        return self.model.named_parameters()

    def save(self, folder: Path) -> None:
        """model.safetensors (tied weights once) and optimizer.pt."""
        save_file({name: weight.detach() for name, weight in self.named_weights()}, folder / "model.safetensors")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        load_weights(self.model, folder)
        state = torch.load(folder / "optimizer.pt", weights_only=True)
        # The recipe says how to update, not the checkpoint: an allowed change of it must take effect.
        state["param_groups"] = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(state)

    def export(self, folder: Path) -> None:
        """A Hugging Face folder of model and tokenizer."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def _logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs under the sampling temperature and entropy of the micro-batch's completion tokens, [N] float32."""
        return chunked_logprobs(*self._head_inputs(batch))

    def _head_inputs(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor, float, int]:
        """What the functions of `logprobs` take: hidden states [N, H] before the completion tokens, head, targets."""
        hidden_MH = self.model.base_model(
            input_ids=batch.token_ids_M[None],
            position_ids=batch.positions_M[None],
            attention_mask=NO_MASK.to(self.model.device),
            layout=batch.layout,
            use_cache=False,
        ).last_hidden_state[0]
        return (
            hidden_MH.index_select(0, batch.sources_N),
            self.model.get_output_embeddings().weight,
            batch.targets_N,
            self.objective.temperature,
            self.config.logits_chunk_tokens,
        )

    def _enable_packing(self) -> None:
        """Switch to packed attention, and check that two completions which share a prompt get the log-probs that the
        plain model gives them.

        Not so where the head has a bias, a cap or a scale (Gemma 2, Cohere, Granite, Phi), or where other layers than
        attention mix tokens: training would silently be of another policy than the one that samples. Raises UserError.
        """
        prompt, completions = (1, 2, 3), [(4, 5, 6), (7,)]
        sequences = [TokenSequence(prompt, completion) for completion in completions]
        refusal = f"a {self.model.config.model_type} model cannot be trained here"
        expected = []
        with torch.no_grad():
            for completion in completions:
                token_ids = torch.tensor([prompt + completion], device=self.model.device)
                log_p = (self.model(token_ids).logits[0].float() / self.objective.temperature).log_softmax(-1)
                expected.append(log_p[len(prompt) - 1 : -1].gather(-1, token_ids[0, len(prompt) :, None]).squeeze(-1))
            try:
                self.model.set_attn_implementation(packed_attention.NAME)
                logprobs, _ = self._logprobs(pack(sequences, [0, 1], self.model.device))
            except (TypeError, ValueError, RuntimeError) as error:  # no such attention, or layers that take no layout
                raise UserError(f"{refusal}: {str(error).splitlines()[0]}") from error
        difference = (logprobs - torch.cat(expected)).abs().max().item()
        if not difference < 1e-3:
            raise UserError(
                f"{refusal}: in packed sequences, log-probs from its hidden states times its output embedding differ "
                f"from the model's own by {difference:.2g}"
            )

    def _loss_sequences(
        self, groups: Sequence[ScoredGroup]
    ) -> tuple[list[TokenSequence], list[np.ndarray], list[float]]:
        """The completions that enter the loss, with pi_old and advantage of each. A filtered completion still counts in
        its group's mean and deviation."""
        sequences, old_logprobs, advantages = [], [], []
        for scored in groups:
            group_advantage = group_advantages(scored.group.rewards)
            for i, rollout in enumerate(scored.group.rollouts):
                if self.objective.filter_truncated and rollout.completion.truncated:
                    continue
                sequences.append(_sequence(scored.group, i))
                old_logprobs.append(scored.old_logprobs[i])
                advantages.append(group_advantage[i])
        return sequences, old_logprobs, advantages


def load_weights(model: torch.nn.Module, folder: Path) -> None:
    """Take the weights that a learner saved into `folder`."""
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weights[name])


def _sequence(group: Group, index: int) -> TokenSequence:
    return TokenSequence(group.prompt.token_ids, group.rollouts[index].completion.token_ids)
