"""`python -m t3lib` is the command `t3`."""

import sys

from t3lib.lab.cli import main

sys.exit(main())
