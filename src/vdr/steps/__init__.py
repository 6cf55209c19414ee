"""The study as a graph of steps: which artefact each stage makes, and from what.

Only configuration and wiring stand here; the work is done by the parts' own functions, imported when a step is built, so that plans
and help cost nothing. A step's configuration holds every setting that its result depends on, and nothing else.
"""

from vdr.steps.base import run_label
from vdr.steps.data import DataSteps
from vdr.steps.students import StudentSteps
from vdr.steps.teacher import TeacherSteps

__all__ = ["Steps", "run_label"]


class Steps(DataSteps, TeacherSteps, StudentSteps):
    """All steps of one profile. Each method returns the same step object for the same arguments."""
