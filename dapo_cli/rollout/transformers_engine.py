"""The embedded engine: batched sampling on a transformers model, one decode loop.

`model.generate` draws from the global random state, so that a completion depends on who shares its batch, and keeps
finished rows in the batch until the longest is done. This loop does neither.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dapo_cli.config.schema import SamplingConfig
from dapo_cli.errors import Diverged
from dapo_cli.protocols import Finished
from dapo_cli.rollout.completions import end_of_sequence_ids, make_completions
from dapo_cli.types import Completion, Prompt

# Finished rows are dropped once they are this share of the batch: dropping copies the cache.
DROP_SHARE = 0.125


def sampling_noise(key: str, prompt_uid: str, sample_index: int, count: int) -> np.ndarray:
    """Uniform numbers in [0, 1), [count] float32, a pure function of the arguments; a longer array starts alike."""
    digest = hashlib.sha256(f"{key}/{prompt_uid}/{sample_index}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return generator.random(count, dtype=np.float32)


def cut_distribution(logprobs_RV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Log-probs after keeping the `top_k` most likely tokens (0 keeps all) and then the smallest set whose share
    reaches `top_p`, renormalised; [R, V]."""
    if top_k:
        kept = logprobs_RV.topk(min(top_k, logprobs_RV.shape[-1]), dim=-1).values[:, -1:]
        logprobs_RV = logprobs_RV.masked_fill(logprobs_RV < kept, -torch.inf).log_softmax(-1)
    if top_p < 1:
        ordered, order = logprobs_RV.sort(dim=-1, descending=True, stable=True)
        share_before = ordered.exp().cumsum(-1) - ordered.exp()
        ordered = ordered.masked_fill(share_before >= top_p, -torch.inf)
        logprobs_RV = torch.empty_like(logprobs_RV).scatter_(-1, order, ordered).log_softmax(-1)
    return logprobs_RV


def sample_tokens(logits_RV: Tensor, noise_R: Tensor, sampling: SamplingConfig) -> tuple[Tensor, Tensor]:
    """One token for each row by inverting the cumulative distribution at its uniform number; greedy at temperature 0.

    Returns token ids [R] int64 and their log-probs [R] float32 under the temperature and the cut (greedy: at
    temperature 1). Float32 cannot reach tokens whose probability is below about 1e-7.
    """
    if sampling.temperature == 0:
        logprobs_RV = logits_RV.float().log_softmax(-1)
        tokens_R = logprobs_RV.argmax(-1)
    else:
        logprobs_RV = (logits_RV.float() / sampling.temperature).log_softmax(-1)
        logprobs_RV = cut_distribution(logprobs_RV, sampling.top_p, sampling.top_k)
        cumulative_RV = logprobs_RV.exp().cumsum(-1)
        total_R = cumulative_RV[:, -1]
        # Rounding must not push the threshold to the total, behind which only impossible tokens lie.
        threshold_R = torch.minimum(noise_R * total_R, torch.nextafter(total_R, torch.zeros_like(total_R)))
        tokens_R = torch.searchsorted(cumulative_RV, threshold_R[:, None], right=True).squeeze(-1)
        tokens_R.clamp_(max=logprobs_RV.shape[-1] - 1)  # only not-a-number, which is told below, lands behind the end
    token_logprobs_R = logprobs_RV.gather(-1, tokens_R[:, None]).squeeze(-1)
    if token_logprobs_R.isnan().any():
        raise Diverged("the model's logits are not finite")
    return tokens_R, token_logprobs_R


