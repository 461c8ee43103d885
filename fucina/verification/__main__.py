"""One engine's part of ``fucina verify``, as a process: all cases, for each number of threads in the arguments.

A line of JSON for every result, ``[case, threads, digest]``.
"""

import json
import sys

from fucina import set_num_threads

from .cases import cases, digest


def main(arguments: list[str]) -> None:
    for name, compute in cases():
        for threads in map(int, arguments):
            set_num_threads(threads)
            print(json.dumps([name, threads, digest(compute())]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
