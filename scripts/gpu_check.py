"""The equality table of `dapo selftest` for learners that run on one device, without the command line's packages."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from transformers import LlamaConfig

from dapo_cli.config.schema import FsdpLearner, SingleLearner
from dapo_cli.distributed.world import join_world
from dapo_cli.selftest import selftest

SHAPE = LlamaConfig(
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=512,
    vocab_size=8192,
    tie_word_embeddings=True,
)


def main() -> None:
    world = join_world(with_group=True)
    print(f"one process on {world.device}: relative differences to the single learner taking each batch in one piece")
    learners = [SingleLearner(), FsdpLearner()]
    if world.device.type == "cuda" and find_spec("liger_kernel"):
        learners.append(SingleLearner(liger_kernels=True))
    rows = [row for config in learners for row in selftest(config, SHAPE, world)]
    for row in rows:
        print(
            f"{row.learner:<15}{row.sequences:>3} sequences, micro-batches of {row.micro_batch_tokens:>4} tokens: "
            f"log-probs {row.logprobs:.1e}, loss {row.loss:.1e}, gradient norm {row.grad_norm:.1e}, "
            f"weights {row.weights:.1e}  {'equal' if row.equal else 'DIFFERS'}"
        )
    sys.exit(0 if all(row.equal for row in rows) else 1)


if __name__ == "__main__":
    main()
