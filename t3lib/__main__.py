"""Run the command `t3` as `python -m t3lib`."""

import sys

from t3lib.cli import main

sys.exit(main())
