"""Slow, obvious implementations of each member's loss: loops over completions and tokens, written from the formulas of
docs/algorithms.md with the papers' own numbers. No test itself."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_TOKENS = 80  # of the quickstart, Dr. GRPO's divisor


@dataclass(frozen=True)
class Response:
    """One completion: log-probs [T] that carry a gradient, and what is constant of its tokens, [T] each."""

    prompt: int
    logprobs: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor

    @property
    def tokens(self) -> list[tuple[Tensor, Tensor, Tensor, float]]:
        return list(zip(self.logprobs, self.old, self.ref, self.advantages.tolist(), strict=True))


def ppo(ratio: Tensor, advantage: float, low: float, high: float, dual: float | None = None) -> Tensor:
    bounded = min(max(ratio, torch.full_like(ratio, low)), torch.full_like(ratio, high))
    value = min(ratio * advantage, bounded * advantage)
    if dual is not None and advantage < 0 and ratio > dual:
        value = torch.full_like(ratio, dual * advantage)
    return value + 0 * ratio  # in the graph even where a bound has taken the ratio's place


def kl(new: Tensor, ref: Tensor) -> Tensor:
    return torch.exp(ref - new) - (ref - new) - 1


def mean_of_tokens(responses: list[Response], value: Callable[..., Tensor]) -> Tensor:
    values = [value(*token) for response in responses for token in response.tokens]
    return sum(values) / len(values)


def mean_of_responses(responses: list[Response], value: Callable[..., Tensor]) -> Tensor:
    means = [sum(value(*token) for token in response.tokens) / len(response.old) for response in responses]
    return sum(means) / len(means)


def by_prompt(responses: list[Response]) -> list[list[Response]]:
    prompts = defaultdict(list)
    for response in responses:
        prompts[response.prompt].append(response)
    return list(prompts.values())


def dapo(responses: list[Response]) -> Tensor:
    return -mean_of_tokens(responses, lambda new, old, _, a: ppo(torch.exp(new - old), a, 0.8, 1.28))


def grpo(responses: list[Response]) -> Tensor:
    def value(new, old, ref, a):
        return ppo(torch.exp(new - old), a, 0.8, 1.2) - 0.04 * kl(new, ref)

    return -mean_of_responses(responses, value)


def dr_grpo(responses: list[Response]) -> Tensor:
    total = sum(ppo(torch.exp(new - old), a, 0.8, 1.2) for r in responses for new, old, _, a in r.tokens)
    return -total / (len(responses) * MAX_TOKENS)


def gspo(responses: list[Response]) -> Tensor:
    """With the whole ratio of the completion in the graph, and one advantage for it."""
    values = []
    for response in responses:
        s = torch.exp(sum(new - old for new, old, _, _ in response.tokens) / len(response.old))
        values.append(ppo(s, response.advantages[0].item(), 1 - 3e-4, 1 + 4e-4))
    return -sum(values) / len(values)


def capped(new: Tensor, old: Tensor, _: Tensor, a: float) -> Tensor:
    return min(torch.exp(new - old), torch.full_like(new, 4.0)).detach() * a * new


def cispo(responses: list[Response]) -> Tensor:
    return -mean_of_tokens(responses, capped)


def scalerl(responses: list[Response]) -> Tensor:
    means = [mean_of_tokens(group, capped) for group in by_prompt(responses)]
    return -sum(means) / len(means)


def dcpo(responses: list[Response]) -> Tensor:
    def value(new, old, _, a):
        q = torch.exp(old)
        low = 0.5 + 0.5 * torch.sqrt(max(1 - 4 * 0.16 / q, torch.zeros_like(q)))
        high = min(0.5 + 0.5 * torch.sqrt(1 + 4 * 0.2 / q), torch.full_like(q, 10.0))
        return ppo(torch.exp(new - old), a, low.item(), high.item(), dual=10.0)

    sums = [sum(mean_of_tokens([response], value) for response in group) for group in by_prompt(responses)]
    return -sum(sums) / len(sums)


def aspo(responses: list[Response]) -> Tensor:
    def value(new, old, ref, a):
        p, p_old = torch.exp(new), torch.exp(old)
        if a < 0:
            surrogate = ppo(p / p_old, a, 0.8, 1.2, dual=3.0)
        elif p / p_old > 1.2:
            surrogate = torch.zeros_like(p)
        else:
            flipped = p_old * p / (p * p).detach()
            surrogate = a * (flipped if flipped <= 3 else 3 * p / p.detach())
        return surrogate - 0.001 * kl(new, ref)

    return -mean_of_tokens(responses, value)


ORACLES = {
    "dapo": dapo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "cispo": cispo,
    "dcpo": dcpo,
    "aspo": aspo,
    "scalerl": scalerl,
}
