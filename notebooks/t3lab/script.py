"""The command line that the scripts beside the results share (results/*/*.py)."""

import argparse
import os
from collections.abc import Callable

import torch

from t3lab.grid.runner import narrow_vectors
from t3lib.cli import Options, Parser, add_options
from t3lib.core.errors import UserError


def run(
    make: Callable[[argparse.Namespace], object],
    description: str,
    options: Options,
    *,
    as_jobs: bool = True,
) -> None:
    """Call make with the arguments of the command line; a UserError is one line and exit code 2.

    as_jobs: False lets torch use all threads and vectors. By default it computes as in the jobs of
    `t3 reproduce`, so that the numbers are the same.
    """
    plain = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=description, formatter_class=plain)
    add_options(parser, options)
    arguments = parser.parse_args()
    if as_jobs:
        os.environ.update(narrow_vectors())
        torch.set_num_threads(1)
    try:
        make(arguments)
    except UserError as error:
        parser.error(str(error))
