"""Memory and time of log-probs and their gradient for 4,096 tokens and a vocabulary of 50,000: the plain way, which
keeps all logits, beside the chunks that the learner uses.

    python scripts/bench/head.py [--tokens 4096] [--vocabulary 50000] [--hidden 512] [--chunk 256]

Each way runs in a process of its own; memory is what the process takes beyond its inputs.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from dapo_cli.algorithm.logprobs import fused_loss
from dapo_cli.algorithm.objective import Clip, token_losses, token_mean_loss

REPEATS = 3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--only", choices=("plain", "chunks"), help="one way, in this process; prints JSON")
    return parser.parse_args()


def run(args: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    hidden = torch.randn(args.tokens, args.hidden, requires_grad=True)
    weight = (torch.randn(args.vocabulary, args.hidden) / args.hidden**0.5).requires_grad_()
    targets = torch.randint(0, args.vocabulary, (args.tokens,))
    old, advantages = torch.full((args.tokens,), -11.0), torch.randn(args.tokens)

    def loss_of(logprobs: torch.Tensor, chunk: slice) -> torch.Tensor:
        return token_mean_loss(token_losses(logprobs, old[chunk], advantages[chunk], Clip(0.2, 0.28)), args.tokens)

    def plain() -> torch.Tensor:
        logprobs = torch.log_softmax(hidden @ weight.T, dim=-1).gather(-1, targets[:, None]).squeeze(-1)
        return loss_of(logprobs, slice(None))

    def chunks() -> torch.Tensor:
        return fused_loss(hidden, weight, targets, 1.0, args.chunk, loss_of)[0]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(REPEATS):
        hidden.grad = weight.grad = None
        start = time.perf_counter()
        {"plain": plain, "chunks": chunks}[args.only]().backward()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": min(seconds),
        "mib": (peak - before) / 1024,
        "grad_hidden": hidden.grad.norm().item(),
        "grad_weight": weight.grad.norm().item(),
    }


def main() -> None:
    args = parse()
    if args.only:
        print(json.dumps(run(args)))
        return
    results = {}
    for way in ("plain", "chunks"):
        command = [sys.executable, __file__, *sys.argv[1:], "--only", way]
        results[way] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"{way:7}", "  ".join(f"{name} {value:,.6g}" for name, value in results[way].items()))
    ratios = {name: results["chunks"][name] / results["plain"][name] for name in ("seconds", "mib")}
    print("chunks : plain", "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
