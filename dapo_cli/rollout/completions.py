"""What every engine makes of sampled tokens alike."""

import hashlib
from collections.abc import Sequence
from typing import Any

from dapo_cli.config.schema import SamplingConfig
from dapo_cli.protocols import Finished, RolloutEngine
from dapo_cli.types import Completion, Finish, Prompt


def complete(
    engine: RolloutEngine, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: SamplingConfig, key: str
) -> list[list[Completion]]:
    """All that `engine.generate` gives, in the order of the prompts."""
    done: Finished = {}
    for finished in engine.generate(prompts, samples_per_prompt, sampling, key):
        done |= finished
    return [done[place] for place in range(len(prompts))]


def make_completions(
    prompt: Prompt,
    token_ids: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    tokenizer: Any,
    eos_ids: Sequence[int],
) -> list[Completion]:
    """The samples of a prompt, in order. One ended by itself where its last token ends a sequence, the last token
    allowed included."""
    texts = tokenizer.batch_decode(token_ids, skip_special_tokens=True)
    return [
        Completion(
            prompt_uid=prompt.uid,
            sample_index=index,
            token_ids=tuple(ids),
            logprobs=tuple(values),
            finish=Finish.STOP if ids[-1] in eos_ids else Finish.LENGTH,
            text=text,
        )
        for index, (ids, values, text) in enumerate(zip(token_ids, logprobs, texts, strict=True))
    ]


def end_of_sequence_ids(generation_config: Any, tokenizer: Any) -> list[int]:
    """All ids that end a completion: the generation config's and the tokenizer's."""
    configured = generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return sorted({token_id for token_id in [*ids, tokenizer.eos_token_id] if token_id is not None})


def seed_of(key: str, prompt_uid: str) -> int:
    """For vLLM, the seed of a prompt's first sample; those of the others follow it."""
    digest = hashlib.sha256(f"{key}/{prompt_uid}".encode()).digest()
    return int.from_bytes(digest[:6], "little")
