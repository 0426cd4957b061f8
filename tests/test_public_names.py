"""`from t3lib import …` seen from outside, in fresh processes: the same objects in any order, all
of them on Tab.
"""

import pkgutil
import re
import subprocess
import sys

from conftest import ROOT

import t3lib

CHECK = """
import inspect, types
from t3lib import unlearn, evaluate, prompt, tilt, fit_head, load_model, extract_features
calls = (unlearn, evaluate, prompt, tilt, fit_head, load_model, extract_features)
assert all(inspect.isfunction(f) for f in calls)
import t3lib
for name in t3lib.__all__:
    value = getattr(t3lib, name)
    assert isinstance(value, types.ModuleType) == (name == "theory"), name
    assert value is getattr(t3lib, name), name
"""
EVERY_MODULE = """
import importlib, pkgutil, t3lib
for module in pkgutil.walk_packages(t3lib.__path__, "t3lib."):
    if not module.name.endswith(("__main__", ".vllm", ".vllm_rules")):  # vLLM loads these
        importlib.import_module(module.name)
"""
STAR = """
from t3lib import *
from t3lib import *
assert callable(unlearn) and callable(evaluate) and theory.GaussianMixture
"""


BEFORE = {
    "at once": "",
    "modules first": "import t3lib.tofu.fit, t3lib.tofu.evaluation",
    "attributes first": "import t3lib\nt3lib.evaluate, t3lib.unlearn",
    "every module and star": EVERY_MODULE + STAR,
    "every module where Unix is missing": (
        "import sys\nsys.modules |= dict.fromkeys(('fcntl', 'resource', 'pwd'))" + EVERY_MODULE
    ),
}
# Forks of a process that has imported what t3lib imports, and nothing of t3lib: that takes most of
# the time.
FORKS = """
import os, sys, torch, transformers, peft, pandas, scipy.stats, matplotlib.figure
assert not any(name.partition(".")[0] == "t3lib" for name in sys.modules)
for name, code in eval(sys.argv[1]).items():
    if (child := os.fork()) == 0:
        exec(code, {})
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(name)
"""


def test_public_names_are_what_they_say_in_any_order():
    codes = {
        name: "\n".join([before, CHECK, CHECK, STAR, CHECK]) for name, before in BEFORE.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", FORKS, repr(codes)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-800:]


def test_tab_shows_the_public_names_alone_before_any_was_used():
    code = (
        "import sys, t3lib; assert sorted(t3lib.__all__) == dir(t3lib); assert 'torch' not in"
        " sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_equation_list_names_what_exists():
    listed = t3lib.__doc__.split("Equations of the paper:")[1].split("\n\n")[0]
    names = re.findall(r"\b[a-z_]+(?:\.[A-Za-z]\w*)+", listed)
    assert len(names) > 12
    for name in names:
        assert pkgutil.resolve_name(f"t3lib.{name}"), name
