"""Sequences into right-padded micro-batches under a token budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_PADDING = 0.2  # of a row: padding costs as much as tokens, while a further micro-batch costs little


@dataclass(frozen=True)
class TokenSequence:
    """One prompt with its completion, as the learner reads it."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class MicroBatch:
    """`token_ids_BS` [B, S] int64, padded on the right, which causal attention never sees, so no mask is needed.

    The completion tokens of its rows, laid end to end, are the N of all [N] tensors: their hidden states stand at
    (`rows_N`, `columns_N`), one column before the token that they predict, `targets_N`. `order` names the rows'
    places in the list that was split.
    """

    token_ids_BS: Tensor
    rows_N: Tensor
    columns_N: Tensor
    targets_N: Tensor
    order: list[int]
    completion_lengths: list[int]


def split_by_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in groups of similar length (MOST_PADDING) whose padded size, rows x longest, stays within `budget`
    tokens; a single longer sequence makes a group of its own. Longest first, so that memory peaks at the start.

    >>> split_by_budget([2, 9, 2, 8], budget=18)
    [[1, 3], [0, 2]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[groups[-1][0]] if groups else 0
        fits = groups and longest * (len(groups[-1]) + 1) <= budget
        if fits and lengths[index] >= (1 - MOST_PADDING) * longest:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def micro_batches(sequences: Sequence[TokenSequence], budget: int, device: torch.device) -> Iterator[MicroBatch]:
    for group in split_by_budget([sequence.length for sequence in sequences], budget):
        yield _pad([sequences[index] for index in group], group, device)


def _pad(sequences: list[TokenSequence], order: list[int], device: torch.device) -> MicroBatch:
    width = max(sequence.length for sequence in sequences)
    token_ids = [[*s.prompt_ids, *s.completion_ids] + [0] * (width - s.length) for s in sequences]
    places = [(row, column) for row, s in enumerate(sequences) for column in range(len(s.prompt_ids) - 1, s.length - 1)]
    rows_N, columns_N = torch.tensor(places, device=device).T
    token_ids_BS = torch.tensor(token_ids, device=device)
    return MicroBatch(
        token_ids_BS=token_ids_BS,
        rows_N=rows_N,
        columns_N=columns_N,
        targets_N=token_ids_BS[rows_N, columns_N + 1],
        order=order,
        completion_lengths=[len(s.completion_ids) for s in sequences],
    )
