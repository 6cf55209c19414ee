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
        config = {
            "teacher": self._teacher(),
            "settings": plain(profile.teacher, "pretraining", "attention_layers", "description_tokens"),
            "pages_per_shard": profile.supervision.queue.pages_per_shard,  # the engine's batches
        }

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.mining import read_scored_pool
            from vdr.teacher.engines import PagesOf, RatingEngineOf
            from vdr.teacher.queue import plan_queue, rate

            queue = profile.supervision.queue
            plan = plan_queue(read_scored_pool(made["scored"].path), train_rows(made["corpus"].path), queue.pages_per_shard)
            engine = RatingEngineOf(self._teacher_dir(), profile.teacher, profile.hardware)
            pages = PagesOf(made["corpus"].path)
            rate(plan, engine, pages, out, measures, workers=queue.workers, compare_pages=queue.compare_pages)

        return Step("ratings", "", config, {"corpus": self.corpus(), "scored": self.scored()}, build)

    @functools.cache  # noqa: B019
    def labels(self) -> Step:
        """How incomplete the labels are: Table 17, App. O, strata; beside the truth where it is known."""

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.mining import read_scored_pool
            from vdr.teacher.labels import build_labels
            from vdr.teacher.queue import read_ratings

            corpus = load_train(made["corpus"].path)
            build_labels(
                read_scored_pool(made["scored"].path),
                read_ratings(made["ratings"].path),
                train_rows(made["corpus"].path),
                out,
                measures,
                truth=corpus.truth(),
                row_ids=list(corpus.rows["row_id"]),
                page_ids=list(corpus.pages.ids),
            )

        inputs = {"corpus": self.corpus(), "scored": self.scored(), "ratings": self.ratings()}
        return Step("labels", "", {}, inputs, build)

    @functools.cache  # noqa: B019
    def audit(self) -> Step:
        """The audit of the teacher's ratings by simulated annotators (WT §8, App. K; EV §6.3)."""
        profile = self.profile

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.audit.stage import build_audit

            places = {name: made[name].path for name in ("corpus", "scored", "ratings")}
            build_audit(out, measures, profile.audit, **places)

        inputs = {"corpus": self.corpus(), "scored": self.scored(), "ratings": self.ratings()}
        return Step("audit", "simulated", {"audit": plain(profile.audit)}, inputs, build)

    @functools.cache  # noqa: B019
    def maps(self) -> Step:
        """The teacher's attention over the labelled page, conditioned on the query (WT §3, App. G)."""
        profile = self.profile
        models = profile.models
        source, revision = models.attention_teacher, models.attention_teacher_revision
        if source is None:
            source, revision = models.teacher, models.teacher_revision
        config = {"teacher": self._identity(source, revision), "attention_layers": list(profile.teacher.attention_layers)}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.models.weights import locate
            from vdr.teacher.attention import AttentionTeacher, extract_maps

            teacher = AttentionTeacher(locate(source, revision), profile.teacher, device=profile.hardware.device)
            extract_maps(train_rows(made["corpus"].path), load_train(made["corpus"].path).pages, teacher, out, measures)

        return Step("maps", "", config, {"corpus": self.corpus()}, build)

    @functools.cache  # noqa: B019
    def descriptions(self) -> Step:
        """The teacher's description of every labelled page, grounded in the query (WT §3, App. J)."""
        profile = self.profile
        config = {"teacher": self._teacher(), "settings": plain(profile.teacher, "pretraining", "attention_layers", "max_new_tokens")}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.teacher.descriptions import write_descriptions
            from vdr.teacher.engines import TransformersTeacher

            teacher = TransformersTeacher(self._teacher_dir(), profile.teacher, device=profile.hardware.device)
            write_descriptions(train_rows(made["corpus"].path), load_train(made["corpus"].path).pages, teacher, out, measures)

        return Step("descriptions", "", config, {"corpus": self.corpus()}, build)

    # -- the miniature's own weights -----------------------------------------------------------------------------------
    @functools.cache  # noqa: B019
    def backbone(self) -> Step:
        """The mini backbone, pretrained from scratch on page reading; what ships is a copy of such an artefact."""
        settings = self.profile.models.pretraining

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.models.pretraining.make import make_backbone

            make_backbone(out, settings, measures)

        return Step("backbone", "", {"pretraining": plain(settings)}, {}, build)

    @functools.cache  # noqa: B019
    def teacher(self) -> Step:
        """The mini teacher, trained from the backbone on pages and queries of its own split."""
        settings = self.profile.teacher.pretraining
        config = {"pretraining": plain(settings), "backbone": self._backbone()}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.teacher.pretraining.make import make_teacher

            make_teacher(out, self._backbone_dir(), settings, measures)

        return Step("teacher", "", config, {}, build)

    def _teacher(self) -> dict[str, Any]:
        return self._identity(self.profile.models.teacher, self.profile.models.teacher_revision)

    def _teacher_dir(self) -> Path:
        from vdr.models.weights import locate

        return locate(self.profile.models.teacher, self.profile.models.teacher_revision)
