"""The eras of Gymnasium that scripts target; `script_era` detects them, `compat` installs them."""

GYMNASIUM_029 = "gymnasium-0.29"
GYM_023 = "gym-0.23"
MODULES = "modules"
"""no era, only modules that `stand_ins` has"""
