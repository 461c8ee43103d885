"""What a generated token costs outside of its program: Python and the way into the kernels and back.

``token_profile.py MODEL.gguf [-t THREADS] [-n TOKENS] [-r ROUNDS]`` generates greedily, op for op what ``fucina run`` does,
and prints the medians over all rounds of the time of a token and of what is not spent in the replay of recorded steps.
"""

import argparse
import statistics
import sys
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fucina import llm, set_num_threads  # noqa: E402
from fucina.ops import program  # noqa: E402

PROMPT = [1, 2, 3]


class Replays:
    """Stands for the kernel that replays programs and adds up its time."""

    def __init__(self, replay):
        self.seconds, self._replay = 0.0, replay

    def __call__(self, *args) -> None:
        started = perf_counter()
        self._replay(*args)
        self.seconds += perf_counter() - started


def profile(path, tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each round's mean token: all of it, and without the replay."""
    kernel = program.kernel
    replays = Replays(kernel("program").replay_unchecked)
    program.kernel = lambda stem: SimpleNamespace(replay_unchecked=replays) if stem == "program" else kernel(stem)
    whole, outside = [], []
    try:
        with llm.load(path) as model:
            model.eos_ids = frozenset()
            for _ in range(rounds + 1):         # the first one records the program
                generation = model.generate_tokens(PROMPT, max_tokens=tokens + 1)
                next(generation)                # of the prompt
                replays.seconds, started = 0.0, perf_counter()
                count = sum(1 for _ in generation)
                seconds = perf_counter() - started
                whole.append(1e3 * seconds / count)
                outside.append(1e3 * (seconds - replays.seconds) / count)
    finally:
        program.kernel = kernel
    if not replays.seconds:
        raise ValueError("the model is evaluated operation by operation: there is no program")
    return whole[1:], outside[1:]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-r", "--rounds", type=int, default=12)
    args = parser.parse_args(arguments)
    if args.tokens < 1 or args.rounds < 1:
        parser.error("--tokens and --rounds must be at least 1")
    try:
        set_num_threads(args.threads)
        whole, outside = profile(args.model, args.tokens, args.rounds)
    except (OSError, ValueError) as error:
        print(f"token_profile: error: {error}", file=sys.stderr)
        return 2
    token, rest = statistics.median(whole), statistics.median(outside)
    print(f"a token: {token:.3f} ms; outside of its program: {rest:.3f} ms, {100 * rest / token:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