class TransformersEngine:
    """Generates with `model`, which may be the learner's own module: then no weights are copied."""

    ranks = 1

    def __init__(self, model, tokenizer, max_batch_completions: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_batch_completions = max_batch_completions
        self.eos_ids = end_of_sequence_ids(model.generation_config, tokenizer)

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: SamplingConfig, key: str
    ) -> Iterator[Finished]:
        """See `RolloutEngine.generate`; batch by batch. The noise is keyed on (`key`, prompt uid, sample index), so a
        completion depends on its batch only through float rounding."""
        self.model.eval()
        prompts_per_batch = max(1, self.max_batch_completions // samples_per_prompt)
        for start in range(0, len(prompts), prompts_per_batch):
            batch = prompts[start : start + prompts_per_batch]
            yield dict(enumerate(self._generate_batch(batch, samples_per_prompt, sampling, key), start))

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy each weight that is not already this model's own."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                if own[name].data_ptr() != weight.data_ptr():
                    own[name].copy_(weight)

    def rest(self) -> None:
        """What it holds between rounds is the model alone."""

    def close(self) -> None:
        pass

    @torch.inference_mode()
    def _generate_batch(
        self, prompts: Sequence[Prompt], samples: int, sampling: SamplingConfig, key: str
    ) -> list[list[Completion]]:
        device = self.model.device
        num_rows = len(prompts) * samples
        noise_RT = torch.from_numpy(
            np.stack([sampling_noise(key, p.uid, i, sampling.max_tokens) for p in prompts for i in range(samples)])
        ).to(device)
        token_ids_RT = torch.zeros(num_rows, sampling.max_tokens, dtype=torch.int64, device=device)
        logprobs_RT = torch.zeros(num_rows, sampling.max_tokens, device=device)
        lengths_R = torch.full((num_rows,), sampling.max_tokens, device=device)
        eos_ids = torch.tensor(self.eos_ids, device=device)

        state = _Decoding.prefill(self.model, prompts, samples)
        rows = torch.arange(num_rows, device=device)  # which completion each row of the batch is
        alive = torch.ones(num_rows, dtype=torch.bool, device=device)
        for t in range(sampling.max_tokens):
            tokens_R, token_logprobs_R = sample_tokens(state.logits_RV, noise_RT[rows, t], sampling)
            token_ids_RT[rows, t] = tokens_R
            logprobs_RT[rows, t] = token_logprobs_R
            ended = alive & torch.isin(tokens_R, eos_ids)
            lengths_R[rows[ended]] = t + 1
            alive &= ~ended
            num_alive = int(alive.sum())
            if num_alive == 0 or t + 1 == sampling.max_tokens:
                break
            if num_alive <= len(rows) * (1 - DROP_SHARE):
                stay = alive.nonzero().squeeze(-1)
                state.select(stay)
                rows, tokens_R, alive = rows[stay], tokens_R[stay], alive[stay]
            state.advance(self.model, tokens_R)
        return self._completions(prompts, samples, token_ids_RT, logprobs_RT, lengths_R)

    def _completions(self, prompts, samples, token_ids_RT, logprobs_RT, lengths_R) -> list[list[Completion]]:
        lengths = lengths_R.tolist()
        token_ids = [row[:length] for row, length in zip(token_ids_RT.tolist(), lengths, strict=True)]
        logprobs = [row[:length] for row, length in zip(logprobs_RT.tolist(), lengths, strict=True)]
        rows = [slice(start, start + samples) for start in range(0, len(lengths), samples)]
        return [
            make_completions(prompt, token_ids[own], logprobs[own], self.tokenizer, self.eos_ids)
            for prompt, own in zip(prompts, rows, strict=True)
        ]


class _Decoding:
    """The batch being decoded: cache, mask and position of each row, and the logits of its next token [R, V]."""

    def __init__(self, cache, mask_RS: Tensor | None, position_R: Tensor, logits_RV: Tensor) -> None:
        self.cache = cache
        self.mask_RS = mask_RS  # 0 where a shorter prompt is padded on the left; None where nothing is padded
        self.position_R = position_R
        self.logits_RV = logits_RV

    @classmethod
    def prefill(cls, model, prompts: Sequence[Prompt], samples: int) -> "_Decoding":
        """Each prompt is read once and its cache repeated for its samples."""
        device = model.device
        lengths_P = torch.tensor([len(prompt.token_ids) for prompt in prompts], device=device)
        width = int(lengths_P.max())
        token_ids_PS = torch.tensor(
            [[0] * (width - len(p.token_ids)) + list(p.token_ids) for p in prompts], device=device
        )
        mask_PS = (torch.arange(width, device=device) >= width - lengths_P[:, None]).long()
        padded = bool((lengths_P < width).any())
        from dapo_cli.rollout.kv_cache import roomy_cache  # transformers takes seconds to import

        cache = roomy_cache(model.config)
        logits_PV = model(
            input_ids=token_ids_PS,
            attention_mask=mask_PS if padded else None,
            position_ids=(mask_PS.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.batch_repeat_interleave(samples)
        return cls(
            cache,
            mask_PS.repeat_interleave(samples, dim=0) if padded else None,
            lengths_P.repeat_interleave(samples),
            logits_PV.repeat_interleave(samples, dim=0),
        )

    def advance(self, model, tokens_R: Tensor) -> None:
        """Feed one token a row."""
        if self.mask_RS is not None:
            self.mask_RS = torch.cat([self.mask_RS, self.mask_RS.new_ones(len(tokens_R), 1)], dim=1)
        self.logits_RV = model(
            input_ids=tokens_R[:, None],
            attention_mask=self.mask_RS,
            position_ids=self.position_R[:, None],
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.position_R = self.position_R + 1

    def select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask_RS = None if self.mask_RS is None else self.mask_RS[rows]
        self.position_R = self.position_R[rows]
