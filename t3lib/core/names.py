"""Names of TOFU that several modules share. Imports nothing."""

RETAIN_OF = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
# TOFU itself.
HUB_DATA = {
    "path": "locuslab/TOFU",
    "revision": "324592d84ae4f482ac7249b9285c2ecdb53e3a68",
}
