"""Steps that ask the teacher, and those that make the miniature's own weights."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from vdr.errors import BadInput
from vdr.graph import Made, Step
from vdr.steps.base import StepsBase, plain, train_rows

__all__ = ["TeacherSteps"]


class TeacherSteps(StepsBase):
    """Ratings, attention maps, descriptions; backbone and teacher of the miniature."""

    @functools.cache  # noqa: B019
    def oracle(self) -> Step:
        """Ratings by the truth, for arms that say so; no teacher."""

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.mining import read_scored_pool
            from vdr.mining.files import write_table
            from vdr.supervision import oracle_ratings
            from vdr.teacher.queue import RATINGS

            corpus = load_train(made["corpus"].path)
            grades = corpus.truth()
            if grades is None:
                raise BadInput("this corpus has no known truth", where="ratings: oracle", todo="use an arm that the teacher rates")
            ratings = oracle_ratings(read_scored_pool(made["scored"].path), grades, list(corpus.rows["row_id"]), list(corpus.pages.ids))
            write_table(out / "ratings.parquet", ratings, RATINGS)
            measures.update(pairs=len(ratings), oracle=True)

        return Step("ratings", "oracle", {"oracle": True}, {"corpus": self.corpus(), "scored": self.scored()}, build)

    @functools.cache  # noqa: B019
    def ratings(self) -> Step:
        """The teacher's rating of every scored pair, asked in page order (WT App. B, J)."""
        profile = self.profile
        config = {"teacher": self._teacher(), "settings": plain(profile.teacher)}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.mining import read_scored_pool
            from vdr.teacher.engines import PagesOf, RatingEngineOf
            from vdr.teacher.queue import plan_queue, rate

            queue = profile.supervision.queue
            plan = plan_queue(read_scored_pool(made["scored"].path), train_rows(made["corpus"].path), queue.pages_per_shard)
            engine = RatingEngineOf(self._teacher_dir(), profile.teacher, profile.hardware)
            rate(plan, engine, PagesOf(made["corpus"].path), out, measures, workers=queue.workers)

        return Step("ratings", "", config, {"corpus": self.corpus(), "scored": self.scored()}, build)

    @functools.cache  # noqa: B019
    def labels(self) -> Step:
        """How incomplete the labels are: Table 17, App. O, strata; beside the truth where it is known."""

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.mining import read_scored_pool
            from vdr.teacher.labels import grades_of, label_pairs, label_statistics, write_statistics
            from vdr.teacher.queue import read_ratings

            corpus, scored = load_train(made["corpus"].path), read_scored_pool(made["scored"].path)
            truth = corpus.truth()
            grade = None
            if truth is not None:
                grade = grades_of(scored, truth, list(corpus.rows["row_id"]), list(corpus.pages.ids))
            pairs = label_pairs(scored, read_ratings(made["ratings"].path), train_rows(made["corpus"].path), grade=grade)
            write_statistics(label_statistics(pairs), out)
            measures["pairs"] = len(pairs)

        inputs = {"corpus": self.corpus(), "scored": self.scored(), "ratings": self.ratings()}
        return Step("labels", "", {}, inputs, build)

    def _teacher(self) -> dict[str, Any]:
        from vdr.models.weights import identity

        return identity(self.profile.models.teacher, self.profile.models.teacher_revision)

    def _teacher_dir(self) -> Path:
        from vdr.models.weights import locate

        return locate(self.profile.models.teacher, self.profile.models.teacher_revision)
