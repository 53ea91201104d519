"""Sequences to ranks, and there into packed micro-batches under a token budget."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo_cli.types import TokenSequence

# Attention pads a row to the longest of its block: a shorter share of that length begins a block of its own.
SIMILAR = 0.75
FILLER = TokenSequence((0,), (0,))  # what a rank without work of its own runs in step with the others


@dataclass(frozen=True)
class Layout:
    """How attention lays packed tokens out (`packed_attention`): each of `gathers_BS`, blocks of rows of similar
    length, names the packed token at each place of each row (padding: any token); `scatter_M` is, for each packed
    token, one place of all blocks' flattened rows where it stands."""

    gathers_BS: tuple[Tensor, ...]
    scatter_M: Tensor


@dataclass(frozen=True)
class MicroBatch:
    """`token_ids_M` [M] int64 and their `positions_M`: each prompt once, then its completions, see `packed_attention`.

    The completion tokens, laid end to end in the order of `order` (places in the list that was split), are the N of all
    [N] tensors: `targets_N` are their ids, `sources_N` name the packed token before each, whose hidden state predicts
    it; `row_lengths` are those of the whole sequences. Of a filler, `order` is empty.
    """

    token_ids_M: Tensor
    positions_M: Tensor
    layout: Layout
    sources_N: Tensor
    targets_N: Tensor
    order: list[int]
    completion_lengths: list[int]
    row_lengths: list[int]

    @property
    def is_filler(self) -> bool:
        return not self.order


def split_by_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in groups of similar length with at most `budget` tokens; a single longer sequence makes a group of its
    own. Longest first, so that memory peaks at the start.

    >>> split_by_budget([2, 9, 3, 8], budget=18)
    [[1, 3], [2, 0]]
    """
    groups: list[list[int]] = []
    left = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[index] > left or not groups:
            groups.append([])
            left = budget
        groups[-1].append(index)
        left -= lengths[index]
    return groups


def split_over_ranks(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, so that all get about as many tokens: the longest first, each to the rank with least.

    >>> split_over_ranks([2, 9, 3, 8], ranks=2)
    [[1, 0], [3, 2]]
    """
    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, rank = heapq.heappop(loads)
        parts[rank].append(index)
        heapq.heappush(loads, (load + lengths[index], rank))
    return parts


def micro_batches(
    sequences: Sequence[TokenSequence], budget: int, device: torch.device, rank: int = 0, ranks: int = 1
) -> Iterator[MicroBatch]:
    """This rank's share of `sequences`, which every rank holds. All ranks get the same number of micro-batches, since
    sharded models must be called in step: a rank that has fewer ends with fillers."""
    splits = []
    for part in split_over_ranks([sequence.length for sequence in sequences], ranks):
        groups = split_by_budget([sequences[index].length for index in part], budget)
        splits.append([[part[place] for place in group] for group in groups])
    for place in range(max(map(len, splits))):
        order = splits[rank][place] if place < len(splits[rank]) else []
        yield pack([sequences[index] for index in order] or [FILLER], order, device)


def pack(sequences: Sequence[TokenSequence], order: list[int], device: torch.device) -> MicroBatch:
    """One micro-batch of all `sequences`, which must not be empty."""
    token_ids: list[int] = []
    positions: list[int] = []
    scatter: list[int] = []
    sources: list[int] = []
    blocks: list[list[list[int]]] = []
    width = place = 0  # of the block at hand, and of its next row among all places
    prompt_start: dict[tuple[int, ...], int] = {}
    for sequence in sequences:
        prompt_length = len(sequence.prompt_ids)
        if not SIMILAR * width <= sequence.length <= width:
            width = sequence.length
            blocks.append([])
        if sequence.prompt_ids not in prompt_start:
            prompt_start[sequence.prompt_ids] = len(token_ids)
            token_ids += sequence.prompt_ids
            positions += range(prompt_length)
            scatter += range(place, place + prompt_length)
        start, end = len(token_ids), len(token_ids) + len(sequence.completion_ids)
        token_ids += sequence.completion_ids
        positions += range(prompt_length, sequence.length)
        scatter += range(place + prompt_length, place + sequence.length)
        place += width
        prompt = range(prompt_start[sequence.prompt_ids], prompt_start[sequence.prompt_ids] + prompt_length)
        blocks[-1].append([*prompt, *range(start, end), *[0] * (width - sequence.length)])
        sources += [prompt[-1], *range(start, end - 1)]
    return MicroBatch(
        token_ids_M=torch.tensor(token_ids, device=device),
        positions_M=torch.tensor(positions, device=device),
        layout=Layout(
            tuple(torch.tensor(block, device=device) for block in blocks), torch.tensor(scatter, device=device)
        ),
        sources_N=torch.tensor(sources, device=device),
        targets_N=torch.tensor([token for s in sequences for token in s.completion_ids], device=device),
        order=order,
        completion_lengths=[len(sequence.completion_ids) for sequence in sequences],
        row_lengths=[sequence.length for sequence in sequences],
    )
