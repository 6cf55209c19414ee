"""Steps from an arm's rows to its run files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from vdr.graph import Made, Step
from vdr.steps.base import StepsBase, plain, run_label, suite_flag, train_rows
from vdr.study.catalogue import Arm, load_recipes, load_suites

__all__ = ["StudentSteps"]


class StudentSteps(StepsBase):
    """Rows, checkpoints, vectors, runs."""

    @functools.cache  # noqa: B019
    def rows(self, arm: Arm, seed: int) -> Step:
        """An arm's training rows; only targets draw by seed, so that other arms share one artefact among their seeds."""
        profile = self.profile
        drawn = seed if arm.targets is not None else None
        config = {"arm": arm.supervision, "seed": drawn, "supervision": plain(profile.supervision, "queue")}
        inputs: dict[str, Step] = {"corpus": self.corpus()}
        if arm.needs_pools:
            inputs |= {"pools": self.pools(), "scored": self.scored()}
        if arm.uses_ratings:
            inputs["ratings"] = self.oracle() if arm.ratings == "oracle" else self.ratings()
        if arm.maps:
            inputs |= {"maps": self.maps(), **self._cache()}
        if arm.descriptions:
            inputs["descriptions"] = self.descriptions()

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            import pandas as pd

            from vdr.mining import read_pools, read_scored_pool
            from vdr.supervision import build_rows, read_maps
            from vdr.teacher.queue import read_ratings

            def read(name: str, reader: Any) -> Any:
                return reader(made[name].path) if name in made else None

            build_rows(
                arm,
                train_rows(made["corpus"].path),
                read("pools", read_pools),
                read("scored", read_scored_pool),
                read("ratings", read_ratings),
                read("maps", read_maps),
                read("descriptions", lambda path: pd.read_parquet(path / "descriptions.parquet")),
                drawn or 0,
                out,
                profile.supervision,
                measures,
                student_grid=self._student_grid(made) if arm.maps else None,
            )

        label = arm.name if drawn is None else f"{arm.name}-seed-{drawn}"
        return Step("rows", label, config, inputs, build)

    def _student_grid(self, made: Made) -> Any:
        """page id → (rows, columns) of its image tokens in the student."""
        from vdr.corpus.access import load_train
        from vdr.models.processing import Processor
        from vdr.models.vision_cache import CachedFeatures

        if "vision" in made:
            cache = CachedFeatures(made["vision"].path / "train")
            return dict(zip(cache.ids, cache.grid, strict=True)).__getitem__
        corpus = load_train(made["corpus"].path)
        limit = self.profile.training.max_visual_tokens
        processor = Processor.from_pretrained(self._backbone_dir(), max_visual_tokens=limit)

        def grid(page_id: str) -> tuple[int, int]:
            _, grid_thw = processor.pixels([corpus.pages.image(corpus.pages.index(page_id))], [page_id])
            height, width = processor.merged_grid(grid_thw)[0].tolist()
            return int(height), int(width)

        return functools.lru_cache(maxsize=None)(grid)

    def _trained(self, stage: str, label: str, arm: Arm, rows: Step, seed: int, epochs: float) -> Step:
        profile = self.profile
        config = {
            "training": self._training_config(),
            "losses": plain(arm.losses),
            "epochs": epochs,
            "seed": seed,
            "backbone": self._backbone(),
        }

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.study.sections.training import RecipeSettings
            from vdr.training.loop import run_training

            run_training(
                made["rows"].path,
                made["rows"].path / "maps.npz" if arm.maps else None,
                made["corpus"].path,
                made["vision"].path / "train" if "vision" in made else None,
                self._backbone_dir(),
                arm.losses,
                RecipeSettings(name=label or stage, epochs=epochs),
                seed,
                profile.training,
                out,
                measures,
                label=f"train {label or stage}",
                **self._run_on(),
            )

        return Step(stage, label, config, {"corpus": self.corpus(), "rows": rows, **self._cache()}, build)

    @functools.cache  # noqa: B019
    def checkpoint(self, arm: Arm, seed: int, recipe: str) -> Step:
        """One trained student."""
        label = run_label(arm.name, seed, recipe)
        return self._trained("checkpoint", label, arm, self.rows(arm, seed), seed, load_recipes()[recipe].epochs)

    @functools.cache  # noqa: B019
    def vectors(self, arm: Arm, seed: int, recipe: str) -> Step:
        """Its vectors of every suite's pages and queries."""
        profile = self.profile
        label = run_label(arm.name, seed, recipe)
        config = {"training": self._training_config(), "backbone": self._backbone()}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_suites as datasets
            from vdr.evaluation.encode import encode_suites

            encode_suites(
                made["checkpoint"].path,
                self._backbone_dir(),
                datasets(made["corpus"].path),
                made["vision"].path if "vision" in made else None,
                profile.training,
                out,
                measures,
                label=f"encode {label}",
                **self._run_on(),
            )

        inputs = {"corpus": self.corpus(), "checkpoint": self.checkpoint(arm, seed, recipe), **self._cache()}
        return Step("vectors", label, config, inputs, build)

    @functools.cache  # noqa: B019
    def run(self, arm: Arm, seed: int, recipe: str) -> Step:
        """Its run files and scores."""
        profile = self.profile
        label = run_label(arm.name, seed, recipe)
        flags = {name: suite_flag(load_suites()[name]) for name in profile.suites}
        config = {
            "arm": arm.name,
            "seed": seed,
            "recipe": recipe,
            "evaluation": plain(profile.evaluation, "cross_check"),
            "in_domain": flags,
        }

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_suites as datasets
            from vdr.evaluation.evaluate import evaluate

            settings = profile.evaluation
            evaluate(
                made["vectors"].path,
                [data for data in datasets(made["corpus"].path) if data.suite in profile.suites],  # type: ignore[misc]
                out,
                tag=f"{arm.name}-seed-{seed}",
                depth=settings.depth,
                k=settings.cutoff,
                gain=settings.gain,
                in_domain=flags,
                cross_check=settings.cross_check,
                measures=measures,
            )

        return Step("run", label, config, {"corpus": self.corpus(), "vectors": self.vectors(arm, seed, recipe)}, build)
