"""Groups into packed micro-batches under a token budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo_cli.learner.packed_attention import Layout


@dataclass(frozen=True)
class TokenSequence:
    """One prompt with its completion, as the learner reads it. Equal prompts of a micro-batch are read once."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class MicroBatch:
    """`token_ids_M` [M] int64 and their `positions_M`: each prompt once, then its completions, see `packed_attention`.

    The completion tokens, laid end to end in the order of `order` (places in the list that was split), are the N of all
    [N] tensors: `targets_N` are their ids, `sources_N` name the packed token before each, whose hidden state predicts
    it.
    """

    token_ids_M: Tensor
    positions_M: Tensor
    layout: Layout
    sources_N: Tensor
    targets_N: Tensor
    order: list[int]
    completion_lengths: list[int]


def split_by_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in groups of similar length whose padded size, rows x longest, stays within `budget` tokens; a single
    longer sequence makes a group of its own. Longest first, so that memory peaks at the start.

    >>> split_by_budget([2, 9, 3, 8], budget=18)
    [[1, 3], [2, 0]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def micro_batches(sequences: Sequence[TokenSequence], budget: int, device: torch.device) -> Iterator[MicroBatch]:
    for group in split_by_budget([sequence.length for sequence in sequences], budget):
        yield pack([sequences[index] for index in group], group, device)


def pack(sequences: Sequence[TokenSequence], order: list[int], device: torch.device) -> MicroBatch:
    """One micro-batch of all `sequences`, which must not be empty."""
    width = max(sequence.length for sequence in sequences)
    token_ids: list[int] = []
    positions: list[int] = []
    scatter: list[int] = []
    sources: list[int] = []
    gather: list[list[int]] = []
    prompt_start: dict[tuple[int, ...], int] = {}
    for row, sequence in enumerate(sequences):
        prompt_length = len(sequence.prompt_ids)
        if sequence.prompt_ids not in prompt_start:
            prompt_start[sequence.prompt_ids] = len(token_ids)
            token_ids += sequence.prompt_ids
            positions += range(prompt_length)
            scatter += range(row * width, row * width + prompt_length)
        start, end = len(token_ids), len(token_ids) + len(sequence.completion_ids)
        token_ids += sequence.completion_ids
        positions += range(prompt_length, sequence.length)
        scatter += range(row * width + prompt_length, row * width + sequence.length)
        prompt = range(prompt_start[sequence.prompt_ids], prompt_start[sequence.prompt_ids] + prompt_length)
        gather.append([*prompt, *range(start, end), *[0] * (width - sequence.length)])
        sources += [prompt[-1], *range(start, end - 1)]
    return MicroBatch(
        token_ids_M=torch.tensor(token_ids, device=device),
        positions_M=torch.tensor(positions, device=device),
        layout=Layout(torch.tensor(gather, device=device), torch.tensor(scatter, device=device)),
        sources_N=torch.tensor(sources, device=device),
        targets_N=torch.tensor([token for s in sequences for token in s.completion_ids], device=device),
        order=order,
        completion_lengths=[len(sequence.completion_ids) for sequence in sequences],
    )
