"""How token losses become the loss of a mini-batch: a weight for each token, relative to the token mean of Eq. 12."""

from collections import Counter
from collections.abc import Sequence

from dapo_cli.config.schema import Aggregation


def aggregation_weights(
    lengths: Sequence[int], prompts: Sequence[int], aggregation: Aggregation, max_tokens: int
) -> list[float]:
    """The weight of every token of each completion in the loss of a mini-batch: sum(weight x loss) / N.

    `lengths` are the tokens of each completion in the loss, at least 1; equal `prompts` mark those of one prompt; N is
    their total, S the number of completions and P that of prompts. All are of the whole mini-batch, so that the loss
    depends on no split over ranks and micro-batches, and a completion that was filtered counts nowhere.

    * token_mean: 1 (DAPO, Eq. 12).
    * prompt_mean: the token mean of each prompt, then their mean (ScaleRL): N / (P x tokens of the prompt).
    * sequence_mean: the token mean of each completion, then their mean (GRPO, GSPO): N / (S x length).
    * sequence_sum: the token mean of each completion, their sum for each prompt, then the mean over prompts (DCPO's
      only-token-mean loss): N / (P x length).
    * constant: the sum of all tokens over S x max_tokens (Dr. GRPO): N / (S x max_tokens).

    >>> aggregation_weights([2, 6], [0, 0], Aggregation.sequence_mean, 10)
    [2.0, 0.6666666666666666]
    """
    total, num_sequences, num_prompts = sum(lengths), len(lengths), len(set(prompts))
    tokens_of_prompt: Counter[int] = Counter()
    for prompt, length in zip(prompts, lengths, strict=True):
        tokens_of_prompt[prompt] += length
    match aggregation:
        case Aggregation.token_mean:
            divisors = [total] * num_sequences
        case Aggregation.prompt_mean:
            divisors = [num_prompts * tokens_of_prompt[prompt] for prompt in prompts]
        case Aggregation.sequence_mean:
            divisors = [num_sequences * length for length in lengths]
        case Aggregation.sequence_sum:
            divisors = [num_prompts * length for length in lengths]
        case Aggregation.constant:
            divisors = [num_sequences * max_tokens] * num_sequences
    return [total / divisor for divisor in divisors]
