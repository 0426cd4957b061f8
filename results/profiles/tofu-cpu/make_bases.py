"""Train the base models that profile tofu-cpu is given: a Llama of 4.5M parameters on TOFU's text.

    python results/profiles/tofu-cpu/make_bases.py
    python results/profiles/tofu-cpu/make_bases.py full retain90

They lie in .t3cache/given/tofu-cpu, 18 MB each. Each takes 20 to 37 CPU-minutes, and there are
nine. A killed training goes on from its last whole epoch. Two processors give different weights
(results/pages/order.md), so the committed runs name the base that they are of.
"""

from t3lab import make_bases

if __name__ == "__main__":
    make_bases.main("tofu-cpu", __doc__)
