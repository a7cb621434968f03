"""The eras of Gymnasium that scripts are of; `script_era` finds them, `compat` brings what they expect."""

GYMNASIUM_029 = "gymnasium-0.29"
GYM_023 = "gym-0.23"
MODULES = "modules"
"""no era, but modules that `stand_ins` has"""
