"""Pre-train the shipped tiny base model: `python scripts/build_tiny_model.py OUT_DIR [--seed 0] [--steps 2500]`.

A 0.9M-parameter Llama over characters learns to write worked solutions of multi-step integer arithmetic, one line a
step:

    6+9-8=?
    6+9=15
    15-8=7
    Answer: 7

The solutions it learns from are flawed on purpose (see `flawed_solution`), so that the base model knows the arithmetic
and yet is right on only 30-50 % of held-out prompts: what is left for reinforcement learning is to sharpen.
"""

import argparse
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dapo_cli.data.arithmetic import Problem, is_held_out, random_problem

CHARACTERS = "0123456789+-=?: \nAnswer"
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
MIN_TERMS, MAX_TERMS = 2, 7
CONTEXT = 160

HASTY = 0.12  # before each remaining step: stop and answer with the total so far
SLIP_EASY, SLIP_CARRY = 0.03, 0.35  # a wrong result; likelier where the tens change
DITHER, DITHER_ON = 0.06, 0.80  # repeat the last line; once begun, go on repeating


def flawed_solution(problem: Problem, rng: random.Random) -> str:
    """A worked solution with the mistakes of a careless writer; a wrong total is carried through consistently."""
    total, lines = problem.terms[0], []
    for term in problem.terms[1:]:
        if lines and rng.random() < HASTY:
            break
        result = total + term
        if rng.random() < (SLIP_CARRY if result // 10 != total // 10 else SLIP_EASY):
            result = max(0, result + rng.choice((-10, -2, -1, 1, 2, 10)))
        lines.append(f"{total}{term:+d}={result}")
        total = result
        if rng.random() < DITHER:
            lines.append(lines[-1])
            while rng.random() < DITHER_ON:
                lines.append(lines[-1])
    return "\n".join([*lines, f"Answer: {total}"])


def build_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, UNKNOWN, *dict.fromkeys(CHARACTERS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=160,
            intermediate_size=432,
            num_hidden_layers=3,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def training_batch(tokenizer, rng: random.Random, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids [rows, S] and labels [rows, S] (-100 on prompt and padding)."""
    pairs = []
    while len(pairs) < rows:
        problem = random_problem(rng, MIN_TERMS, MAX_TERMS)
        if not is_held_out(problem):
            prompt = tokenizer(f"{problem.expression}=?\n")["input_ids"]
            answer = tokenizer(flawed_solution(problem, rng))["input_ids"] + [tokenizer.eos_token_id]
            pairs.append((prompt, answer[: CONTEXT - len(prompt)]))
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    token_ids = torch.full((rows, width), tokenizer.pad_token_id)
    labels = torch.full((rows, width), -100)
    for row, (prompt, answer) in enumerate(pairs):
        token_ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return token_ids, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    rng = random.Random(f"pretrain/{args.seed}")
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1, step / args.steps)))),
    )
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        token_ids, labels = training_batch(tokenizer, rng, args.rows)
        loss = model(input_ids=token_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}  loss {loss.item():.4f}  {time.perf_counter() - start:.0f} s", flush=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
