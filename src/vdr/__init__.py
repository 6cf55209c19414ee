"""`vdr`: the training signals of a vision-language teacher and the compression of page indices, reproduced at three sizes."""

from vdr import instructions

__version__ = "0.1.0"

# Before anything here can load torch or NumPy.
instructions.apply()
