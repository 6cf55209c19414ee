"""Imported once by the fork server: all that a training run imports."""

# ruff: noqa: F401, E402

from vdr.children import die_with_parent

die_with_parent()  # before the imports, which take seconds: a server whose parent was stopped must not go on to serve

import vdr.cli
import vdr.corpus.access
import vdr.evaluation.encode
import vdr.evaluation.evaluate
import vdr.mining
import vdr.pipeline
import vdr.supervision
import vdr.teacher.attention
import vdr.teacher.descriptions
import vdr.teacher.queue
import vdr.training.loop

__all__: list[str] = []
