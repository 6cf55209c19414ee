"""`vdr`: the training signals of a vision-language teacher and the compression of page indices, reproduced at three sizes."""

__version__ = "0.1.0"
