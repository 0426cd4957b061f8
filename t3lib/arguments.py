"""Command-line parsing as every command of this project does it."""

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong argument is one line, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)
